/* What all parts of the plugin need: a line for NCCL's log, and doing a thing once. */
#ifndef LAGOM_COMMON_H
#define LAGOM_COMMON_H

#include "nccl_abi.h"

#include <sched.h>
#include <stdatomic.h>

#define SAY(log, level, ...) \
  do { \
    if (log) \
      (log)(level, LOG_ABOUT_TUNING | LOG_ABOUT_INIT, __func__, __LINE__, \
            "lagom tuner: " __VA_ARGS__); \
  } while (0)

struct once {
  atomic_int state; /* 0 not yet, 1 under way, 2 done */
};

/* Runs it in the first thread that comes; the others wait until it is done. */
static inline void once(struct once *once, void (*run)(logger log), logger log) {
  int untouched = 0;
  if (atomic_compare_exchange_strong(&once->state, &untouched, 1)) {
    run(log);
    atomic_store(&once->state, 2);
  }
  while (atomic_load(&once->state) != 2) sched_yield();
}

#endif
