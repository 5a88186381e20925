"""What takes the place of CUDA's libraries and of NCCL where there is no GPU."""
