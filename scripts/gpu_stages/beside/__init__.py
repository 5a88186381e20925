"""Kernels and collectives on one GPU at a time: what they do to each other."""
