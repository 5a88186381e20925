/* A GPU with a virtual clock: streams, events, and what tasks do to each other. */
#ifndef STANDIN_GPU_H
#define STANDIN_GPU_H

#include <stdbool.h>
#include <stddef.h>

struct stream;
struct event;
struct collective;

/* What a kernel takes, alone. */
struct kernel {
  double seconds;
  double memory_share;
  double reuse;
  double tiles; /* 0 where memory limits it */
};

/* What a collective takes on the whole GPU, alone, all its ranks together. */
struct traffic {
  double seconds;
  double channels;
  double bytes_in_flight;
  double sent_bytes;
};

enum { GPU_SMS = 132 };
#define GPU_MEMORY_BYTES_PER_S 3.35232e12
#define GPU_FLOPS_PER_S 9.894e14
#define GPU_L2_BYTES 52428800.0

struct stream *gpu_stream(void);
struct event *gpu_event(void);
void gpu_forget(struct event *event);
void gpu_kernel(struct stream *stream, struct kernel kernel);
struct collective *gpu_collective(int parts, struct traffic traffic);
void gpu_part(struct stream *stream, struct collective *collective);
void gpu_record(struct stream *stream, struct event *event);
void gpu_hold(struct stream *stream, struct event *event);
bool gpu_happened(struct event *event);
double gpu_when(const struct event *event);

/* A number that a test may set by its name, or what it usually is. */
double standin_number(const char *name, double usual);

#endif
