"""Stand-ins for a dry run: as much of CuPy and nccl4py as the stages call."""
