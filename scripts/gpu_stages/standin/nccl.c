/* NCCL, as far as the stages call it. It asks the tuner plugin as NCCL does, does what
   it says, and writes what it did as NCCL writes it. */
#define _GNU_SOURCE
#include "gpu.h"
#include "nccl_abi.h"
#include "types.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 16, FIRST_V5 = 22800, FIRST_V6 = 23000, WITH_CLUSTERS = 23200 };
enum { TREE = 0 };
enum { BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE };
#define LEAST_TRAFFIC (32 << 10)
#define NOT_OFFERED (-1.0f)
#define CHANNEL_BYTES_PER_S 14e9
#define ALL_BYTES_PER_S 9e11
#define STEP_SECONDS 4e-6

static const char *const FUNCTION[] = {"Broadcast", "Reduce", "AllGather",
                                       "ReduceScatter", "AllReduce"};
static const char *const TITLE[] = {"Tree", "Ring", "CollNetDirect", "CollNetChain",
                                    "NVLS", "NVLSTree", "PAT"};
static const char *const ALGORITHM[] = {"TREE", "RING", "COLLNET_DIRECT",
                                        "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
static const char *const PROTOCOL[] = {"LL", "LL128", "SIMPLE"};
static const size_t GRAIN[] = {16, 1920, 512};

/* One communicator: its ranks that are in this process. */
struct world {
  char id[128];
  int ranks, hosts, here;
  struct ncclComm *member[MOST_RANKS];
  struct world *next;
};

struct call {
  int function;
  size_t bytes; /* of a rank's part */
  struct stream *stream;
};

struct ncclComm {
  struct world *world;
  int rank, channels;
  bool connected, waits;
  void *tuner;
  struct call call;
};

struct decision {
  int algorithm, protocol, channels, used;
  size_t chunk;
};

static struct world *worlds;
static _Thread_local int depth;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct tuner_v6 *plugin;
static bool has_chunks;
static char last_error[256];

static int version(void) { return (int)standin_number("STANDIN_NCCL", 23203); }

static ncclResult_t refuse(ncclResult_t result, const char *why) {
  snprintf(last_error, sizeof last_error, "%s", why);
  return result;
}

static void write_line(const char *format, ...) {
  static FILE *file;
  const char *level = getenv("NCCL_DEBUG"), *about = getenv("NCCL_DEBUG_SUBSYS");
  const char *name = getenv("NCCL_DEBUG_FILE");
  if (!level || strcmp(level, "INFO") || !about || !strstr(about, "TUNING") || !name)
    return;
  if (!file && (file = fopen(name, "w"))) setlinebuf(file);
  if (!file) return;
  fprintf(file, "standin:%d:%d [0] NCCL INFO ", getpid(), gettid());
  va_list words;
  va_start(words, format);
  vfprintf(file, format, words);
  va_end(words);
  fputc('\n', file);
}

__attribute__((format(printf, 5, 6))) static void log_of_plugin(
    int level, unsigned long about, const char *file, int line, const char *format,
    ...) {
  (void)level, (void)about, (void)file, (void)line;
  char text[1024];
  va_list words;
  va_start(words, format);
  vsnprintf(text, sizeof text, format, words);
  va_end(words);
  write_line("%s", text);
}

/* As on a GPU without a switch: nothing that only NVLink or a network can do. */
static bool offered(const struct world *world, int function, int algorithm,
                    int protocol) {
  bool parted = function == ALL_GATHER || function == REDUCE_SCATTER;
  if (algorithm == RING) return true;
  if (algorithm == TREE) return function == ALL_REDUCE;
  return algorithm == ALGORITHMS - 1 && parted && protocol == SIMPLE &&
         world->hosts == world->ranks;
}

static void write_table(const struct world *world, int channels) {
  write_line("%d coll channels, %d collnet channels, 0 nvls channels, %d p2p channels",
             channels, channels, channels);
  for (int first = 0; first < ALGORITHMS; first += 3) {
    int after = first + 3 < ALGORITHMS ? first + 3 : ALGORITHMS;
    char line[1024];
    int at = snprintf(line, sizeof line, "  Algorithm   |");
    for (int a = first; a < after; a++)
      at += snprintf(line + at, sizeof line - (size_t)at, " %14s   %14s   %14s |", "",
                     TITLE[a], "");
    write_line("%s", line);
    for (int f = 0; f < FUNCTIONS; f++) {
      at = snprintf(line, sizeof line, "%13s |", FUNCTION[f]);
      for (int a = first; a < after; a++)
        for (int p = 0; p < PROTOCOLS; p++)
          at += snprintf(line + at, sizeof line - (size_t)at, "%8.1f/%6.1f |", 5.0,
                         offered(world, f, a, p) ? 24.0 : 0.0);
      write_line("%s", line);
    }
  }
}

static void load_plugin(void) {
  const char *path = getenv("NCCL_TUNER_PLUGIN");
  if (plugin || !path) return;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  has_chunks = version() >= FIRST_V6;
  if (version() >= FIRST_V5)
    plugin = dlsym(library, has_chunks ? "ncclTunerPlugin_v6" : "ncclTunerPlugin_v5");
}

ncclResult_t ncclGetVersion(int *number) {
  *number = version();
  return 0;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  static int count;
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "%d of %d", ++count, getpid());
  return 0;
}

