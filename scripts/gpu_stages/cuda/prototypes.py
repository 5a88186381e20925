"""The C functions that are called, as their headers declare them.

This text is what the calls are made from, what the stand-ins are compiled against, and
what a test compiles beside the real headers: a wrong type is a compiler's error.
"""

from __future__ import annotations

from typing import Final

CUDART: Final = """
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute,
                                   int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMemset(void *pointer, int value, size_t bytes);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags,
                                         int priority);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start,
                                 cudaEvent_t end);
const char *cudaGetErrorString(cudaError_t error);
"""
DRIVER: Final = """
CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned int gridX, unsigned int gridY,
                        unsigned int gridZ, unsigned int blockX, unsigned int blockY,
                        unsigned int blockZ, unsigned int sharedBytes, CUstream stream,
                        void **parameters, void **extra);
CUresult cuGetErrorString(CUresult error, const char **text);
"""
CUBLAS: Final = """
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle);
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace,
                                     size_t bytes);
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transposeA,
                            cublasOperation_t transposeB, int m, int n, int k,
                            const void *alpha, const void *A, cudaDataType typeA,
                            int strideA, const void *B, cudaDataType typeB, int strideB,
                            const void *beta, void *C, cudaDataType typeC, int strideC,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
const char *cublasGetStatusString(cublasStatus_t status);
"""
NVRTC: Final = """
nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source,
                               const char *name, int headers,
                               const char *const *contents, const char *const *names);
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count,
                                const char *const *options);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *binary);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log);
const char *nvrtcGetErrorString(nvrtcResult result);
"""
NCCL: Final = """
ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int ranks,
                                    ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error);
ncclResult_t ncclCommAbort(ncclComm_t communicator);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count,
                           ncclDataType_t type, int root, ncclComm_t communicator,
                           cudaStream_t stream);
ncclResult_t ncclReduce(const void *send, void *receive, size_t count,
                        ncclDataType_t type, ncclRedOp_t operation, int root,
                        ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *send, void *receive, size_t count,
                           ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count,
                               ncclDataType_t type, ncclRedOp_t operation,
                               ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count,
                           ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t communicator, cudaStream_t stream);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t communicator);
"""
HEADERS: Final = {
    "cuda_runtime_api.h": CUDART,
    "cuda.h": DRIVER,
    "cublas_v2.h": CUBLAS,
    "nvrtc.h": NVRTC,
    "nccl.h": NCCL,
}
"""Which header declares which."""
VALUES: Final = {
    "cuda_runtime_api.h": {
        "cudaErrorNotReady": 600,
        "cudaStreamNonBlocking": 1,
        "cudaEventDisableTiming": 2,
        "cudaDevAttrMultiProcessorCount": 16,
        "cudaDevAttrComputeCapabilityMajor": 75,
        "cudaDevAttrComputeCapabilityMinor": 76,
    },
    "cublas_v2.h": {
        "CUBLAS_OP_N": 0,
        "CUDA_R_16BF": 14,
        "CUBLAS_COMPUTE_32F": 68,
        "CUBLAS_GEMM_DEFAULT": -1,
    },
    "nccl.h": {
        "NCCL_API_MAGIC": 0xCAFEBEEF,
        "NCCL_CONFIG_UNDEF_INT": -(2**31),
        "NCCL_UNIQUE_ID_BYTES": 128,
        "ncclFloat32": 7,
        "ncclSum": 0,
    },
}
"""What the headers call by a name."""


def value(name: str) -> int:
    """A number that the headers call by a name.

    Example:
        >>> value("cudaErrorNotReady")
        600
    """
    return next(values[name] for values in VALUES.values() if name in values)
