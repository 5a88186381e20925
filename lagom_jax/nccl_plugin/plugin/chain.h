/* Another tuner, which the user names, for the calls that no rule is about. */
#ifndef LAGOM_CHAIN_H
#define LAGOM_CHAIN_H

#include "nccl_abi.h"

#include <stdbool.h>

struct chained {
  int version; /* 0: there is none */
  void *context;
};

struct communicator_facts {
  uint64_t id;
  size_t ranks;
  size_t hosts;
  logger log;
  struct nvlink_domains *domains;
  struct model_constants *constants;
};

/* Loads the tuner that LAGOM_TUNER_CHAIN names, and starts it for a communicator.
   NCCL speaks `version` with us, and the other can be asked no newer one. */
void chain_init(struct chained *chained, int version,
                const struct communicator_facts *facts);

/* Only where there is one: nine arguments are not worth passing for nothing. */
void chain_get_coll_info(const struct chained *chained, int function, size_t bytes,
                         int pipe_ops, float **costs, int algorithms, int protocols,
                         int registered, int *channels);

void chain_get_chunk_size(const struct chained *chained, int function, size_t bytes,
                          int algorithm, int protocol, int channels, size_t *chunk);

void chain_finalize(struct chained *chained);

#endif
