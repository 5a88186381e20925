"""The communication of a module, read from its text, to compare programs by."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from lagom_jax.compile.schema import STREAM_ATTRIBUTE

# What is communicated, in the order in which it is begun.
_COLLECTIVE: Final = re.compile(
    r" = (\S.*?) ((?:all-gather|all-reduce|all-to-all|ragged-all-to-all|"
    r"collective-broadcast|collective-permute|reduce-scatter|send|recv)(?:-start)?)\("
)
_STREAM: Final = re.compile(rf'{STREAM_ATTRIBUTE}="(\w*)"')
_GROUPS: Final = re.compile(r"(?:replica_groups|source_target_pairs)=(\S+?),? ")


def collectives_of(text: str) -> str:
    """A hash of what a module communicates, in its order, and of no names.

    Args:
        text: The module.

    Example:
        >>> one = "  a = f32[8] all-reduce(b), replica_groups={}, to_apply=c"
        >>> collectives_of(one) == collectives_of(one.replace("a = ", "x = "))
        True
        >>> collectives_of(one) == collectives_of("")
        False
        >>> aside = 'frontend_attributes={_xla_stream_annotation="1"}'
        >>> collectives_of(one) == collectives_of(f"{one}, {aside}")
        False
    """
    digest = hashlib.sha256()
    for line in text.splitlines():
        if match := _COLLECTIVE.search(line):
            more = (_GROUPS.search(line), _STREAM.search(line))
            words = (match[2], match[1], *(found[1] if found else "" for found in more))
            digest.update("\0".join(words).encode())
    return digest.hexdigest()[:16]
