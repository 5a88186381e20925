"""When things run: a program of kernels, launches, waits and loops."""
