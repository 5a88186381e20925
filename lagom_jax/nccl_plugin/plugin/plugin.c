/* What NCCL calls. Nothing here returns an error: NCCL would fail the collective.
   After init nothing allocates, locks, or asks the system for anything. */
#include "chain.h"
#include "common.h"
#include "places.h"
#include "source.h"

#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))

enum { LEAST_CHUNK = 16 << 10 };
static const uint32_t GRAIN[PROTOCOLS] = {16, 1920, 512};
static const uint32_t CEILING[PROTOCOLS] = {32768, 576000, 524288};
static const uint32_t RING_SIMPLE_CEILING = 2097152;

/* The chunk that was decided for the calls of one function in one group. */
struct chunk {
  uint64_t group;
  uint32_t bytes; /* 0: none, or the calls do not agree */
  int8_t algorithm; /* NO_RULE where none answered */
  int8_t protocol;
  bool clash;
};

struct communicator {
  struct communicator_facts facts;
  size_t domains;
  uint64_t active;
  struct rules rules;
  const struct scope *scope; /* NULL: nothing is known of this communicator */
  struct places places;
  struct chained chained;
  uint64_t group;
  bool scheduling; /* NCCL has begun to ask for the chunks of the group */
  struct chunk chunks[FUNCTIONS];
};

static void take_up(struct communicator *me, uint64_t active) {
  me->active = active;
  me->scope = NULL;
  if (source_rules(active, &me->rules, me->facts.log))
    me->scope =
        rules_scope(&me->rules, me->facts.ranks, me->facts.hosts, me->domains);
  places_begin(&me->places, me->scope);
}

static const struct setting *setting_for(struct communicator *me, uint32_t function,
                                         uint64_t bytes, uint32_t pipe_ops) {
  uint64_t active = source_active();
  if (active != me->active) take_up(me, active);
  if (!me->scope) return NULL;
  const struct setting *found = NULL;
  if (me->scope->window)
    found = places_step(&me->places, &me->rules, me->scope, function, bytes);
  if (!found)
    found = rules_by_size(&me->rules, me->scope, function, bytes, pipe_ops);
  return found;
}

/* False where NCCL has no such algorithm for the call. */
static bool force(const struct setting *setting, float **costs, int algorithms,
                  int protocols) {
  if (setting->algorithm < 0) return true;
  if (!costs || setting->algorithm >= algorithms || setting->protocol >= protocols)
    return false;
  /* Declared as rows, but the rows lie behind each other. */
  float *cost = (float *)(void *)costs + setting->algorithm * protocols +
                setting->protocol;
  if (!(*cost >= 0.0f)) return false;
  *cost = 0.0f;
  return true;
}

static void note_chunk(struct communicator *me, int function,
                       const struct setting *setting) {
  if (me->scheduling) {
    me->scheduling = false;
    me->group++;
  }
  struct chunk *chunk = &me->chunks[function];
  struct chunk now = {.group = me->group, .algorithm = NO_RULE};
  if (setting) {
    now.bytes = setting->chunk;
    now.algorithm = setting->algorithm;
    now.protocol = setting->protocol;
  }
  if (chunk->group == me->group)
    now.clash = chunk->clash || chunk->bytes != now.bytes ||
                chunk->algorithm != now.algorithm || chunk->protocol != now.protocol;
  *chunk = now;
}

/* From version 2.32 on NCCL asks about some calls twice: first for kernels of symmetric
   memory, with a table in which nothing can be chosen, and then for the call itself.
   What was answered to the first must not count as a call. */
static bool on_offer(float **costs, int algorithms, int protocols) {
  const float *cost = (const float *)(const void *)costs;
  if (!cost) return true;
  for (int i = 0; i < algorithms * protocols; i++)
    if (cost[i] >= 0.0f) return true;
  return false;
}

static void decide(struct communicator *me, int function, size_t bytes, int pipe_ops,
                   float **costs, int algorithms, int protocols, int registered,
                   int *channels) {
  if (!me) return;
  const struct setting *setting = NULL;
  if (function >= 0 && function < FUNCTIONS &&
      on_offer(costs, algorithms, protocols)) {
    setting = setting_for(me, (uint32_t)function, bytes, (uint32_t)pipe_ops);
    if (setting && !force(setting, costs, algorithms, protocols)) setting = NULL;
    note_chunk(me, function, setting);
  }
  if (setting) {
    if (setting->channels && channels)
      *channels = (int)source_channels_allowed(setting->channels);
  } else if (me->chained.version) {
    chain_get_coll_info(&me->chained, function, bytes, pipe_ops, costs, algorithms,
                        protocols, registered, channels);
  }
}

static uint32_t possible_chunk(uint32_t chunk, int algorithm, int protocol) {
  uint32_t grain = GRAIN[protocol];
  uint32_t most = algorithm == RING && protocol == SIMPLE ? RING_SIMPLE_CEILING
                                                          : CEILING[protocol];
  uint32_t least = (LEAST_CHUNK + grain - 1) / grain * grain;
  chunk = chunk / grain * grain;
  if (chunk < least) chunk = least;
  return chunk > most ? most : chunk;
}

