"""Writes images for a fuzzer to begin with: python -m tests.nccl_plugin.seeds FOLDER."""

import random
import sys
from pathlib import Path

from lagom_jax.nccl_plugin.image import pack

from .hosted import random_rules


def write_seeds(folder: Path) -> list[Path]:
    """Some with sequences, some without; the first byte has the checksum made right."""
    folder.mkdir(exist_ok=True)
    paths = []
    for number, count in enumerate((0, 5, 10, 40, 40, 80, 1000)):
        rules, _, _ = random_rules(random.Random(number), count, places=number % 2 == 0)
        paths.append(folder / f"seed{number}")
        paths[-1].write_bytes(b"\x01" + pack(rules))
    return paths


if __name__ == "__main__":
    write_seeds(Path(sys.argv[1]))
