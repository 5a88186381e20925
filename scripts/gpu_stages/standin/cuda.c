/* The CUDA runtime, its driver, cuBLAS and NVRTC, as far as the stages call them. */
#include "gpu.h"
#include "types.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 128, BF16 = 2, COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76, SM_COUNT = 16 };
#define LAUNCH_SECONDS 3e-6
#define ARITHMETIC_SHARE 0.75
#define MEMORY_SHARE 0.9
#define FAILED 999

int standin_fails(const char *function) {
  const char *name = getenv("STANDIN_FAILS");
  return name && !strcmp(name, function);
}

#define CHECKED \
  if (standin_fails(__func__)) return FAILED

cudaError_t cudaGetDeviceCount(int *count) {
  CHECKED;
  *count = 1;
  return 0;
}

cudaError_t cudaSetDevice(int device) { return device ? FAILED : 0; }

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute,
                                   int device) {
  (void)device;
  int asked = (int)attribute;
  *value = asked == SM_COUNT ? GPU_SMS : asked == COMPUTE_MAJOR ? 9 : 0;
  return asked == SM_COUNT || asked == COMPUTE_MAJOR || asked == COMPUTE_MINOR
             ? 0
             : FAILED;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}

/* Addresses that nothing lies at: no one reads what a GPU would have. */
cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  CHECKED;
  static uintptr_t next = 1 << 20;
  *pointer = (void *)next;
  next += (bytes + 511) / 512 * 512;
  return 0;
}

cudaError_t cudaFree(void *pointer) { return pointer ? 0 : FAILED; }

cudaError_t cudaMemset(void *pointer, int value, size_t bytes) {
  (void)value, (void)bytes;
  return pointer ? 0 : FAILED;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags,
                                         int priority) {
  (void)flags, (void)priority;
  *stream = (cudaStream_t)(void *)gpu_stream();
  return 0;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags) {
  (void)flags;
  gpu_hold((struct stream *)(void *)stream, (struct event *)(void *)event);
  return 0;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
  (void)flags;
  *event = (cudaEvent_t)(void *)gpu_event();
  return 0;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  gpu_forget((struct event *)(void *)event);
  return 0;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  gpu_record((struct stream *)(void *)stream, (struct event *)(void *)event);
  return 0;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  CHECKED;
  return gpu_happened((struct event *)(void *)event) ? 0 : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start,
                                 cudaEvent_t end) {
  double seconds = gpu_when((struct event *)(void *)end) -
                   gpu_when((struct event *)(void *)start);
  *milliseconds = (float)(seconds * 1e3);
  return 0;
}

const char *cudaGetErrorString(cudaError_t error) {
  return error ? "told to fail" : "no error";
}

CUresult cuInit(unsigned int flags) { return flags ? FAILED : 0; }

CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  CHECKED;
  *module = (CUmodule)(void *)(uintptr_t)image;
  return 0;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)(void *)module;
  return strcmp(name, "triad") ? FAILED : 0;
}

/* The triad is the only kernel: its last argument says how many vectors of four. */
CUresult cuLaunchKernel(CUfunction function, unsigned int gridX, unsigned int gridY,
                        unsigned int gridZ, unsigned int blockX, unsigned int blockY,
                        unsigned int blockZ, unsigned int sharedBytes, CUstream stream,
                        void **parameters, void **extra) {
  (void)function, (void)gridX, (void)gridY, (void)gridZ, (void)blockX, (void)blockY;
  (void)blockZ, (void)sharedBytes, (void)extra;
  CHECKED;
  double bytes = 48.0 * (double)*(size_t *)parameters[4];
  double ideal = bytes / GPU_MEMORY_BYTES_PER_S;
  double seconds = LAUNCH_SECONDS + ideal / MEMORY_SHARE;
  gpu_kernel((struct stream *)(void *)stream,
             (struct kernel){.seconds = seconds, .memory_share = ideal / seconds});
  return 0;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error ? "told to fail" : "no error";
  return 0;
}

static cudaStream_t stream_of_blas;

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
  CHECKED;
  *handle = (cublasHandle_t)(void *)&stream_of_blas;
  return 0;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  *(cudaStream_t *)(void *)handle = stream;
  return 0;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace,
                                     size_t bytes) {
  (void)handle, (void)bytes;
  return workspace ? 0 : FAILED;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transposeA,
                            cublasOperation_t transposeB, int m, int n, int k,
                            const void *alpha, const void *A, cudaDataType typeA,
                            int strideA, const void *B, cudaDataType typeB, int strideB,
                            const void *beta, void *C, cudaDataType typeC, int strideC,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  (void)transposeA, (void)transposeB, (void)alpha, (void)A, (void)typeA, (void)strideA;
  (void)B, (void)typeB, (void)strideB, (void)beta, (void)C, (void)typeC, (void)strideC;
  (void)compute, (void)algorithm;
  CHECKED;
  double down = ceil((double)m / TILE), across = ceil((double)n / TILE);
  double bytes = BF16 * ((double)m * k + (double)k * n + (double)m * n);
  double by_tiles = BF16 * (double)k * (m * across + n * down);
  double rounds = ceil(down * across / GPU_SMS);
  double arithmetic = rounds * GPU_SMS * 2.0 * TILE * TILE * k /
                      (GPU_FLOPS_PER_S * ARITHMETIC_SHARE);
  double memory = bytes / (GPU_MEMORY_BYTES_PER_S * MEMORY_SHARE);
  struct kernel kernel = {.seconds = LAUNCH_SECONDS + fmax(arithmetic, memory),
                          .reuse = fmax(0, by_tiles / bytes - 1),
                          .tiles = arithmetic > memory ? down * across : 0};
  kernel.memory_share =
      fmin(1, bytes / (GPU_MEMORY_BYTES_PER_S * kernel.seconds));
  gpu_kernel(*(struct stream **)(void *)handle, kernel);
  return 0;
}

const char *cublasGetStatusString(cublasStatus_t status) {
  return status ? "told to fail" : "no error";
}

static const char BINARY[] = "the triad, compiled";

nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source,
                               const char *name, int headers,
                               const char *const *contents, const char *const *names) {
  (void)name, (void)headers, (void)contents, (void)names;
  *program = (nvrtcProgram)(void *)(uintptr_t)source;
  return 0;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count,
                                const char *const *options) {
  CHECKED;
  (void)program;
  return count == 1 && !strcmp(options[0], "--gpu-architecture=sm_90") ? 0 : FAILED;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes) {
  (void)program;
  *bytes = sizeof BINARY;
  return 0;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *binary) {
  (void)program;
  memcpy(binary, BINARY, sizeof BINARY);
  return 0;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes) {
  (void)program;
  *bytes = sizeof "told to fail";
  return 0;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log) {
  (void)program;
  strcpy(log, "told to fail");
  return 0;
}

const char *nvrtcGetErrorString(nvrtcResult result) {
  return result ? "told to fail" : "no error";
}
