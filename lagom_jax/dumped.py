"""A step from a program that was written down before it was compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lagom_jax.hlo import read_module
from lagom_jax.hlo.files import HloBytes

if TYPE_CHECKING:
    from lagom_jax.compile import LoweredStep


def step_in(found: HloBytes) -> LoweredStep | None:
    """The step in a file, where it is not compiled yet.

    Args:
        found: HLO from before the optimisations, StableHLO, a file of `jax.export`, or
            a scheduled program, as `lagom_jax.hlo.files.read_program` read it.

    Returns:
        The step, to be compiled like any other; None for a scheduled program.

    Raises:
        StepError: The program cannot be compiled again.

    Example:
        >>> text = b"module @jit_f { func.func @main() { return } }"
        >>> step_in(HloBytes(text, "f.mlir", "stablehlo")).name
        'f'
    """
    if found.scheduled:
        return None
    # Here and not above: a scheduled dump is read without jax.
    from lagom_jax.compile import from_module

    if found.form == "stablehlo":
        return from_module.lowered_from_stablehlo(found.module)
    if found.form == "export":
        return from_module.lowered_from_export(found.module)
    devices = read_module(found.module).devices
    facts = from_module.HloFacts.of(found.header) if found.header else None
    return from_module.lowered_from_hlo(found.module, devices, facts)
