"""An attribute that jax or jaxlib does not promise to keep, looked up by its name.

Importing this imports neither: the process that compiles does without jax itself.
"""

from __future__ import annotations

import importlib
from typing import Any

from lagom_jax.compile.toolchain import VERIFIED_ON
from lagom_jax.errors import ToolchainError


def jax_version() -> str:
    """The version of jax that is installed.

    Example:
        >>> jax_version().count(".") >= 2
        True
    """
    # Not for a process that compiles: it imports what reads mail.
    from importlib.metadata import version

    return version("jax")


def internal(owner: object, path: str) -> Any:
    """An attribute of jax's inside, or a ToolchainError that says what to install.

    Args:
        owner: What has it, or the name of a module.
        path: Its name there, with dots for attributes of attributes.

    Example:
        >>> internal("jax._src.xla_bridge", "backends_are_initialized").__name__
        'backends_are_initialized'
    """
    try:
        found: Any = importlib.import_module(owner) if isinstance(owner, str) else owner
        for name in path.split("."):
            found = getattr(found, name)
        return found
    except (ImportError, AttributeError) as error:
        raise ToolchainError(
            f"jax {jax_version()} has changed inside: {error}. lagom_jax was "
            f"verified on jax {' and '.join(VERIFIED_ON)}; install one of these."
        ) from error
