/* Where a communicator is in its repeating sequence of calls.
   All that counts is the calls that this communicator has seen, in their order,
   which is the same on every rank; so every rank finds the same place. */
#ifndef LAGOM_PLACES_H
#define LAGOM_PLACES_H

#include "rules.h"

struct places {
  uint32_t expected; /* the item that should come next; NOTHING while lost */
  uint32_t oldest;
  uint64_t hash; /* of the last calls: of fewer than a window, it is no anchor's */
  uint64_t power;
  uint64_t symbols[LONGEST_WINDOW];
};

void places_begin(struct places *places, const struct scope *scope);

/* Takes the next call in; what its place says, or NULL if that is nothing or the
   place is not known. */
const struct setting *places_step(struct places *places, const struct rules *rules,
                                  const struct scope *scope, uint32_t function,
                                  uint64_t bytes);

#endif
