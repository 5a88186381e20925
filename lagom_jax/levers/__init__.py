"""Compiler options worth trying for a program, and their effects.

`ideas` derives from a compiled program what is worth asking; `costs` writes down our
prices as the profile that steers XLA's scheduler; `structure` says what a recompiled
program has that the first one had not; `bound` says how short a step could become.
"""

from lagom_jax.levers.bound import Bound as Bound
from lagom_jax.levers.bound import bound_of as bound_of
from lagom_jax.levers.costs import cost_profile as cost_profile
from lagom_jax.levers.ideas import Idea as Idea
from lagom_jax.levers.ideas import ideas as ideas
from lagom_jax.levers.structure import Structure as Structure
from lagom_jax.levers.structure import changes as changes
from lagom_jax.levers.structure import structure_of as structure_of
