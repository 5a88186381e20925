/* What NCCL and its tuner plugins agree on, in our own words: docs/reference/tuner.md. */
#ifndef LAGOM_NCCL_ABI_H
#define LAGOM_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { NCCL_SUCCESS = 0 };

enum {
  FUNCTIONS = 5, /* broadcast, reduce, all-gather, reduce-scatter, all-reduce */
  ALGORITHMS = 7, /* tree, ring, collnet direct and chain, nvls, nvls tree, pat */
  PROTOCOLS = 3, /* ll, ll128, simple */
  RING = 1,
  NVLS = 4,
  NVLS_TREE = 5,
  LL = 0,
  LL128 = 1,
  SIMPLE = 2
};

enum { LOG_WARN = 2, LOG_INFO = 3 };
enum { LOG_ABOUT_TUNING = 0x40, LOG_ABOUT_INIT = 0x1 };

typedef void (*logger)(int level, unsigned long about, const char *file, int line,
                       const char *format, ...);

struct nvlink_domains {
  int domains;
  int fewest_ranks;
  int most_ranks;
};

/* A plugin of ours never looks into the model's constants: it only hands them on. */
struct model_constants;

/* Before version 5 a plugin learned neither of domains nor of constants. */
struct tuner_v3 {
  const char *name;
  int (*init)(size_t ranks, size_t hosts, logger log, void **context);
  int (*get_coll_info)(void *context, int function, size_t bytes, int pipe_ops,
                       float **costs, int algorithms, int protocols, int *channels);
  int (*destroy)(void *context);
};

struct tuner_v4 {
  const char *name;
  int (*init)(size_t ranks, size_t hosts, logger log, void **context);
  int (*get_coll_info)(void *context, int function, size_t bytes, int pipe_ops,
                       float **costs, int algorithms, int protocols, int registered,
                       int *channels);
  int (*destroy)(void *context);
};

struct tuner_v5 {
  const char *name;
  int (*init)(void **context, uint64_t communicator, size_t ranks, size_t hosts,
              logger log, struct nvlink_domains *domains,
              struct model_constants *constants);
  int (*get_coll_info)(void *context, int function, size_t bytes, int pipe_ops,
                       float **costs, int algorithms, int protocols, int registered,
                       int *channels);
  int (*finalize)(void *context);
};

struct tuner_v6 {
  const char *name;
  int (*init)(void **context, uint64_t communicator, size_t ranks, size_t hosts,
              logger log, struct nvlink_domains *domains,
              struct model_constants *constants);
  int (*get_coll_info)(void *context, int function, size_t bytes, int pipe_ops,
                       float **costs, int algorithms, int protocols, int registered,
                       int *channels);
  int (*finalize)(void *context);
  int (*get_chunk_size)(void *context, int function, size_t bytes, int algorithm,
                        int protocol, int channels, size_t *chunk);
};

#endif
