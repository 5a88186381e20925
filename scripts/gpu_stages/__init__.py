"""What `scripts/gpu_check.py` runs, a module for each stage, and what they share."""
