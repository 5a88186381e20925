"""NCCL's tuner plugin, and the rules that it reads."""

from typing import TYPE_CHECKING

from lagom_jax.later import later

if TYPE_CHECKING:
    from lagom_jax.nccl_plugin.control import (
        Control,
        Generation,
        InDoubtError,
        exchange,
    )
    from lagom_jax.nccl_plugin.from_plan import (
        Compiled,
        nearest_rules,
        rules_by_size,
        rules_of,
    )
    from lagom_jax.nccl_plugin.image import load, pack, save, unpack
    from lagom_jax.nccl_plugin.library import built
    from lagom_jax.nccl_plugin.rules import Answer, Place, Rule, Rules, Scope

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
    "nearest_rules",
    "pack",
    "rules_by_size",
    "rules_of",
    "save",
    "unpack",
]

__getattr__ = later(
    __name__,
    {
        "Answer": "rules",
        "Compiled": "from_plan",
        "Control": "control",
        "Generation": "control",
        "InDoubtError": "control",
        "Place": "rules",
        "Rule": "rules",
        "Rules": "rules",
        "Scope": "rules",
        "built": "library",
        "exchange": "control",
        "load": "image",
        "nearest_rules": "from_plan",
        "pack": "image",
        "rules_by_size": "from_plan",
        "rules_of": "from_plan",
        "save": "image",
        "unpack": "image",
    },
)
