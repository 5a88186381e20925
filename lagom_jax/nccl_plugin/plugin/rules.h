/* The compiled rules: an image that is checked once and then only looked up.
   Its format, written by lagom_jax/nccl_plugin/image.py, is described in docs/reference/tuner.md. */
#ifndef LAGOM_RULES_H
#define LAGOM_RULES_H

#include "nccl_abi.h"

#include <stdbool.h>

enum { RULES_VERSION = 2, MOST_CHANNELS = 64, LONGEST_WINDOW = 64 };
#define NOTHING UINT32_MAX

/* In place of an algorithm. */
enum {
  AS_NCCL_CHOOSES = -1, /* and so the protocol */
  NO_RULE = -2,         /* nothing is said about the call at all */
  BY_PIPE_OPS = -3      /* `chunk` is the first of some choices */
};

struct setting {
  int8_t algorithm;
  int8_t protocol;
  uint8_t channels; /* 0: as NCCL chooses */
  uint8_t alone;    /* in a piece, 1: for its least size, and no rule behind it */
  uint32_t chunk;   /* 0: as NCCL chooses */
};

/* What holds for sizes up to the next piece. */
struct piece {
  uint64_t least;
  struct setting setting;
};

struct choice {
  struct setting setting;
  uint32_t pipe_ops; /* 0: any number, and the last one */
};

struct item {
  uint64_t bytes;
  struct setting setting; /* NO_RULE: what the size rules say */
  uint32_t function;
  uint32_t next;
};

struct anchor {
  uint64_t hash;
  uint32_t item;
  uint32_t used;
};

struct table {
  uint64_t least; /* from here on sizes have codes */
  uint32_t first_piece;
  uint32_t pieces;
  uint32_t first_start;
  uint32_t codes;
  uint32_t linear; /* up to this exponent all codes are equally wide */
  uint32_t bits;
};

struct scope {
  uint32_t ranks;
  uint32_t hosts;   /* 0: any number */
  uint32_t domains; /* 0: any number */
  uint32_t window;  /* calls that make up an anchor; 0: no sequence */
  struct table tables[FUNCTIONS];
  uint32_t first_item; /* where a new communicator begins, or NOTHING */
  uint32_t first_anchor;
  uint32_t anchors; /* a power of two */
  uint32_t zero;
};

struct rules {
  const struct piece *pieces;
  const struct item *items;
  const struct anchor *anchors;
  const struct scope *scopes;
  const struct choice *choices;
  const uint32_t *starts;
  uint32_t scope_count;
  uint32_t checksum;
};

/* Must have run once before anything is opened. */
void rules_prepare(void);

uint32_t rules_checksum(const void *bytes, size_t size);

/* Checks all of an image, so that no look-up can leave it. On failure `why` says
   what is wrong. The memory must be aligned to 8 bytes, and stay as it is. */
bool rules_open(struct rules *rules, const void *bytes, size_t size, const char **why);

/* The rules in an image that `rules_open` has found to be sound. */
void rules_view(struct rules *rules, const void *bytes);

/* The first scope that takes a communicator in, or NULL. */
const struct scope *rules_scope(const struct rules *rules, size_t ranks, size_t hosts,
                                size_t domains);

/* What holds for a call of a size, or NULL. */
const struct setting *rules_by_size(const struct rules *rules,
                                    const struct scope *scope, uint32_t function,
                                    uint64_t bytes, uint32_t pipe_ops);

#endif
