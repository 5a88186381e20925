"""One rank of several, each a process of its own that NCCL takes for a host of its own.

    python -m gpu_stages.obeying.rank FOLDER RANK

The folder has `ranks.json`, what all of them are told. What becomes of the calls is
written by the first rank to `verdicts.json`, again after each generation of rules.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Final

from gpu_stages.cuda import nccl
from gpu_stages.cuda.libraries import Places, load
from gpu_stages.cuda.nccl import Ranks
from gpu_stages.cuda.runtime import Gpu
from gpu_stages.nccl_sharing import OVER_LOOPBACK, as_host
from gpu_stages.obeying.asked import BUFFER_BYTES
from gpu_stages.obeying.asking import ask
from gpu_stages.steering import RANKS, Steering
from lagom_jax.files import write_whole
from lagom_jax.tuner.control import Agree

MOST_BYTES: Final = 1 << 22
"""Of a call. The kernels of two processes take turns on a GPU, and every message waits
for some of them."""
_CHANNELS: Final = 8
_POLL_SECONDS: Final = 0.002


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What all ranks are told."""

    places: dict[str, str]
    """Where the libraries are, as in `Places`."""
    patience: float
    takes_chunks: bool


def main(folder: Path, rank: int) -> None:
    told = Told(**json.loads((folder / "ranks.json").read_text()))
    steering = Steering(
        folder / f"nccl-{rank}.log",
        as_host(rank) | OVER_LOOPBACK | {"NCCL_BUFFSIZE": str(BUFFER_BYTES)},
        agree_in(folder, rank, told.patience),
    )
    libraries = load(Places(**told.places))
    gpu = Gpu(libraries, told.patience)
    name = folder / "communicator"
    if rank == 0:
        write_whole(name, nccl.unique_id(libraries.nccl))
    _appears(name, told.patience)
    ranks = Ranks(
        gpu,
        name.read_bytes(),
        RANKS,
        [rank],
        channels=_CHANNELS,
        most_bytes=MOST_BYTES,
        patience=told.patience,
    )
    verdicts = []
    try:
        for some in ask(
            gpu,
            ranks,
            steering,
            most_bytes=MOST_BYTES,
            takes_chunks=told.takes_chunks,
        ):
            verdicts += map(dataclasses.asdict, some)
            if rank == 0:
                write_whole(folder / "verdicts.json", json.dumps(verdicts).encode())
    finally:
        ranks.abort()


def agree_in(folder: Path, rank: int, patience: float) -> Agree:
    """Lets processes agree by files.

    Args:
        folder: Where they are.
        rank: Of this process.
        patience: Seconds that the others may take.

    Example:
        >>> import tempfile, threading
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     other = agree_in(Path(folder), 1, 5.0)
        ...     thread = threading.Thread(target=other, args=("start", "yes"))
        ...     thread.start()
        ...     agree_in(Path(folder), 0, 5.0)("start", "yes")
        ...     thread.join()
        True
    """

    def agree(point: str, said: str) -> bool:
        def place(one: int) -> Path:
            return folder / f"{point.replace(' ', '-')}-{one}"

        write_whole(place(rank), said.encode())
        for other in range(RANKS):
            _appears(place(other), patience)
        return len({place(other).read_text() for other in range(RANKS)}) == 1

    return agree


def _appears(path: Path, patience: float) -> None:
    end = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"no {path.name} after {patience:.0f} s")
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
