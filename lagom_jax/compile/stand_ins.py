"""Stand-ins for kernels that are registered elsewhere: names for the compiler.

XLA compiles a call to a function only if something is registered under its name, and
looks no further. Where nothing will be executed any function will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from lagom_jax.compile import _jaxlib

# A function of jax that does nothing at all.
_KERNEL: Final = "dce_sink"
# Names that mean something to the compiler itself, which replaces the call.
_OF_THE_COMPILER: Final = re.compile(
    r"Sharding|SPMD\w+|CustomSPMDPartitioning|annotate_device_placement|Pin|Unpin"
    r"|AllocateBuffer|CreateBuffer|LayoutConstraint|MoveTo\w+|ShardBarrier\w+|TopK"
    r"|InspectSharding|PadToStatic|SliceToDynamic|SetBound|ResizeNearest|ResizeBilinear"
    r"|__\w+\$.*|xla\..*|mhlo\..*|stablehlo\..*|chlo\..*|shape_assertion|tpu_custom_call"
)
_LACKING: Final = re.compile(
    r"No registered implementation for (untyped )?custom call to (\S+) for"
)


def needing(targets: Iterable[str]) -> tuple[str, ...]:
    """Those of the called functions that the compiler will not know.

    Args:
        targets: Names of custom calls.

    Example:
        >>> needing(["Sharding", "__cudnn$fmhaSoftmax", "te_layernorm_forward_ffi"])
        ('te_layernorm_forward_ffi',)
    """
    return tuple(name for name in targets if not _OF_THE_COMPILER.fullmatch(name))


def lacking(message: str) -> tuple[str, bool] | None:
    """The function that the compiler misses, and whether its call has typed arguments.

    Example:
        >>> said = "No registered implementation for untyped custom call to f for CUDA"
        >>> lacking(said)
        ('f', False)
        >>> lacking("RESOURCE_EXHAUSTED") is None
        True
    """
    found = _LACKING.search(message)
    return None if found is None else (found[2].strip("'\"`"), found[1] is None)


class StandIns:
    """The functions that are registered in a compiling process."""

    def __init__(self) -> None:
        """None are, but those of jax."""
        self._typed = set[str]()
        self._untyped = set[str]()

    def register(self, targets: Iterable[str], *, typed: bool = True) -> bool:
        """Registers stand-ins for functions that have none.

        Args:
            targets: Names of custom calls.
            typed: Whether calls have typed arguments, as those of the FFI do.

        Returns:
            True if there was one to register.
        """
        handlers: dict[str, Any] = _jaxlib.cuda_handlers()
        registered = self._typed if typed else self._untyped
        missing = [
            name
            for name in dict.fromkeys(targets)
            if name not in registered and not (typed and name in handlers)
        ]
        for name in missing:
            _jaxlib.register_for_cuda(name, handlers[_KERNEL], typed=typed)
            registered.add(name)
        return bool(missing)
