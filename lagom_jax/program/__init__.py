"""The schedule: a program of kernels, launches, waits and loops."""