static struct world *world_of(const ncclUniqueId *id, int ranks) {
  struct world *world = worlds;
  while (world && memcmp(world->id, id->internal, sizeof world->id))
    world = world->next;
  if (world) return world;
  world = calloc(1, sizeof *world);
  if (!world) abort();
  memcpy(world->id, id->internal, sizeof world->id);
  world->ranks = ranks;
  world->hosts = getenv("NCCL_HOSTID") ? ranks : 1;
  world->next = worlds;
  return worlds = world;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int ranks,
                                    ncclUniqueId id, int rank, ncclConfig_t *config) {
  if (standin_fails(__func__)) return refuse(ncclInternalError, "told to fail");
  pthread_mutex_lock(&lock);
  struct world *world = world_of(&id, ranks);
  const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  bool may_share = version() >= FIRST_V6 && shared && !strcmp(shared, "1");
  ncclResult_t result = 0;
  if (world->here && !may_share) {
    result = refuse(ncclInvalidUsage, "Duplicate GPU detected");
  } else {
    load_plugin();
    struct ncclComm *made = calloc(1, sizeof *made);
    if (!made) abort();
    made->world = world;
    made->rank = rank;
    made->channels = config->maxCTAs;
    struct nvlink_domains domains = {world->hosts, ranks / world->hosts,
                                     ranks / world->hosts};
    if (plugin)
      plugin->init(&made->tuner, 1, (size_t)ranks, (size_t)world->hosts, log_of_plugin,
                   &domains, NULL);
    if (rank == 0) write_table(world, made->channels);
    world->member[world->here++] = made;
    *communicator = made;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error) {
  *error = 0;
  return communicator ? 0 : ncclInternalError;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  return communicator ? 0 : ncclInternalError;
}

ncclResult_t ncclGroupStart(void) {
  depth++;
  return 0;
}

static size_t divided(size_t number, size_t by) { return (number + by - 1) / by; }

/* How many channels a call is dealt out to, in cells that are worth a channel. */
static int dealt(const struct ncclComm *me, struct decision is) {
  size_t per_byte = me->call.function == ALL_REDUCE ? 2 : 1;
  if (me->call.function == ALL_GATHER || me->call.function == REDUCE_SCATTER)
    per_byte = (size_t)me->world->ranks;
  if (is.protocol == LL) per_byte *= 4;
  size_t traffic = me->call.bytes * per_byte;
  if (traffic < LEAST_TRAFFIC) traffic = LEAST_TRAFFIC;
  size_t cell = divided(divided(LEAST_TRAFFIC, per_byte), 16) * 16;
  size_t cells = divided(me->call.bytes, cell);
  size_t share = divided(traffic / (size_t)is.channels, 16) * 16;
  size_t of_channel = divided(share, cell * per_byte);
  if (of_channel > cells) of_channel = cells;
  return (int)divided(cells, of_channel);
}

static size_t buffer_chunk(int function, int algorithm, int protocol) {
  if (protocol == LL) return 32768;
  if (protocol == LL128) return 576000;
  size_t step = (size_t)standin_number("NCCL_BUFFSIZE", 4194304) / 8;
  return algorithm == RING && function >= ALL_GATHER ? 4 * step : step;
}

static bool disobeys(int function) {
  const char *name = getenv("STANDIN_DISOBEYS");
  return name && !strcmp(name, FUNCTION[function]);
}

static struct decision decide(struct ncclComm *me) {
  float costs[ALGORITHMS][PROTOCOLS];
  int function = me->call.function, channels = 0;
  for (int a = 0; a < ALGORITHMS; a++)
    for (int p = 0; p < PROTOCOLS; p++)
      costs[a][p] = offered(me->world, function, a, p) ? 30.0f - (float)(a + p)
                                                       : NOT_OFFERED;
  bool parted = function == ALL_GATHER || function == REDUCE_SCATTER;
  size_t bytes = me->call.bytes * (parted ? (size_t)me->world->ranks : 1);
  if (plugin && !disobeys(function))
    plugin->get_coll_info(me->tuner, function, bytes, 1, (float **)(void *)costs,
                          ALGORITHMS, PROTOCOLS, 0, &channels);
  struct decision is = {.algorithm = RING, .protocol = SIMPLE};
  float least = INFINITY;
  for (int a = 0; a < ALGORITHMS; a++)
    for (int p = 0; p < PROTOCOLS; p++)
      if (costs[a][p] >= 0 && costs[a][p] < least) {
        least = costs[a][p];
        is.algorithm = a;
        is.protocol = p;
      }
  is.channels = channels ? channels : 8;
  if (is.channels > me->channels) is.channels = me->channels;
  is.used = dealt(me, is);
  size_t most = buffer_chunk(function, is.algorithm, is.protocol);
  is.chunk = most;
  if (plugin && has_chunks && plugin->get_chunk_size && !disobeys(function))
    plugin->get_chunk_size(me->tuner, function, bytes, is.algorithm, is.protocol, 1,
                           &is.chunk);
  if (is.chunk > most) {
    write_line("%s: tuner chunk size %zu exceeds buffer max %zu, clamping",
               FUNCTION[function], is.chunk, most);
    is.chunk = most;
  }
  is.chunk = is.chunk / GRAIN[is.protocol] * GRAIN[is.protocol];
  if (me->rank == 0)
    write_line("%s: %ld Bytes -> Algo %s proto %s channel{Lo..Hi}={%d..%d}%s",
               FUNCTION[function], (long)me->call.bytes, ALGORITHM[is.algorithm],
               PROTOCOL[is.protocol], 0, is.used - 1,
               version() >= WITH_CLUSTERS ? " cgaClusterSize 4" : "");
  return is;
}

static struct traffic traffic_of(const struct ncclComm *me, struct decision is) {
  static const double EFFICIENCY[] = {0.25, 0.9, 1.0};
  double ranks = me->world->ranks, bytes = (double)me->call.bytes;
  double sent = bytes;
  if (me->call.function == ALL_GATHER || me->call.function == REDUCE_SCATTER)
    sent = bytes * (ranks - 1);
  if (me->call.function == ALL_REDUCE) sent = 2 * bytes * (ranks - 1) / ranks;
  double chunk = (double)is.chunk;
  double rate = is.used * CHANNEL_BYTES_PER_S * EFFICIENCY[is.protocol] * chunk /
                (chunk + 65536);
  rate = fmin(rate, ALL_BYTES_PER_S / ranks);
  return (struct traffic){.seconds = STEP_SECONDS * ranks + sent / rate,
                          .channels = is.used * ranks,
                          .bytes_in_flight = is.used * chunk * ranks,
                          .sent_bytes = sent * ranks};
}

static void enqueue(struct world *world) {
  int parts = 0;
  struct decision first = {0};
  struct ncclComm *waiting[MOST_RANKS];
  for (int i = 0; i < world->here; i++) {
    struct ncclComm *me = world->member[i];
    if (!me->waits) continue;
    struct decision is = decide(me);
    if (parts && (is.algorithm != first.algorithm || is.used != first.used)) abort();
    first = is;
    waiting[parts++] = me;
    me->waits = false;
  }
  if (!parts) return;
  struct collective *collective =
      gpu_collective(parts, traffic_of(waiting[0], first));
  for (int i = 0; i < parts; i++) gpu_part(waiting[i]->call.stream, collective);
}

ncclResult_t ncclGroupEnd(void) {
  if (standin_fails(__func__)) return refuse(ncclInternalError, "told to fail");
  if (--depth) return 0;
  pthread_mutex_lock(&lock);
  for (struct world *world = worlds; world; world = world->next) enqueue(world);
  pthread_mutex_unlock(&lock);
  return 0;
}

static ncclResult_t add(ncclComm_t me, int function, size_t count,
                        cudaStream_t stream) {
  if (!depth || me->waits) return refuse(ncclInvalidUsage, "one call in a group");
  me->waits = true;
  me->call = (struct call){function, count * sizeof(float), (void *)stream};
  return 0;
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count,
                           ncclDataType_t type, int root, ncclComm_t communicator,
                           cudaStream_t stream) {
  (void)send, (void)receive, (void)type, (void)root;
  return add(communicator, BROADCAST, count, stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count,
                        ncclDataType_t type, ncclRedOp_t operation, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  (void)send, (void)receive, (void)type, (void)operation, (void)root;
  return add(communicator, REDUCE, count, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count,
                           ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
  (void)send, (void)receive, (void)type;
  return add(communicator, ALL_GATHER, count, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count,
                               ncclDataType_t type, ncclRedOp_t operation,
                               ncclComm_t communicator, cudaStream_t stream) {
  (void)send, (void)receive, (void)type, (void)operation;
  return add(communicator, REDUCE_SCATTER, count, stream);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count,
                           ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t communicator, cudaStream_t stream) {
  (void)send, (void)receive, (void)type, (void)operation;
  return add(communicator, ALL_REDUCE, count, stream);
}

const char *ncclGetErrorString(ncclResult_t result) {
  return result == 0                  ? "no error"
         : result == ncclInvalidUsage ? "invalid usage"
                                      : "internal error";
}

const char *ncclGetLastError(ncclComm_t communicator) {
  (void)communicator;
  return last_error;
}
