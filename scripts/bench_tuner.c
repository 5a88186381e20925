/* Times the decisions of a tuner plugin: bench_tuner PLUGIN ROUNDS < calls

   Reads counts of ranks, domains and calls, then the calls; writes a line for each
   round through all calls: nanoseconds per call with the plugin, and with a function
   that does nothing. Before each call its table of costs is made anew. */
#include "nccl_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct call {
  uint64_t bytes;
  uint32_t function;
  uint32_t zero;
};

static struct call *call;
static uint32_t calls;
static volatile float sink;

typedef int (*ask)(void *, int, size_t, int, float **, int, int, int, int *);

static int ask_nobody(void *context, int function, size_t bytes, int pipe_ops,
                      float **costs, int algorithms, int protocols, int registered,
                      int *channels) {
  (void)context, (void)function, (void)bytes, (void)pipe_ops, (void)costs;
  (void)algorithms, (void)protocols, (void)registered, (void)channels;
  return 0;
}

static double round_of(ask volatile get_coll_info, void *context) {
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  for (uint32_t i = 0; i < calls; i++) {
    float costs[ALGORITHMS * PROTOCOLS];
    for (int entry = 0; entry < ALGORITHMS * PROTOCOLS; entry++) costs[entry] = 1.0f;
    int channels = 0;
    get_coll_info(context, (int)call[i].function, call[i].bytes, 1, (float **)costs,
                  ALGORITHMS, PROTOCOLS, 0, &channels);
    sink = costs[RING * PROTOCOLS + SIMPLE] + (float)channels;
  }
  clock_gettime(CLOCK_MONOTONIC, &after);
  double seconds = (double)(after.tv_sec - before.tv_sec);
  return (seconds * 1e9 + (double)(after.tv_nsec - before.tv_nsec)) / calls;
}

int main(int argc, char **argv) {
  uint32_t counts[3];
  if (argc != 3 || fread(counts, sizeof counts, 1, stdin) != 1) return 2;
  calls = counts[2];
  call = calloc(calls, sizeof *call);
  if (!call || fread(call, sizeof *call, calls, stdin) != calls) return 2;
  void *library = dlopen(argv[1], RTLD_NOW);
  const struct tuner_v6 *tuner = library ? dlsym(library, "ncclTunerPlugin_v6") : NULL;
  if (!tuner) return 2;
  struct nvlink_domains domains = {(int)counts[1], 1, 1};
  void *context;
  tuner->init(&context, 1, counts[0], counts[1], NULL, &domains, NULL);
  round_of(tuner->get_coll_info, context);
  for (int i = atoi(argv[2]); i > 0; i--) {
    double without = round_of(ask_nobody, NULL);
    printf("%.3f %.3f\n", round_of(tuner->get_coll_info, context), without);
  }
  tuner->finalize(context);
  return 0;
}
