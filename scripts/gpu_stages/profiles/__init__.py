"""Profiles of real steps: recording them, and what the model says of the same step."""
