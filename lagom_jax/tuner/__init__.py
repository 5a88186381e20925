"""What NCCL's tuner plugin is told, and the plugin itself."""
