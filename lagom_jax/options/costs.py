"""Our prices as a profile for XLA's latency-hiding scheduler.

XLA's scheduler weighs collectives against kernels with estimates of its own. The
compiler option `fdo_profile` replaces them, instruction by instruction: it is meant for
times that were measured, and takes times that were predicted just as well.
"""

from __future__ import annotations

from lagom_jax.cost.timeline import Timeline

_SECONDS_TO_US = 1e6


def cost_profile(timeline: Timeline) -> str:
    """The text of `fdo_profile` for the program that was replayed.

    The times are those of the tasks alone: XLA decides what will lie beside what, so
    the present neighbours must not be in them.

    Args:
        timeline: A replay of a program that was read from a module.

    Returns:
        One line for each kernel and each collective; empty for a program without.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.model import CostModel
        >>> from lagom_jax.cost.replay import replay
        >>> from lagom_jax.hlo.work import Work
        >>> from lagom_jax.program.program import Kernel, Program, Run
        >>> copy = Kernel("copy.1", Work("copy", 0.0, 3_000_000, 3_000_000))
        >>> model = CostModel.of(Cluster.parse("h100:1x1"))
        >>> cost_profile(replay(Program("p", (Run(copy),), 1), model)).split('"')[1]
        'copy.1'
    """
    costs: dict[str, float] = {}
    for task, figures in timeline.tasks.items():
        if figures.executions and figures.alone_seconds > 0.0:
            instruction = task.instruction
            name = task.name if instruction is None else instruction.name
            # Several tasks may stand behind one instruction: a call, an async-start.
            each = figures.alone_seconds / figures.executions
            costs[name] = costs.get(name, 0.0) + each
    return "\n".join(
        f'costs {{ name: "{name}" cost_us: {_SECONDS_TO_US * seconds:.3f} }}'
        for name, seconds in costs.items()
    )
