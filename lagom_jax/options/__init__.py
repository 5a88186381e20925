"""Compiler options worth trying for a program, and their effects.

`ideas` derives from a compiled program what is worth asking; `costs` writes down our
prices as the profile that steers XLA's scheduler; `structure` says what a recompiled
program has that the first one had not; `bound` says how short a step could become.
"""

from lagom_jax.options.bound import Bound as Bound
from lagom_jax.options.bound import bound_of as bound_of
from lagom_jax.options.costs import cost_profile as cost_profile
from lagom_jax.options.ideas import Idea as Idea
from lagom_jax.options.ideas import ideas as ideas
from lagom_jax.options.structure import StepStructure as StepStructure
from lagom_jax.options.structure import changes as changes
from lagom_jax.options.structure import structure_of as structure_of
