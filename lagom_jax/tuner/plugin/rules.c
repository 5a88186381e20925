#include "rules.h"

#include <string.h>

static const char MAGIC[8] = "LAGOMTUN";

struct header {
  char magic[8];
  uint32_t version;
  uint32_t checksum; /* of all that follows it */
  uint64_t size;
  uint32_t intervals;
  uint32_t items;
  uint32_t anchors;
  uint32_t scopes;
  uint32_t settings;
  uint32_t choices;
  uint32_t starts;
  uint32_t zero[3];
};

enum { CHECKED_FROM = offsetof(struct header, size), MOST_BITS = 8 };

static const uint32_t EXPONENTS = 64;

_Static_assert(sizeof(struct header) == 64, "the format says 64 bytes");
_Static_assert(sizeof(struct interval) == 24, "the format says 24 bytes");
_Static_assert(sizeof(struct item) == 24, "the format says 24 bytes");
_Static_assert(sizeof(struct anchor) == 16, "the format says 16 bytes");
_Static_assert(sizeof(struct scope) == 112, "the format says 112 bytes");
_Static_assert(sizeof(struct setting) == 8, "the format says 8 bytes");
_Static_assert(sizeof(struct choice) == 8, "the format says 8 bytes");

static uint32_t crc_of_byte[256];

void rules_prepare(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    crc_of_byte[byte] = crc;
  }
}

uint32_t rules_checksum(const void *bytes, size_t size) {
  const unsigned char *byte = bytes;
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < size; i++) crc = crc >> 8 ^ crc_of_byte[(crc ^ byte[i]) & 255];
  return ~crc;
}

static bool within(uint64_t first, uint64_t count, uint64_t all) {
  return first <= all && count <= all - first;
}

static bool setting_holds(const struct setting *setting) {
  bool both = setting->algorithm >= 0 && setting->protocol >= 0;
  bool neither = setting->algorithm == -1 && setting->protocol == -1;
  return (both || neither) && setting->algorithm < ALGORITHMS &&
         setting->protocol < PROTOCOLS && setting->channels <= MOST_CHANNELS;
}

static bool table_holds(const struct rules *rules, const struct header *header,
                        const struct table *table) {
  if (!table->intervals) return true;
  if (table->bits > MOST_BITS ||
      !within(table->first_interval, table->intervals, header->intervals) ||
      !within(table->first_start, (EXPONENTS << table->bits) + 1, header->starts))
    return false;
  const uint32_t *starts = rules->starts + table->first_start;
  for (uint32_t i = 0; i < EXPONENTS << table->bits; i++)
    if (starts[i] > starts[i + 1]) return false;
  if (starts[EXPONENTS << table->bits] > table->intervals) return false;
  const struct interval *intervals = rules->intervals + table->first_interval;
  for (uint32_t i = 0; i < table->intervals; i++) {
    if (intervals[i].least > intervals[i].most) return false;
    if (i && intervals[i].least <= intervals[i - 1].most) return false;
  }
  return true;
}

static bool scope_holds(const struct rules *rules, const struct header *header,
                        const struct scope *scope) {
  for (int function = 0; function < FUNCTIONS; function++)
    if (!table_holds(rules, header, &scope->tables[function])) return false;
  if (scope->zero) return false;
  if (!scope->window) return true;
  return scope->window <= LONGEST_WINDOW && scope->anchors &&
         !(scope->anchors & (scope->anchors - 1)) &&
         within(scope->first_anchor, scope->anchors, header->anchors) &&
         (scope->first_item == NOTHING || scope->first_item < header->items);
}

static const char *fault(const struct rules *rules, const struct header *header) {
  for (uint32_t i = 0; i < header->settings; i++)
    if (!setting_holds(&rules->settings[i])) return "a setting is impossible";
  for (uint32_t i = 0; i < header->choices; i++)
    if (rules->choices[i].setting >= header->settings) return "a choice leads nowhere";
  for (uint32_t i = 0; i < header->intervals; i++)
    if (!within(rules->intervals[i].first_choice, rules->intervals[i].choices,
                header->choices))
      return "an interval leads nowhere";
  for (uint32_t i = 0; i < header->items; i++) {
    const struct item *item = &rules->items[i];
    if (item->next >= header->items || item->function >= FUNCTIONS || item->zero ||
        (item->setting != NOTHING && item->setting >= header->settings))
      return "a place in a sequence leads nowhere";
  }
  for (uint32_t i = 0; i < header->anchors; i++)
    if (rules->anchors[i].used && rules->anchors[i].item >= header->items)
      return "an anchor leads nowhere";
  for (uint32_t i = 0; i < header->scopes; i++)
    if (!scope_holds(rules, header, &rules->scopes[i])) return "a scope is damaged";
  return NULL;
}

