#define _GNU_SOURCE
#include "source.h"

#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char MAGIC[8] = "LAGOMCTL";
enum { CONTROL_VERSION = 1, FIRST_SLOT = 4096, SLOTS = 2 };
static const off_t LARGEST_FILE = 256 << 20;

struct control {
  char magic[8];
  uint32_t version;
  uint32_t owner;
  uint64_t slot_size;
  _Atomic uint64_t active; /* a generation, and below it its rules' checksum */
};

_Static_assert(sizeof(struct control) == 32, "the format says 32 bytes");

static struct once opening;

/* The file's copy, or the control page. Never unmapped: threads may be in a call when
   the process ends. */
static void *memory;
static const struct control *control;
static struct rules fixed;
static bool fixed_holds;
static _Atomic uint64_t sound, damaged; /* values that were checked last */
static uint32_t fewest_channels = 1, most_channels = MOST_CHANNELS;

static void *copy_of_file(int file, size_t size) {
  void *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                    0);
  if (copy == MAP_FAILED) return NULL;
  for (size_t have = 0; have < size;) {
    ssize_t more = read(file, (char *)copy + have, size - have);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) {
      munmap(copy, size);
      return NULL;
    }
    have += (size_t)more;
  }
  return copy;
}

static int opened(const char *path, size_t *size) {
  /* In a child that inherited the variable, the path may lead to a pipe: do not wait. */
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat found;
  if (file >= 0 && (fstat(file, &found) || !S_ISREG(found.st_mode) ||
                    found.st_size <= 0 || found.st_size > LARGEST_FILE)) {
    close(file);
    return -1;
  }
  if (file >= 0) *size = (size_t)found.st_size;
  return file;
}

/* A copy, not a mapping: a file that is cut short under a mapping ends the process. */
static void open_rules(const char *path, logger log) {
  size_t size;
  int file = opened(path, &size);
  if (file < 0) {
    SAY(log, LOG_WARN, "cannot read the rules %s: NCCL's own choices stand", path);
    return;
  }
  memory = copy_of_file(file, size);
  close(file);
  const char *why = "it cannot be read";
  if (memory) {
    fixed_holds = rules_open(&fixed, memory, size, &why);
  }
  if (fixed_holds)
    SAY(log, LOG_INFO, "rules %s with checksum %08x hold", path, fixed.checksum);
  else
    SAY(log, LOG_WARN, "ignoring the rules %s: %s; NCCL's own choices stand", path, why);
}

static const char *control_fault(int file, size_t size, const struct control *page) {
  if (size < FIRST_SLOT || memcmp(page->magic, MAGIC, sizeof MAGIC))
    return "it is no control page";
  if (page->version != CONTROL_VERSION) return "another lagom_jax made it";
  if (page->owner != (uint32_t)getpid()) return "another process made it";
  if (page->slot_size % 8 || page->slot_size > (size - FIRST_SLOT) / SLOTS)
    return "it is cut short";
  int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK)) return "it could be cut short";
  return NULL;
}

static void open_control(const char *path, logger log) {
  size_t size = 0;
  int file = opened(path, &size);
  const char *why = "it cannot be read";
  void *page = MAP_FAILED;
  if (file >= 0) page = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) {
    why = control_fault(file, size, page);
    if (why) munmap(page, size);
  }
  if (file >= 0) close(file);
  if (why) {
    SAY(log, LOG_WARN, "ignoring the control page %s: %s; NCCL's own choices stand",
        path, why);
    return;
  }
  memory = page;
  control = page;
  SAY(log, LOG_INFO, "rules hold as the control page %s says", path);
}

static void limit(const char *name, bool least, logger log) {
  const char *text = getenv(name);
  if (!text || !*text) return;
  char *end;
  long value = strtol(text, &end, 0);
  if (*end || value < 1) return;
  uint32_t channels = value > MOST_CHANNELS ? MOST_CHANNELS : (uint32_t)value;
  if (least && channels > fewest_channels) fewest_channels = channels;
  if (!least && channels < most_channels) most_channels = channels;
  SAY(log, LOG_INFO, "%s=%s is set: no rule goes beyond it", name, text);
}

static void read_users_choices(logger log) {
  static const char *const forbids[] = {"NCCL_ALGO", "NCCL_PROTO"};
  for (size_t i = 0; i < sizeof forbids / sizeof *forbids; i++) {
    const char *text = getenv(forbids[i]);
    if (text && *text)
      SAY(log, LOG_INFO, "%s=%s is set: rules for what it forbids have no effect",
          forbids[i], text);
  }
  limit("NCCL_MIN_NCHANNELS", true, log);
  limit("NCCL_MIN_CTAS", true, log);
  limit("NCCL_MAX_NCHANNELS", false, log);
  limit("NCCL_MAX_CTAS", false, log);
}

static void open_all(logger log) {
  rules_prepare();
  const char *page = getenv("LAGOM_TUNER_CONTROL"), *file = getenv("LAGOM_TUNER_RULES");
  if (page && *page) {
    open_control(page, log);
    if (file && *file)
      SAY(log, LOG_WARN, "LAGOM_TUNER_CONTROL is set, so LAGOM_TUNER_RULES=%s is not "
          "read", file);
  } else if (file && *file) {
    open_rules(file, log);
  } else {
    SAY(log, LOG_INFO, "neither LAGOM_TUNER_RULES nor LAGOM_TUNER_CONTROL is set");
  }
  read_users_choices(log);
}

void source_open(logger log) { once(&opening, open_all, log); }

uint64_t source_active(void) {
  if (control) return atomic_load_explicit(&control->active, memory_order_acquire);
  return fixed_holds ? UINT64_C(1) << 32 | fixed.checksum : 0;
}

static uint32_t generation_of(uint64_t active) { return (uint32_t)(active >> 32); }

static const char *slot_of(uint64_t active) {
  uint64_t slot = generation_of(active) % SLOTS;
  return (const char *)control + FIRST_SLOT + slot * control->slot_size;
}

static bool open_slot(uint64_t active, struct rules *rules, const char **why) {
  size_t size = (size_t)control->slot_size;
  uint64_t length;
  *why = "its slot is too small";
  if (size < 64) return false;
  memcpy(&length, slot_of(active) + 16, sizeof length); /* where an image says it */
  if (length > size) return false;
  if (!rules_open(rules, slot_of(active), (size_t)length, why)) return false;
  *why = "other rules are in its slot";
  return rules->checksum == (uint32_t)active;
}

bool source_rules(uint64_t active, struct rules *rules, logger log) {
  if (!active || atomic_load(&damaged) == active) return false;
  if (!control) {
    *rules = fixed;
    return true;
  }
  if (atomic_load(&sound) == active) {
    rules_view(rules, slot_of(active));
    return true;
  }
  const char *why;
  if (open_slot(active, rules, &why)) {
    if (atomic_exchange(&sound, active) != active)
      SAY(log, LOG_INFO, "generation %u with checksum %08x holds",
          generation_of(active), (uint32_t)active);
    return true;
  }
  if (atomic_exchange(&damaged, active) != active)
    SAY(log, LOG_WARN, "ignoring generation %u: %s; NCCL's own choices stand",
        generation_of(active), why);
  return false;
}

uint32_t source_channels_allowed(uint32_t channels) {
  /* Where the two contradict each other, NCCL takes the least. */
  if (channels > most_channels) channels = most_channels;
  return channels < fewest_channels ? fewest_channels : channels;
}
