"""Branches decided once, for all settings.

Which arm runs the program decides, not NCCL: a step is planned for the arm that takes
longest as things are. Decided anew under every setting, a slower collective could make
a step look shorter, because another arm became the longest.
"""

from __future__ import annotations

import dataclasses

from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import Machine
from lagom_jax.program.program import Block, Branch, Loop, Node, Program


def decided(program: Program, prices: Prices) -> Program:
    """The program with every branch replaced by the arm that takes longest.

    Args:
        program: The step.
        prices: What its tasks cost as things are.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.model import CostModel
        >>> from lagom_jax.hlo.work import Work
        >>> from lagom_jax.program.program import Kernel, Run
        >>> a, b = (Run(Kernel(str(n), Work("copy", 0.0, 1 << n, 1))) for n in (20, 30))
        >>> step = Program("p", (Branch("either", ((a,), (b,))),), 1)
        >>> decided(step, CostModel.of(Cluster.parse("h100:1x1"))).body == (b,)
        True
    """
    return dataclasses.replace(program, body=_arms_taken(program.body, Machine(prices)))


def _arms_taken(block: Block, machine: Machine) -> Block:
    nodes: list[Node] = []
    for node in block:
        if isinstance(node, Branch):
            nodes += _arms_taken(machine.longest(node), machine)
        elif isinstance(node, Loop):
            body = _arms_taken(node.body, machine)
            nodes.append(dataclasses.replace(node, body=body))
        else:
            nodes.append(node)
    return tuple(nodes)
