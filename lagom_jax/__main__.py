"""`python -m lagom_jax` is `lagom`."""

from lagom_jax.cli import entry_point

if __name__ == "__main__":
    entry_point()
