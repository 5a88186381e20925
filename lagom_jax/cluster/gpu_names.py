"""Names of GPUs as tables of measurements spell them."""

from __future__ import annotations

import functools
import re

from lagom_jax.cluster.hardware import Gpu
from lagom_jax.cluster.records import read_system, system_names

# Forms of a GPU that its names may have or leave out: they tell none from another.
_FORMS = frozenset({"nvidia", "sxm"})


@functools.cache
def system_of(spelled: str) -> str | None:
    """The system that a table's name of a GPU or of a system means.

    Case, spaces and signs between the words do not count. Of a GPU's name some words
    of its title or of what CUDA calls it may be left out, but none that its record's
    own name has.

    Args:
        spelled: The name.

    Returns:
        One of the known systems: of a GPU that several have the one named after it,
        else the first. None if no GPU is called so, or if several are.

    Example:
        >>> system_of("h100_sxm"), system_of("NVIDIA H200 141GB HBM3e")
        ('h100', 'h200')
        >>> system_of("rtx-pro-6000-server"), system_of("gb300"), system_of("a100-40gb")
        ('rtx-pro-6000', 'gb300-nvl72', 'p4d')
        >>> system_of("h100-pcie") is None
        True
    """
    joined = "".join(_words(spelled))
    by_joined = {"".join(_words(name)): name for name in system_names()}
    if joined in by_joined:
        return by_joined[joined]
    words = frozenset(_words(spelled))
    systems = [read_system(name) for name in system_names()]
    gpus = {system.gpu.name: system.gpu for system in systems}
    called = [gpu for gpu in gpus.values() if _calls(words, joined, gpu)]
    if len(called) != 1:
        return None
    having = [system.name for system in systems if system.gpu.name == called[0].name]
    named = [name for name in having if name.startswith(called[0].name)]
    return (named or having)[0]


def _calls(words: frozenset[str], joined: str, gpu: Gpu) -> bool:
    own = frozenset(_words(gpu.name))
    known = frozenset(_words(f"{gpu.title} {gpu.xla_device_name}")) | own | _FORMS
    return joined == "".join(_words(gpu.name)) or own <= words <= known


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
