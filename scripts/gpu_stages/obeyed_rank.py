"""One rank of several, each a process of its own that NCCL takes for a host.

    python -m gpu_stages.obeyed_rank FOLDER RANK

The folder is below that of the stage, whose `request.json` says what is asked. The
first rank writes `verdicts.json`, again after each generation of rules.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Final

from gpu_stages import gpu as gpus
from gpu_stages.gpu import Gpu, Libraries, Ranks
from gpu_stages.obeyed_calls import BUFFER_BYTES, GENERATIONS, verdicts
from gpu_stages.stage import Request
from gpu_stages.steering import RANKS, Steering, as_host
from lagom_jax.files import write_whole
from lagom_jax.tuner.control import Agree

MOST_BYTES: Final = 1 << 22
"""Of a call. The kernels of two processes take turns on a GPU, and every message waits
for some of them."""
_CHANNELS: Final = 8
_POLL_SECONDS: Final = 0.002


def main(folder: Path, rank: int) -> None:
    asked = json.loads((folder.parent / "request.json").read_text())
    nccl = asked["nccl"] and Path(asked["nccl"])
    request = Request(**{**asked, "folder": folder, "nccl": nccl})
    steering = Steering(
        folder / f"nccl-{rank}.log",
        as_host(rank) | {"NCCL_BUFFSIZE": str(BUFFER_BYTES)},
        agree_in(folder, rank, request.patience),
    )
    libraries = Libraries.load(request)
    gpu = Gpu(libraries, request.patience)
    name = folder / "communicator"
    if rank == 0:
        write_whole(name, gpus.new_unique_id(libraries))
    _appears(name, request.patience)
    ranks = Ranks(
        gpu,
        name.read_bytes(),
        RANKS,
        [rank],
        channels=_CHANNELS,
        most_bytes=MOST_BYTES,
    )
    found: list[dict[str, object]] = []
    try:
        for some in verdicts(gpu, ranks, steering, MOST_BYTES, GENERATIONS):
            found += map(dataclasses.asdict, some)
            if rank == 0:
                write_whole(folder / "verdicts.json", json.dumps(found).encode())
    finally:
        ranks.abort()


def agree_in(folder: Path, rank: int, patience: float) -> Agree:
    """Agreement of processes by files.

    Args:
        folder: Of the files.
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

    def agree(point: str, state: str) -> bool:
        def place(one: int) -> Path:
            return folder / f"{point.replace(' ', '-')}-{one}"

        write_whole(place(rank), state.encode())
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
