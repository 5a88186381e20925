/* Threads that share a control page: generations change at fences, and only there.

   fence PLUGIN IMAGE IMAGE

   The images give all-gathers 3 and 5 channels; odd generations have the first. The
   page is written as lagom_jax/nccl_plugin/control.py writes it. */
#define _GNU_SOURCE
#include "nccl_abi.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 4, GENERATIONS = 60, CALLS = 200, SLOT = 1 << 16, FIRST_SLOT = 4096 };

static const struct tuner_v6 *tuner;
static pthread_barrier_t before, after;
static atomic_int wrong;

static int channels_of(void *context) {
  float costs[ALGORITHMS * PROTOCOLS];
  for (int i = 0; i < ALGORITHMS * PROTOCOLS; i++) costs[i] = 1.0f;
  int channels = 0;
  tuner->get_coll_info(context, 2, 4096, 1, (float **)costs, ALGORITHMS, PROTOCOLS, 0,
                       &channels);
  return channels;
}

static void *work(void *unused) {
  (void)unused;
  void *context;
  struct nvlink_domains domains = {1, 8, 8};
  tuner->init(&context, 1, 8, 1, NULL, &domains, NULL);
  for (int generation = 0; generation <= GENERATIONS; generation++) {
    if (generation) {
      pthread_barrier_wait(&before);
      pthread_barrier_wait(&after);
    }
    int expected = generation ? (generation % 2 ? 3 : 5) : 0;
    for (int call = 0; call < CALLS; call++)
      if (channels_of(context) != expected) atomic_fetch_add(&wrong, 1);
    /* A communicator that is made later has what holds by then. */
    void *late;
    tuner->init(&late, 2, 8, 1, NULL, &domains, NULL);
    if (channels_of(late) != expected) atomic_fetch_add(&wrong, 1);
    tuner->finalize(late);
  }
  tuner->finalize(context);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  int file = memfd_create("page", MFD_ALLOW_SEALING);
  if (file < 0 || ftruncate(file, FIRST_SLOT + 2 * SLOT)) return 2;
  if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK)) return 2;
  char *page = mmap(NULL, FIRST_SLOT + 2 * SLOT, PROT_READ | PROT_WRITE, MAP_SHARED,
                    file, 0);
  if (page == MAP_FAILED) return 2;
  uint32_t version = 1, owner = (uint32_t)getpid();
  uint64_t slot = SLOT;
  memcpy(page, "LAGOMCTL", 8);
  memcpy(page + 8, &version, 4);
  memcpy(page + 12, &owner, 4);
  memcpy(page + 16, &slot, 8);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  setenv("LAGOM_TUNER_CONTROL", path, 1);
  void *library = dlopen(argv[1], RTLD_NOW);
  tuner = library ? dlsym(library, "ncclTunerPlugin_v6") : NULL;
  if (!tuner) return 2;
  pthread_barrier_init(&before, NULL, THREADS + 1);
  pthread_barrier_init(&after, NULL, THREADS + 1);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&threads[i], NULL, work, NULL)) return 2;
  for (uint64_t generation = 1; generation <= GENERATIONS; generation++) {
    /* While the threads still call: the slot that no one looks at is written. */
    char *at = page + FIRST_SLOT + generation % 2 * SLOT;
    FILE *image = fopen(argv[generation % 2 ? 2 : 3], "rb");
    if (!image || !fread(at, 1, SLOT, image)) return 2;
    fclose(image);
    uint32_t checksum;
    memcpy(&checksum, at + 12, sizeof checksum);
    pthread_barrier_wait(&before);
    atomic_store((_Atomic uint64_t *)(void *)(page + 24), generation << 32 | checksum);
    pthread_barrier_wait(&after);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  printf("%d\n", atomic_load(&wrong));
  munmap(page, FIRST_SLOT + 2 * SLOT);
  dlclose(library);
  return 0;
}
