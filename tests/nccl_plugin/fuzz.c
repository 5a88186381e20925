/* The reader of rules under arbitrary bytes, for libFuzzer, or by itself:

   clang -fsanitize=fuzzer,address,undefined ... fuzz.c rules.c places.c
   gcc -DALONE -fsanitize=address,undefined ...; fuzz SEED ROUNDS FILES

   The first byte of an input says whether its size and checksum are made right, so
   that what is behind them is reached too. */
#include "places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t opened;

static void look_up(const struct rules *rules) {
  static const uint64_t sizes[] = {0, 1, 4096, 1 << 20, 1000003, 1u << 31, UINT64_MAX};
  for (uint32_t i = 0; i < rules->scope_count; i++) {
    const struct scope *scope = &rules->scopes[i];
    rules_scope(rules, scope->ranks, scope->hosts, scope->domains);
    struct places places;
    places_begin(&places, scope);
    for (uint32_t call = 0; call < 100; call++) {
      uint32_t function = call * 7 % FUNCTIONS;
      uint64_t bytes = sizes[call % (sizeof sizes / sizeof *sizes)];
      if (call % 5 == 0) {
        const struct table *table = &scope->tables[function];
        uint32_t number = table->first_piece + call * 31 % table->pieces;
        bytes = rules->pieces[number].least + call % 2;
      }
      if (places.expected != NOTHING && call % 3) {
        function = rules->items[places.expected].function;
        bytes = rules->items[places.expected].bytes;
      }
      const struct setting *found = NULL;
      if (scope->window) found = places_step(&places, rules, scope, function, bytes);
      if (!found) found = rules_by_size(rules, scope, function, bytes, call % 4);
      if (found && (found->algorithm < AS_NCCL_CHOOSES ||
                    found->algorithm >= ALGORITHMS || found->protocol >= PROTOCOLS))
        abort();
    }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
  rules_prepare();
  if (!size) return 0;
  uint8_t *image = malloc(--size ? size : 1);
  memcpy(image, input + 1, size);
  if (input[0] & 1 && size >= 64) {
    uint64_t length = size;
    memcpy(image + 16, &length, sizeof length);
    uint32_t checksum = rules_checksum(image + 16, size - 16);
    memcpy(image + 12, &checksum, sizeof checksum);
  }
  struct rules rules;
  const char *why;
  if (rules_open(&rules, image, size, &why)) {
    opened++;
    look_up(&rules);
  } else if (!why) {
    abort();
  }
  free(image);
  return 0;
}

#ifdef ALONE
static uint64_t state;

static uint64_t chance(uint64_t below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) % below;
}

static size_t mutate(uint8_t *input, size_t size, size_t most) {
  for (uint64_t times = 1 + chance(4); times; times--) {
    size_t at = 1 + chance(size - 1);
    static const uint32_t odd[] = {0, 1, 2, 63, 64, 65, 255, 1u << 31, UINT32_MAX};
    switch (chance(5)) {
      case 0: input[at] ^= (uint8_t)(1u << chance(8)); break;
      case 1: input[at] = (uint8_t)chance(256); break;
      case 2: size = at + 1; break;
      case 3:
        if (at % 4 == 1 && at + 4 <= size)
          memcpy(input + at, &odd[chance(sizeof odd / sizeof *odd)], 4);
        break;
      default:
        if (size + 8 <= most) {
          memmove(input + at + 8, input + at, size - at);
          size += 8;
        }
    }
  }
  return size;
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  enum { MOST = 1 << 20 };
  uint8_t *seed = malloc(MOST), *input = malloc(MOST);
  state = strtoull(argv[1], NULL, 10);
  uint64_t rounds = strtoull(argv[2], NULL, 10);
  for (int i = 3; i < argc; i++) {
    FILE *file = fopen(argv[i], "rb");
    size_t size = file ? fread(seed, 1, MOST / 2, file) : 0;
    if (!size) return 2;
    fclose(file);
    for (uint64_t round = 0; round < rounds; round++) {
      memcpy(input, seed, size);
      LLVMFuzzerTestOneInput(input, mutate(input, size, MOST));
    }
  }
  printf("%llu\n", (unsigned long long)opened);
  free(seed), free(input);
  return 0;
}
#endif
