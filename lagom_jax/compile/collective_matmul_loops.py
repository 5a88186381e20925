"""Loops of XLA's own collective matmul, which a compile without devices never makes.

XLA cuts a matmul over no more devices than an NVLink domain has. It asks the devices
how many these are, and takes 0 where there are none; see docs/how-to/slices.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from xla_flags import Pin

_MIB: Final = "xla_gpu_threshold_for_windowed_einsum_mib"
_BYTES: Final = "xla_gpu_operand_bytes_threshold_for_windowed_einsum"
_USUAL_MIB: Final = 100_000


def loops_unseen(pins: Iterable[Pin], partitions: int) -> Iterator[str]:
    """A note where the user has asked for loops that are not in the compiled step.

    Args:
        pins: The user's own settings.
        partitions: Devices that the step is cut over.

    Example:
        >>> from xla_flags import pinned_by_options
        >>> pins = pinned_by_options({"xla_gpu_threshold_for_windowed_einsum_mib": 0})
        >>> len([*loops_unseen(pins, 8)]), len([*loops_unseen(pins, 1)])
        (1, 0)
    """
    if partitions == 1:
        return
    for pin in pins:
        least = pin.value if isinstance(pin.value, int) else None
        if least is None:
            continue
        if (pin.name == _MIB and least < _USUAL_MIB) or (
            pin.name == _BYTES and least >= 0
        ):
            yield (
                f"{pin.name}={least} ({pin.where}): on GPUs XLA may cut matmuls left "
                "to its partitioner into loops; without devices it never does, so that "
                "this step has none and its figures are for another program"
            )
