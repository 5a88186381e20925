/* The types of CUDA's and NCCL's interfaces: the headers' own where they are, else ours,
   of the same size. */
#ifndef STANDIN_TYPES_H
#define STANDIN_TYPES_H

#ifdef WITH_HEADERS
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nvrtc.h>
#else
#include <stddef.h>

typedef int cudaError_t, CUresult, cublasStatus_t, nvrtcResult, ncclResult_t;
typedef int cublasOperation_t, cudaDataType, cublasComputeType_t, cublasGemmAlgo_t;
typedef int ncclDataType_t, ncclRedOp_t;
typedef struct CUstream_st *cudaStream_t, *CUstream;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct cublasContext *cublasHandle_t;
typedef struct _nvrtcProgram *nvrtcProgram;
typedef struct ncclComm *ncclComm_t;
typedef struct {
  char internal[128];
} ncclUniqueId;
typedef struct {
  size_t size;
  unsigned int magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare;
} ncclConfig_t;
enum cudaDeviceAttr { FIRST_ATTRIBUTE = 1 };
enum { cudaErrorNotReady = 600, cudaErrorUnknown = 999 };
enum { ncclInternalError = 3, ncclInvalidUsage = 5 };
#endif

#include "prototypes.h"

/* Whether a function was told to fail: STANDIN_FAILS has its name. */
int standin_fails(const char *function);

#endif
