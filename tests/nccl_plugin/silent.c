/* After init the plugin allocates nothing and asks the operating system for nothing,
   not even when the rules change: silent PLUGIN IMAGE

   Allocations are counted, and the system kills whoever asks it for anything but to
   read, write and end. */
#define _GNU_SOURCE
#include "nccl_abi.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLOT = 1 << 16, FIRST_SLOT = 4096, HEAP = 1 << 22 };

static _Alignas(16) char heap[HEAP];
static size_t taken;
static unsigned allocations;

void *malloc(size_t size) {
  allocations++;
  char *memory = heap + taken;
  memcpy(memory, &size, sizeof size);
  taken += (size + 31) / 16 * 16;
  return taken <= HEAP ? memory + 16 : NULL;
}

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void free(void *memory) { (void)memory; }

void *realloc(void *memory, size_t size) {
  void *moved = malloc(size);
  size_t had = 0;
  if (memory) memcpy(&had, (char *)memory - 16, sizeof had);
  if (moved && memory) memcpy(moved, memory, had < size ? had : size);
  return moved;
}

static int asked(const struct tuner_v6 *tuner, void *context) {
  int sum = 0;
  for (int function = 0; function < FUNCTIONS; function++)
    for (size_t bytes = 1; bytes && bytes < (size_t)1 << 40; bytes *= 3) {
      float costs[ALGORITHMS * PROTOCOLS];
      for (int i = 0; i < ALGORITHMS * PROTOCOLS; i++) costs[i] = 1.0f;
      int channels = 0;
      size_t chunk = 524288;
      tuner->get_coll_info(context, function, bytes, 1, (float **)costs, ALGORITHMS,
                           PROTOCOLS, 0, &channels);
      tuner->get_chunk_size(context, function, bytes, RING, SIMPLE, 1, &chunk);
      sum += channels;
    }
  return sum;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  int file = memfd_create("page", MFD_ALLOW_SEALING);
  if (file < 0 || ftruncate(file, FIRST_SLOT + 2 * SLOT)) return 2;
  if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK)) return 2;
  char *page = mmap(NULL, FIRST_SLOT + 2 * SLOT, PROT_READ | PROT_WRITE, MAP_SHARED,
                    file, 0);
  int image = open(argv[2], O_RDONLY);
  if (page == MAP_FAILED || image < 0) return 2;
  if (read(image, page + FIRST_SLOT + SLOT, SLOT) <= 0) return 2;
  uint32_t version = 1, owner = (uint32_t)getpid(), checksum;
  uint64_t slot = SLOT;
  memcpy(page, "LAGOMCTL", 8);
  memcpy(page + 8, &version, 4);
  memcpy(page + 12, &owner, 4);
  memcpy(page + 16, &slot, 8);
  memcpy(&checksum, page + FIRST_SLOT + SLOT + 12, 4);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  setenv("LAGOM_TUNER_CONTROL", path, 1);
  void *library = dlopen(argv[1], RTLD_NOW);
  const struct tuner_v6 *tuner = library ? dlsym(library, "ncclTunerPlugin_v6") : NULL;
  if (!tuner) return 2;
  void *context;
  struct nvlink_domains domains = {1, 8, 8};
  tuner->init(&context, 1, 8, 1, NULL, &domains, NULL);
  unsigned before = allocations;
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return 77;
  int untouched = asked(tuner, context);
  atomic_store((_Atomic uint64_t *)(void *)(page + 24), UINT64_C(1) << 32 | checksum);
  int told = asked(tuner, context);
  char verdict[] = "silent\n";
  int good = before && allocations == before && !untouched && told;
  if (good && write(1, verdict, sizeof verdict - 1) < 0) good = 0;
  syscall(SYS_exit, good ? 0 : 1);
  return 1;
}
