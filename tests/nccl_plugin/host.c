/* Stands in for NCCL: asks a plugin as NCCL's enqueueing does, for every version.

   host PLUGIN VERSION THREADS < calls > answers

   Communicators are dealt out to the threads. A group of calls is asked about as a
   whole, then the chunks of each of its calls, in a low, a middle and a high part. */
#include "nccl_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
  uint32_t ranks, hosts, domains, zero;
};

struct call {
  uint32_t communicator;
  uint32_t function;
  uint64_t bytes;
  uint32_t pipe_ops;
  uint32_t possible;   /* a bit for each entry of the table */
  uint32_t algorithms; /* rows that this NCCL has */
  uint32_t ends_group;
};

struct answer {
  int32_t chosen;   /* the entry that NCCL takes: the least that is possible */
  uint32_t changed; /* a bit for each entry that is not as it was */
  int32_t channels;
  uint32_t chunks[3];
};

static const void *tuner;
static int version, threads;
static uint32_t shapes, calls;
static struct shape *shape;
static struct call *call;
static struct answer *answer;
static void **context;

__attribute__((format(printf, 5, 6))) static void log_to_stderr(
    int level, unsigned long about, const char *file, int line, const char *format,
    ...) {
  (void)about, (void)file, (void)line;
  char text[1024];
  va_list words;
  va_start(words, format);
  vsnprintf(text, sizeof text, format, words);
  va_end(words);
  fprintf(stderr, "%s %s\n", level == LOG_WARN ? "WARN" : "INFO", text);
}

static void begin(uint32_t number) {
  struct shape *is = &shape[number];
  struct nvlink_domains domains = {(int)is->domains, 1, 1};
  int failed;
  if (version >= 5)
    failed = ((const struct tuner_v5 *)tuner)
                 ->init(&context[number], number, is->ranks, is->hosts, log_to_stderr,
                        &domains, NULL);
  else
    failed = ((const struct tuner_v3 *)tuner)
                 ->init(is->ranks, is->hosts, log_to_stderr, &context[number]);
  if (failed) abort();
}

static float cost_of(uint32_t entry) { return 100.0f - (float)entry; }

static void ask(uint32_t number) {
  struct call *is = &call[number];
  float costs[ALGORITHMS * PROTOCOLS];
  uint32_t entries = is->algorithms * PROTOCOLS;
  for (uint32_t i = 0; i < ALGORITHMS * PROTOCOLS; i++)
    costs[i] = is->possible >> i & 1 ? cost_of(i) : -1.0f;
  int channels = 0, failed;
  void *who = context[is->communicator];
  if (version == 3)
    failed = ((const struct tuner_v3 *)tuner)
                 ->get_coll_info(who, (int)is->function, is->bytes, (int)is->pipe_ops,
                                 (float **)costs, (int)is->algorithms, PROTOCOLS,
                                 &channels);
  else
    failed = ((const struct tuner_v5 *)tuner)
                 ->get_coll_info(who, (int)is->function, is->bytes, (int)is->pipe_ops,
                                 (float **)costs, (int)is->algorithms, PROTOCOLS,
                                 (int)number & 1, &channels);
  if (failed) abort();
  struct answer *to = &answer[number];
  to->channels = channels;
  to->chosen = -1;
  for (uint32_t i = 0; i < ALGORITHMS * PROTOCOLS; i++) {
    float was = is->possible >> i & 1 ? cost_of(i) : -1.0f;
    if (costs[i] != was) to->changed |= 1u << i;
    if (i < entries && costs[i] >= 0 &&
        (to->chosen < 0 || costs[i] < costs[to->chosen]))
      to->chosen = (int32_t)i;
  }
}

static void ask_for_chunks(uint32_t number) {
  struct call *is = &call[number];
  struct answer *to = &answer[number];
  if (version < 6 || to->chosen < 0) return;
  const struct tuner_v6 *asked = tuner;
  if (!asked->get_chunk_size) return;
  uint64_t parts[3] = {is->bytes / 7, is->bytes / 3, is->bytes - is->bytes / 3};
  for (int part = 0; part < 3; part++) {
    size_t chunk = 12345;
    if (asked->get_chunk_size(context[is->communicator], (int)is->function,
                              parts[part], to->chosen / PROTOCOLS,
                              to->chosen % PROTOCOLS, 1, &chunk))
      abort();
    to->chunks[part] = (uint32_t)chunk;
  }
}

static void work_on(uint32_t communicator) {
  uint32_t first = NCCL_SUCCESS;
  int in_group = 0;
  for (uint32_t i = 0; i < calls; i++) {
    if (call[i].communicator != communicator) continue;
    if (!in_group) first = i;
    in_group = !call[i].ends_group;
    ask(i);
    if (in_group) continue;
    for (uint32_t j = first; j <= i; j++)
      if (call[j].communicator == communicator) ask_for_chunks(j);
  }
}

static void *work(void *argument) {
  uint32_t thread = *(uint32_t *)argument;
  for (uint32_t i = thread; i < shapes; i += (uint32_t)threads) {
    begin(i);
    work_on(i);
    if (version >= 5) ((const struct tuner_v5 *)tuner)->finalize(context[i]);
    else if (version == 4) ((const struct tuner_v4 *)tuner)->destroy(context[i]);
    else ((const struct tuner_v3 *)tuner)->destroy(context[i]);
  }
  return NULL;
}

static void *read_all(size_t size, size_t count) {
  void *rows = calloc(count ? count : 1, size);
  if (!rows || fread(rows, size, count, stdin) != count) abort();
  return rows;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  version = atoi(argv[2]);
  threads = atoi(argv[3]);
  char name[32];
  snprintf(name, sizeof name, "ncclTunerPlugin_v%d", version);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  tuner = library ? dlsym(library, name) : NULL;
  if (!tuner) {
    fprintf(stderr, "cannot load %s: %s\n", argv[1], dlerror());
    return 2;
  }
  uint32_t counts[2];
  if (fread(counts, sizeof counts, 1, stdin) != 1) return 2;
  shapes = counts[0];
  calls = counts[1];
  shape = read_all(sizeof *shape, shapes);
  call = read_all(sizeof *call, calls);
  answer = calloc(calls ? calls : 1, sizeof *answer);
  context = calloc(shapes ? shapes : 1, sizeof *context);
  pthread_t started[64];
  uint32_t numbers[64];
  for (uint32_t i = 0; i < (uint32_t)threads; i++) {
    numbers[i] = i;
    if (pthread_create(&started[i], NULL, work, &numbers[i])) abort();
  }
  for (int i = 0; i < threads; i++) pthread_join(started[i], NULL);
  fwrite(answer, sizeof *answer, calls, stdout);
  free(shape), free(call), free(answer), free(context);
  dlclose(library);
  return 0;
}
