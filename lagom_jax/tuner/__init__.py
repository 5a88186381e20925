"""What NCCL's tuner plugin is told, and the plugin itself."""

from lagom_jax.tuner.control import Control, Generation, InDoubtError, exchange
from lagom_jax.tuner.from_plan import Compiled, rules_by_size, rules_of
from lagom_jax.tuner.image import load, pack, save, unpack
from lagom_jax.tuner.library import built
from lagom_jax.tuner.rules import Answer, Place, Rule, Rules, Scope

__all__ = [
    "Answer",
    "Compiled",
    "Control",
    "Generation",
    "InDoubtError",
    "Place",
    "Rule",
    "Rules",
    "Scope",
    "built",
    "exchange",
    "load",
    "pack",
    "rules_by_size",
    "rules_of",
    "save",
    "unpack",
]
