"""CUDA, cuBLAS, NVRTC and NCCL, called from Python: as much as the stages need."""
