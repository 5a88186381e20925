/* Where the rules come from: a file that holds from the beginning, or a control page
   whose owner says which generation of rules holds. The protocol is in docs/reference/tuner.md. */
#ifndef LAGOM_SOURCE_H
#define LAGOM_SOURCE_H

#include "rules.h"

/* Opens what the environment names; the first call counts, and says in `log` what
   keeps the rules from being used. Safe from many threads. */
void source_open(logger log);

/* Which rules hold now: 0 while none do. Equal values mean equal rules. */
uint64_t source_active(void);

/* The rules of a value that `source_active` returned; false if they are damaged,
   which is said once. */
bool source_rules(uint64_t active, struct rules *rules, logger log);

/* What the user's own variables leave of a number of channels. */
uint32_t source_channels_allowed(uint32_t channels);

#endif
