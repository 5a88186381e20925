/* A tuner of somebody else: sets channels by its version, and can fail.
   VERSIONS is a mask of the versions that it has. */
#include "nccl_abi.h"

#include <stdlib.h>
#include <string.h>

static int init_old(size_t ranks, size_t hosts, logger log, void **context) {
  (void)log;
  *context = malloc(1);
  return ranks && hosts && *context ? 0 : 1;
}

static int answer(int version, float **costs, int protocols, int *channels) {
  ((float *)(void *)costs)[RING * protocols + LL] = 0.0f;
  *channels = 10 + version;
  /* Having changed something first is the worst way to fail. */
  return getenv("OTHER_FAILS") != NULL;
}

static int ask_3(void *context, int function, size_t bytes, int pipe_ops, float **costs,
                 int algorithms, int protocols, int *channels) {
  (void)context, (void)function, (void)bytes, (void)pipe_ops, (void)algorithms;
  return answer(3, costs, protocols, channels);
}

static int end(void *context) {
  free(context);
  return 0;
}

#if VERSIONS & 1 << 3
const struct tuner_v3 ncclTunerPlugin_v3 = {"other", init_old, ask_3, end};
#endif

#define ASK(version) \
  static int ask_##version(void *context, int function, size_t bytes, int pipe_ops, \
                           float **costs, int algorithms, int protocols, \
                           int registered, int *channels) { \
    (void)context, (void)function, (void)bytes, (void)pipe_ops, (void)algorithms; \
    (void)registered; \
    return answer(version, costs, protocols, channels); \
  }

#if VERSIONS & 1 << 4
ASK(4)
const struct tuner_v4 ncclTunerPlugin_v4 = {"other", init_old, ask_4, end};
#endif

#if VERSIONS & (1 << 5 | 1 << 6)
static int init_new(void **context, uint64_t id, size_t ranks, size_t hosts, logger log,
                    struct nvlink_domains *domains, struct model_constants *constants) {
  (void)id, (void)constants;
  return domains ? init_old(ranks, hosts, log, context) : 1;
}
#endif

#if VERSIONS & 1 << 5
ASK(5)
const struct tuner_v5 ncclTunerPlugin_v5 = {"other", init_new, ask_5, end};
#endif

#if VERSIONS & 1 << 6
ASK(6)
static int chunk_6(void *context, int function, size_t bytes, int algorithm,
                   int protocol, int channels, size_t *chunk) {
  (void)context, (void)function, (void)bytes, (void)algorithm, (void)protocol;
  (void)channels;
  *chunk = 666;
  return getenv("OTHER_FAILS") != NULL;
}
const struct tuner_v6 ncclTunerPlugin_v6 = {"other", init_new, ask_6, end, chunk_6};
#endif
