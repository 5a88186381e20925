"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def later(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: whoever needs one module need not import the others.

    No name may be that of a module of the package: importing that puts it there.

    Args:
        package: The package's `__name__`.
        homes: For each name the module within the package that has it.

    Example:
        >>> later("lagom_jax.cluster", {"Gpu": "hardware"})("Gpu").__name__
        'Gpu'
        >>> later("lagom_jax.cluster", {"Gpu": "hardware"})("Tpu")
        Traceback (most recent call last):
        ...
        AttributeError: module 'lagom_jax.cluster' has no attribute 'Tpu'
    """

    def found(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return found
