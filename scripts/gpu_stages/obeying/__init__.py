"""Whether NCCL does what the tuner plugin says."""
