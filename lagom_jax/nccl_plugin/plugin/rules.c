#include "rules.h"

#include <string.h>

static const char MAGIC[8] = "LAGOMTUN";

struct header {
  char magic[8];
  uint32_t version;
  uint32_t checksum; /* of all that follows it */
  uint64_t size;
  uint32_t pieces;
  uint32_t items;
  uint32_t anchors;
  uint32_t scopes;
  uint32_t choices;
  uint32_t starts;
  uint32_t zero[4];
};

enum {
  CHECKED_FROM = offsetof(struct header, size),
  FEW = 4 /* pieces that a look-up compares in one go */
};

_Static_assert(sizeof(struct header) == 64, "the format says 64 bytes");
_Static_assert(sizeof(struct piece) == 16, "the format says 16 bytes");
_Static_assert(sizeof(struct item) == 24, "the format says 24 bytes");
_Static_assert(sizeof(struct anchor) == 16, "the format says 16 bytes");
_Static_assert(sizeof(struct scope) == 192, "the format says 192 bytes");
_Static_assert(sizeof(struct choice) == 12, "the format says 12 bytes");

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
  bool neither = setting->algorithm == AS_NCCL_CHOOSES && setting->protocol == -1;
  return (both || neither) && setting->algorithm < ALGORITHMS &&
         setting->protocol < PROTOCOLS && setting->channels <= MOST_CHANNELS;
}

static bool setting_or_none_holds(const struct setting *setting) {
  return setting->algorithm == NO_RULE || setting_holds(setting);
}

static bool piece_holds(const struct piece *piece, const struct header *header) {
  if (piece->setting.alone > 1) return false;
  if (piece->setting.algorithm == BY_PIPE_OPS)
    return piece->setting.chunk < header->choices;
  return setting_or_none_holds(&piece->setting);
}

static bool table_holds(const struct rules *rules, const struct header *header,
                        const struct table *table) {
  if (table->linear > 63 || table->bits > table->linear || table->pieces < FEW ||
      !table->codes || !within(table->first_piece, table->pieces, header->pieces) ||
      !within(table->first_start, (uint64_t)table->codes + 1, header->starts))
    return false;
  const uint32_t *starts = rules->starts + table->first_start;
  for (uint32_t i = 0; i < table->codes; i++)
    if (starts[i] > starts[i + 1]) return false;
  if (starts[table->codes] > table->pieces - FEW) return false;
  const struct piece *pieces = rules->pieces + table->first_piece;
  for (uint32_t i = 1; i < table->pieces; i++)
    if (pieces[i].least < pieces[i - 1].least) return false;
  return !pieces->least;
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
  for (uint32_t i = 0; i < header->pieces; i++)
    if (!piece_holds(&rules->pieces[i], header)) return "a setting is impossible";
  for (uint32_t i = 0; i < header->choices; i++)
    if (!setting_or_none_holds(&rules->choices[i].setting))
      return "a setting is impossible";
  if (header->choices && rules->choices[header->choices - 1].pipe_ops)
    return "its choices do not end";
  for (uint32_t i = 0; i < header->items; i++) {
    const struct item *item = &rules->items[i];
    if (item->next >= header->items || item->function >= FUNCTIONS ||
        !setting_or_none_holds(&item->setting))
      return "a place in a sequence leads nowhere";
  }
  for (uint32_t i = 0; i < header->anchors; i++)
    if (rules->anchors[i].used && rules->anchors[i].item >= header->items)
      return "an anchor leads nowhere";
  for (uint32_t i = 0; i < header->scopes; i++)
    if (!scope_holds(rules, header, &rules->scopes[i])) return "a scope is damaged";
  return NULL;
}

/* Where each section begins, and the last one ends. Six counts of 32 bits times at
   most 192 bytes cannot overflow 64. */
struct layout {
  uint64_t pieces, items, anchors, scopes, choices, starts, end;
};

static struct layout layout_of(const struct header *header) {
  struct layout at = {.pieces = sizeof *header};
  at.items = at.pieces + sizeof(struct piece) * (uint64_t)header->pieces;
  at.anchors = at.items + sizeof(struct item) * (uint64_t)header->items;
  at.scopes = at.anchors + sizeof(struct anchor) * (uint64_t)header->anchors;
  at.choices = at.scopes + sizeof(struct scope) * (uint64_t)header->scopes;
  at.starts = at.choices + sizeof(struct choice) * (uint64_t)header->choices;
  at.end = at.starts + sizeof(uint32_t) * (uint64_t)header->starts;
  return at;
}

void rules_view(struct rules *rules, const void *bytes) {
  const struct header *header = bytes;
  const char *byte = bytes;
  struct layout at = layout_of(header);
  *rules = (struct rules){
      .pieces = (const void *)(byte + at.pieces),
      .items = (const void *)(byte + at.items),
      .anchors = (const void *)(byte + at.anchors),
      .scopes = (const void *)(byte + at.scopes),
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

/* Grows with the size. As with floating-point numbers, the first codes are equally
   wide, and those of each further exponent twice as wide as before. */
static uint64_t code_of(const struct table *table, uint64_t bytes) {
  uint64_t above = bytes > table->least ? bytes - table->least : 0;
  uint32_t exponent =
      63 - (uint32_t)__builtin_clzll(above | UINT64_C(1) << table->linear);
  uint64_t code = (above >> (exponent - table->bits)) +
                  ((uint64_t)(exponent - table->linear) << table->bits);
  return code < table->codes ? code : table->codes - 1;
}

static const struct setting *by_pipe_ops(const struct choice *choice,
                                         uint32_t pipe_ops) {
  while (choice->pipe_ops && choice->pipe_ops != pipe_ops) choice++;
  return choice->setting.algorithm == NO_RULE ? NULL : &choice->setting;
}

const struct setting *rules_by_size(const struct rules *rules,
                                    const struct scope *scope, uint32_t function,
                                    uint64_t bytes, uint32_t pipe_ops) {
  const struct table *table = &scope->tables[function];
  const uint32_t *start = rules->starts + table->first_start + code_of(table, bytes);
  const struct piece *piece = rules->pieces + table->first_piece + start[0];
  /* Without a branch on what is compared: sizes are no pattern to be guessed. */
  for (uint32_t left = start[1] - start[0] + 1; left > FEW;) {
    uint32_t half = left / 2;
    piece += half & -(uint32_t)(piece[half].least <= bytes);
    left -= half;
  }
  piece += (piece[1].least <= bytes) + (piece[2].least <= bytes) +
           (piece[3].least <= bytes);
  if (piece->setting.alone & (piece->least != bytes)) return NULL;
  if (piece->setting.algorithm > NO_RULE) return &piece->setting;
  if (piece->setting.algorithm == NO_RULE) return NULL;
  return by_pipe_ops(rules->choices + piece->setting.chunk, pipe_ops);
}
