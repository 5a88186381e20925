"""The stages, in the order in which they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final, cast

from gpu_stages.stage import Outcome, Request

STAGES: Final = {
    "kernels": "how long kernels take alone, beside the model",
    "contention": "how much NCCL and kernels slow each other, beside the model",
    "obeyed": "whether NCCL does what the tuner plugin says, call by call",
    "schedule": "whether the schedule compiled without a GPU is the one compiled on it",
    "job": "training steps of several processes, tuned and not: losses, guard, times",
    "profile": "a calibration from the profile of a real step",
}
"""What each shows. A stage is the module of its name, with a function `run`."""


def function_of(stage: str) -> Callable[[Request], Outcome]:
    """What runs a stage."""
    module = importlib.import_module(f"gpu_stages.{stage}")
    return cast("Callable[[Request], Outcome]", module.run)
