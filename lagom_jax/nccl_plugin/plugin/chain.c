#define _GNU_SOURCE
#include "chain.h"

#include "common.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { OLDEST = 3, NEWEST = 6, MOST_COSTS = 64 };

static struct once loading;
static void *library;
static const void *tuners[NEWEST + 1]; /* by version */

static bool find_tuners(void *from) {
  static const char *const names[NEWEST + 1] = {
      [3] = "ncclTunerPlugin_v3",
      [4] = "ncclTunerPlugin_v4",
      [5] = "ncclTunerPlugin_v5",
      [6] = "ncclTunerPlugin_v6",
  };
  bool any = false;
  for (int version = OLDEST; version <= NEWEST; version++) {
    tuners[version] = dlsym(from, names[version]);
    any = any || tuners[version];
  }
  return any;
}

static bool is_ourselves(void *from) {
  Dl_info theirs, ours;
  const void *tuner = dlsym(from, "ncclTunerPlugin_v6");
  return tuner && dladdr(tuner, &theirs) && dladdr((void *)&loading, &ours) &&
         theirs.dli_fbase == ours.dli_fbase;
}

/* NCCL loads one tuner. Without our being named it would have been this one. */
static void mention_replaced(logger log) {
  static const char usual[] = "libnccl-tuner.so";
  void *other = dlopen(usual, RTLD_LAZY | RTLD_LOCAL);
  if (!other) return;
  if (!is_ourselves(other))
    SAY(log, LOG_WARN, "%s is installed too and is not asked; LAGOM_TUNER_CHAIN=%s asks "
        "it for calls without a rule, LAGOM_TUNER_CHAIN=none is silent", usual, usual);
  dlclose(other);
}

static void load(logger log) {
  const char *path = getenv("LAGOM_TUNER_CHAIN");
  if (!path || !*path) {
    mention_replaced(log);
    return;
  }
  if (!strcasecmp(path, "none")) return;
  void *other = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!other && !strchr(path, '/')) {
    /* NCCL finds tuners by a part of their name, too. */
    char name[256];
    int length = snprintf(name, sizeof name, "libnccl-tuner-%s.so", path);
    if (length > 0 && (size_t)length < sizeof name)
      other = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (!other) {
    SAY(log, LOG_WARN, "cannot load the tuner LAGOM_TUNER_CHAIN=%s: %s", path,
        dlerror());
  } else if (is_ourselves(other)) {
    SAY(log, LOG_WARN, "LAGOM_TUNER_CHAIN=%s is this plugin itself", path);
    dlclose(other);
  } else if (!find_tuners(other)) {
    SAY(log, LOG_WARN, "LAGOM_TUNER_CHAIN=%s has no tuner of versions 3 to 6", path);
    dlclose(other);
  } else {
    library = other;
    SAY(log, LOG_INFO, "%s is asked for calls without a rule", path);
  }
}

void chain_init(struct chained *chained, int version,
                const struct communicator_facts *facts) {
  once(&loading, load, facts->log);
  chained->version = 0;
  chained->context = NULL;
  if (!library) return;
  while (version >= OLDEST && !tuners[version]) version--;
  int failed = 1;
  if (version >= 5) {
    /* Version 6 begins like version 5. */
    const struct tuner_v5 *tuner = tuners[version];
    failed = tuner->init(&chained->context, facts->id, facts->ranks, facts->hosts,
                         facts->log, facts->domains, facts->constants);
  } else if (version >= OLDEST) {
    /* Version 4 begins like version 3. */
    const struct tuner_v3 *tuner = tuners[version];
    failed = tuner->init(facts->ranks, facts->hosts, facts->log, &chained->context);
  }
  if (failed)
    SAY(facts->log, LOG_WARN,
        "the tuner of LAGOM_TUNER_CHAIN did not start for this communicator");
  else
    chained->version = version;
}

void chain_get_coll_info(const struct chained *chained, int function, size_t bytes,
                         int pipe_ops, float **costs, int algorithms, int protocols,
                         int registered, int *channels) {
  /* What it leaves behind when it fails must not count. */
  float before[MOST_COSTS];
  size_t count = (size_t)algorithms * (size_t)protocols;
  int channels_before = channels ? *channels : 0;
  if (!costs || algorithms < 0 || protocols < 0 || count > MOST_COSTS) return;
  memcpy(before, costs, count * sizeof *before);
  const void *tuner = tuners[chained->version];
  int failed =
      chained->version == 3
          ? ((const struct tuner_v3 *)tuner)
                ->get_coll_info(chained->context, function, bytes, pipe_ops, costs,
                                algorithms, protocols, channels)
          : chained->version == 4
                ? ((const struct tuner_v4 *)tuner)
                      ->get_coll_info(chained->context, function, bytes, pipe_ops,
                                      costs, algorithms, protocols, registered,
                                      channels)
                : ((const struct tuner_v5 *)tuner)
                      ->get_coll_info(chained->context, function, bytes, pipe_ops,
                                      costs, algorithms, protocols, registered,
                                      channels);
  if (!failed) return;
  memcpy(costs, before, count * sizeof *before);
  if (channels) *channels = channels_before;
}

void chain_get_chunk_size(const struct chained *chained, int function, size_t bytes,
                          int algorithm, int protocol, int channels, size_t *chunk) {
  if (chained->version < 6) return;
  const struct tuner_v6 *tuner = tuners[6];
  if (!tuner->get_chunk_size) return;
  size_t asked = *chunk;
  if (tuner->get_chunk_size(chained->context, function, bytes, algorithm, protocol,
                            channels, &asked) == NCCL_SUCCESS)
    *chunk = asked;
}

void chain_finalize(struct chained *chained) {
  if (chained->version >= 5)
    ((const struct tuner_v5 *)tuners[chained->version])->finalize(chained->context);
  else if (chained->version == 4)
    ((const struct tuner_v4 *)tuners[4])->destroy(chained->context);
  else if (chained->version == 3)
    ((const struct tuner_v3 *)tuners[3])->destroy(chained->context);
  chained->version = 0;
}

__attribute__((destructor)) static void unload(void) {
  if (library) dlclose(library);
}
