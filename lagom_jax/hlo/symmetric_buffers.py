"""Buffers of a collective in symmetric memory, which all its GPUs have registered."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class SymmetricBuffers:
    """The buffers of a collective that lie in symmetric memory.

    Example:
        >>> bool(SymmetricBuffers()), bool(SymmetricBuffers(received=True))
        (False, True)
    """

    sent: bool = False
    received: bool = False
    one_sided: bool = False
    """True if XLA runs it by puts of its own."""

    def __bool__(self) -> bool:
        """True if any of them does."""
        return self.sent or self.received or self.one_sided