/* Where each section begins, and the last one ends. Seven counts of 32 bits times at
   most 112 bytes cannot overflow 64. */
struct layout {
  uint64_t intervals, items, anchors, scopes, settings, choices, starts, end;
};

static struct layout layout_of(const struct header *header) {
  struct layout at = {.intervals = sizeof *header};
  at.items = at.intervals + sizeof(struct interval) * (uint64_t)header->intervals;
  at.anchors = at.items + sizeof(struct item) * (uint64_t)header->items;
  at.scopes = at.anchors + sizeof(struct anchor) * (uint64_t)header->anchors;
  at.settings = at.scopes + sizeof(struct scope) * (uint64_t)header->scopes;
  at.choices = at.settings + sizeof(struct setting) * (uint64_t)header->settings;
  at.starts = at.choices + sizeof(struct choice) * (uint64_t)header->choices;
  at.end = at.starts + sizeof(uint32_t) * (uint64_t)header->starts;
  return at;
}

void rules_view(struct rules *rules, const void *bytes) {
  const struct header *header = bytes;
  const char *byte = bytes;
  struct layout at = layout_of(header);
  *rules = (struct rules){
      .intervals = (const void *)(byte + at.intervals),
      .items = (const void *)(byte + at.items),
      .anchors = (const void *)(byte + at.anchors),
      .scopes = (const void *)(byte + at.scopes),
      .settings = (const void *)(byte + at.settings),
      .choices = (const void *)(byte + at.choices),
      .starts = (const void *)(byte + at.starts),
      .scope_count = header->scopes,
      .checksum = header->checksum,
  };
}

bool rules_open(struct rules *rules, const void *bytes, size_t size, const char **why) {
  const struct header *header = bytes;
  *why = "it is no rules file";
  if (size < sizeof MAGIC || memcmp(bytes, MAGIC, sizeof MAGIC)) return false;
  *why = "it is cut short";
  if (size < sizeof *header) return false;
  *why = header->version > RULES_VERSION ? "it was written by a newer lagom_jax"
                                         : "its format is no longer read";
  if (header->version != RULES_VERSION) return false;
  *why = "its size is not what it says";
  if (header->size != size || layout_of(header).end != size) return false;
  *why = "its checksum is wrong";
  if (rules_checksum((const char *)bytes + CHECKED_FROM, size - CHECKED_FROM) !=
      header->checksum)
    return false;
  rules_view(rules, bytes);
  *why = fault(rules, header);
  return !*why;
}

static bool takes(uint32_t wanted, size_t found) { return !wanted || wanted == found; }

const struct scope *rules_scope(const struct rules *rules, size_t ranks, size_t hosts,
                                size_t domains) {
  for (uint32_t i = 0; i < rules->scope_count; i++) {
    const struct scope *scope = &rules->scopes[i];
    if (scope->ranks == ranks && takes(scope->hosts, hosts) &&
        takes(scope->domains, domains))
      return scope;
  }
  return NULL;
}

/* Grows with the number: its exponent, and the bits behind the leading one. */
static uint32_t code_of(uint64_t bytes, uint32_t bits) {
  bytes += !bytes;
  uint32_t exponent = 63 - (uint32_t)__builtin_clzll(bytes);
  uint64_t behind =
      exponent >= bits ? bytes >> (exponent - bits) : bytes << (bits - exponent);
  return exponent << bits | ((uint32_t)behind & ((1u << bits) - 1));
}

const struct setting *rules_by_size(const struct rules *rules,
                                    const struct scope *scope, uint32_t function,
                                    uint64_t bytes, uint32_t pipe_ops) {
  const struct table *table = &scope->tables[function];
  if (!table->intervals) return NULL;
  const uint32_t *starts = rules->starts + table->first_start;
  const struct interval *intervals = rules->intervals + table->first_interval;
  if (bytes < intervals->least) return NULL;
  uint32_t code = code_of(bytes - intervals->least, table->bits);
  /* Those that begin under a lower code begin below this size, so that the last of
     them may be the one, and so may all that begin under the same code. */
  uint32_t first = starts[code] ? starts[code] - 1 : 0;
  uint32_t left = starts[code + 1] - first;
  /* Without a branch on what is compared: sizes are no pattern to be guessed. */
  while (left > 1) {
    uint32_t half = left / 2;
    first += half & -(uint32_t)(intervals[first + half].least <= bytes);
    left -= half;
  }
  const struct interval *interval = &intervals[first];
  if (bytes < interval->least || bytes > interval->most) return NULL;
  const struct choice *choices = rules->choices + interval->first_choice;
  for (uint32_t i = 0; i < interval->choices; i++)
    if (takes(choices[i].pipe_ops, pipe_ops))
      return &rules->settings[choices[i].setting];
  return NULL;
}
