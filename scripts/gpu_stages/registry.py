"""The stages, in the order in which they run."""

from __future__ import annotations

from typing import Final

STAGES: Final = {
    "kernels": "how long kernels take alone, beside the model",
    "contention": "how much NCCL and kernels slow each other, beside the model",
    "obeyed": "whether NCCL does what the tuner plugin says, call by call",
    "schedule": "whether the schedule compiled without a GPU is the one compiled on it",
    "job": "training steps of several processes, tuned and not: losses, guard, times",
    "profile": "a calibration from the profile of a real step",
}
"""What each shows."""


def module_of(stage: str) -> str:
    """The module that has a function `run`, from a `Request` to an `Outcome`.

    Example:
        >>> module_of("kernels")
        'gpu_stages.kernels'
    """
    return f"gpu_stages.{stage}"
