#include "places.h"

#include <string.h>

static const uint64_t BASE = 0xD6E8FEB86659FD93u;

void places_begin(struct places *places, const struct scope *scope) {
  memset(places, 0, sizeof *places);
  places->expected = NOTHING;
  if (!scope || !scope->window) return;
  places->expected = scope->first_item;
  places->power = 1;
  for (uint32_t i = 0; i < scope->window; i++) places->power *= BASE;
}

static uint64_t symbol_of(uint32_t function, uint64_t bytes) {
  uint64_t mixed = (bytes << 3 | function) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9u;
  return mixed ^ mixed >> 32;
}

static void remember(struct places *places, uint32_t window, uint64_t symbol) {
  uint64_t gone = places->symbols[places->oldest];
  places->hash = places->hash * BASE + symbol - gone * places->power;
  places->symbols[places->oldest] = symbol;
  if (++places->oldest == window) places->oldest = 0;
}

static uint32_t anchored(const struct places *places, const struct rules *rules,
                         const struct scope *scope) {
  const struct anchor *anchors = rules->anchors + scope->first_anchor;
  uint32_t mask = scope->anchors - 1;
  uint32_t slot = (uint32_t)(places->hash >> 32) & mask;
  for (uint32_t tried = 0; tried <= mask; tried++) {
    const struct anchor *anchor = &anchors[slot];
    if (!anchor->used) return NOTHING;
    if (anchor->hash == places->hash) return anchor->item;
    slot = (slot + 1) & mask;
  }
  return NOTHING;
}

const struct setting *places_step(struct places *places, const struct rules *rules,
                                  const struct scope *scope, uint32_t function,
                                  uint64_t bytes) {
  uint32_t here = places->expected;
  remember(places, scope->window, symbol_of(function, bytes));
  if (here == NOTHING || rules->items[here].bytes != bytes ||
      rules->items[here].function != function)
    here = anchored(places, rules, scope);
  places->expected = here == NOTHING ? NOTHING : rules->items[here].next;
  if (here == NOTHING || rules->items[here].setting.algorithm == NO_RULE) return NULL;
  return &rules->items[here].setting;
}