static int get_chunk_size(void *context, int function, size_t bytes, int algorithm,
                          int protocol, int channels, size_t *size) {
  struct communicator *me = context;
  if (!me || !size) return NCCL_SUCCESS;
  me->scheduling = true;
  const struct chunk *chunk = NULL;
  if (function >= 0 && function < FUNCTIONS) chunk = &me->chunks[function];
  bool known = chunk && chunk->group == me->group && !chunk->clash;
  if (!known) return NCCL_SUCCESS;
  if (chunk->algorithm == NO_RULE) {
    chain_get_chunk_size(&me->chained, function, bytes, algorithm, protocol, channels,
                         size);
    return NCCL_SUCCESS;
  }
  bool chosen = chunk->algorithm < 0 ||
                (chunk->algorithm == algorithm && chunk->protocol == protocol);
  if (chunk->bytes && chosen && protocol >= 0 && protocol < PROTOCOLS) {
    size_t wanted = possible_chunk(chunk->bytes, algorithm, protocol);
    /* These stage through slots of their own, whose size NCCL does not hold against an
       answer: no more than it has chosen itself is safe. */
    bool in_slots = algorithm == NVLS || algorithm == NVLS_TREE;
    if (!in_slots || wanted < *size) *size = wanted;
  }
  return NCCL_SUCCESS;
}

static int begin(void **context, int version, const struct communicator_facts *facts) {
  *context = NULL;
  source_open(facts->log);
  struct communicator *me = calloc(1, sizeof *me);
  if (!me) return NCCL_SUCCESS;
  me->facts = *facts;
  me->group = 1;
  /* NCCL counts one domain for each of its nodes, so an older one means the same. */
  me->domains = facts->hosts;
  if (facts->domains && facts->domains->domains > 0)
    me->domains = (size_t)facts->domains->domains;
  take_up(me, source_active());
  chain_init(&me->chained, version, facts);
  /* NCCL's own, which may be gone after this call. */
  me->facts.domains = NULL;
  me->facts.constants = NULL;
  *context = me;
  SAY(facts->log, LOG_INFO, "%zu ranks on %zu hosts in %zu domains: %s", facts->ranks,
      facts->hosts, me->domains, me->scope ? "there are rules" : "no rules for it");
  return NCCL_SUCCESS;
}

static int init_old(int version, size_t ranks, size_t hosts, logger log,
                    void **context) {
  struct communicator_facts facts = {.ranks = ranks, .hosts = hosts, .log = log};
  return begin(context, version, &facts);
}

static int init_v3(size_t ranks, size_t hosts, logger log, void **context) {
  return init_old(3, ranks, hosts, log, context);
}

static int init_v4(size_t ranks, size_t hosts, logger log, void **context) {
  return init_old(4, ranks, hosts, log, context);
}

static int init_new(int version, void **context, uint64_t id, size_t ranks,
                    size_t hosts, logger log, struct nvlink_domains *domains,
                    struct model_constants *constants) {
  struct communicator_facts facts = {id, ranks, hosts, log, domains, constants};
  return begin(context, version, &facts);
}

static int init_v5(void **context, uint64_t id, size_t ranks, size_t hosts, logger log,
                   struct nvlink_domains *domains, struct model_constants *constants) {
  return init_new(5, context, id, ranks, hosts, log, domains, constants);
}

static int init_v6(void **context, uint64_t id, size_t ranks, size_t hosts, logger log,
                   struct nvlink_domains *domains, struct model_constants *constants) {
  return init_new(6, context, id, ranks, hosts, log, domains, constants);
}

static int get_coll_info_v3(void *context, int function, size_t bytes, int pipe_ops,
                            float **costs, int algorithms, int protocols,
                            int *channels) {
  decide(context, function, bytes, pipe_ops, costs, algorithms, protocols, 0, channels);
  return NCCL_SUCCESS;
}

static int get_coll_info(void *context, int function, size_t bytes, int pipe_ops,
                         float **costs, int algorithms, int protocols, int registered,
                         int *channels) {
  decide(context, function, bytes, pipe_ops, costs, algorithms, protocols, registered,
         channels);
  return NCCL_SUCCESS;
}

static int end(void *context) {
  struct communicator *me = context;
  if (me) chain_finalize(&me->chained);
  free(me);
  return NCCL_SUCCESS;
}

static const char NAME[] = "lagom";

EXPORTED const struct tuner_v3 ncclTunerPlugin_v3 = {NAME, init_v3, get_coll_info_v3,
                                                     end};
EXPORTED const struct tuner_v4 ncclTunerPlugin_v4 = {NAME, init_v4, get_coll_info, end};
EXPORTED const struct tuner_v5 ncclTunerPlugin_v5 = {NAME, init_v5, get_coll_info, end};
EXPORTED const struct tuner_v6 ncclTunerPlugin_v6 = {NAME, init_v6, get_coll_info, end,
                                                     get_chunk_size};
