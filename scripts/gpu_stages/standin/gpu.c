#include "gpu.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

/* What the host takes for a call, and for asking whether an event has been. */
#define CALL_SECONDS 4e-6
#define ASK_SECONDS 100e-6
#define LEAST_LEFT 0.05

enum kind { KERNEL, PART, RECORD, HOLD };

struct collective {
  int parts, arrived, left_to_pop;
  bool hangs;
  double left; /* of its seconds */
  struct traffic traffic;
};

struct event {
  int pending;
  double when;
};

struct task {
  enum kind kind;
  bool arrived;
  double left;
  struct kernel kernel;
  struct collective *collective;
  struct event *event;
  struct task *next;
};

struct stream {
  struct task *first, *last;
  struct stream *next;
};

static struct stream *streams;
static double now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

double standin_number(const char *name, double usual) {
  const char *text = getenv(name);
  return text ? atof(text) : usual;
}

/* A hundredth up and down, the same in every run. */
static double jitter(void) {
  static unsigned state = 1;
  state = state * 1664525u + 1013904223u;
  return 1.0 + 0.01 * ((double)(state >> 16) / 32768.0 - 1.0);
}

static void *made(size_t size) {
  void *memory = calloc(1, size);
  if (!memory) abort();
  return memory;
}

static void drop_first(struct stream *stream) {
  struct task *task = stream->first;
  stream->first = task->next;
  if (!stream->first) stream->last = NULL;
  free(task);
}

/* What takes no time, as far as it can be done now. */
static void settle(void) {
  for (bool changed = true; changed;) {
    changed = false;
    for (struct stream *s = streams; s; s = s->next) {
      struct task *task = s->first;
      if (!task) continue;
      if (task->kind == RECORD) {
        task->event->pending--;
        task->event->when = now;
      } else if (task->kind == HOLD) {
        if (task->event->pending) continue;
      } else if (task->kind == PART) {
        if (!task->arrived) task->collective->arrived++;
        task->arrived = true;
        if (task->collective->left > 0) continue;
        if (!--task->collective->left_to_pop) free(task->collective);
      } else if (task->left > 0) {
        continue;
      }
      drop_first(s);
      changed = true;
    }
  }
}

static bool flies(const struct task *task) {
  return task && task->kind == PART &&
         task->collective->arrived == task->collective->parts &&
         !task->collective->hangs;
}

/* Of all collectives that fly; each counts once, with its first part. */
static struct traffic all_traffic(struct collective **flying, int *count) {
  struct traffic sum = {0};
  *count = 0;
  for (struct stream *s = streams; s; s = s->next) {
    if (!flies(s->first)) continue;
    struct collective *one = s->first->collective;
    bool known = false;
    for (int i = 0; i < *count; i++) known = known || flying[i] == one;
    if (known || *count == 64) continue;
    flying[(*count)++] = one;
    sum.channels += one->traffic.channels;
    sum.bytes_in_flight += one->traffic.bytes_in_flight;
    sum.sent_bytes += one->traffic.sent_bytes / one->traffic.seconds;
  }
  return sum;
}

static double memory_demand(struct traffic traffic) {
  double passes = standin_number("STANDIN_PASSES", 2.0);
  return passes * traffic.sent_bytes / GPU_MEMORY_BYTES_PER_S;
}

static double slowdown(struct kernel kernel, struct traffic beside) {
  if (beside.channels <= 0) return 1.0;
  double sms = GPU_SMS, left = sms - fmin(beside.channels, sms - 1), by_sms;
  if (kernel.tiles <= 0)
    by_sms = standin_number("STANDIN_SATURATING", 0.6) * sms / left;
  else if (standin_number("STANDIN_PERSISTENT", 1) > 0)
    by_sms = ceil(kernel.tiles / left) / ceil(kernel.tiles / sms);
  else
    by_sms = fmin(kernel.tiles, sms) / left;
  double overflow = fmin(1, fmax(0, beside.bytes_in_flight / GPU_L2_BYTES - 1));
  double again = standin_number("STANDIN_EVICTION", 0.05) * overflow * kernel.reuse;
  double stretched = (1 + again) / fmax(LEAST_LEFT, 1 - memory_demand(beside));
  return fmax(1, by_sms) * (1 + kernel.memory_share * (stretched - 1));
}

static void advance(double until) {
  for (;;) {
    settle();
    struct collective *flying[64];
    int count;
    struct traffic traffic = all_traffic(flying, &count);
    double demand = memory_demand(traffic), step = until - now;
    for (struct stream *s = streams; s; s = s->next)
      if (s->first && s->first->kind == KERNEL)
        demand += s->first->kernel.memory_share;
    double others = fmax(1, demand);
    for (int i = 0; i < count; i++) step = fmin(step, flying[i]->left * others);
    for (struct stream *s = streams; s; s = s->next)
      if (s->first && s->first->kind == KERNEL)
        step = fmin(step, s->first->left * slowdown(s->first->kernel, traffic));
    for (struct stream *s = streams; s; s = s->next)
      if (s->first && s->first->kind == KERNEL) {
        s->first->left -= step / slowdown(s->first->kernel, traffic);
        if (s->first->left < 1e-12) s->first->left = 0;
      }
    for (int i = 0; i < count; i++) {
      flying[i]->left -= step / others;
      if (flying[i]->left < 1e-12) flying[i]->left = 0;
    }
    now += step;
    if (now >= until) break;
  }
  settle();
}

static struct task *push(struct stream *stream, enum kind kind) {
  advance(now + CALL_SECONDS);
  struct task *task = made(sizeof *task);
  task->kind = kind;
  if (stream->last)
    stream->last->next = task;
  else
    stream->first = task;
  stream->last = task;
  return task;
}

struct stream *gpu_stream(void) {
  struct stream *stream = made(sizeof *stream);
  pthread_mutex_lock(&lock);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  return stream;
}

struct event *gpu_event(void) { return made(sizeof(struct event)); }

void gpu_forget(struct event *event) { free(event); }

void gpu_kernel(struct stream *stream, struct kernel kernel) {
  pthread_mutex_lock(&lock);
  struct task *task = push(stream, KERNEL);
  task->kernel = kernel;
  task->left = kernel.seconds * jitter();
  pthread_mutex_unlock(&lock);
}

struct collective *gpu_collective(int parts, struct traffic traffic) {
  struct collective *collective = made(sizeof *collective);
  collective->parts = collective->left_to_pop = parts;
  collective->traffic = traffic;
  collective->left = traffic.seconds * jitter();
  /* From which of all collectives on none ends. */
  static int count;
  collective->hangs = ++count >= standin_number("STANDIN_HANGS", INFINITY);
  return collective;
}

void gpu_part(struct stream *stream, struct collective *collective) {
  pthread_mutex_lock(&lock);
  push(stream, PART)->collective = collective;
  pthread_mutex_unlock(&lock);
}

void gpu_record(struct stream *stream, struct event *event) {
  pthread_mutex_lock(&lock);
  push(stream, RECORD)->event = event;
  event->pending++;
  pthread_mutex_unlock(&lock);
}

void gpu_hold(struct stream *stream, struct event *event) {
  pthread_mutex_lock(&lock);
  push(stream, HOLD)->event = event;
  pthread_mutex_unlock(&lock);
}

bool gpu_happened(struct event *event) {
  pthread_mutex_lock(&lock);
  advance(now + ASK_SECONDS);
  bool happened = !event->pending;
  pthread_mutex_unlock(&lock);
  return happened;
}

double gpu_when(const struct event *event) { return event->when; }
