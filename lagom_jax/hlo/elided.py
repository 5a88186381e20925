"""Constants whose values the compiler left out of the text.

`as_text()` and dumps print large constants as `constant({...})`. The parser makes
values up for them: 1.6 GB of memory and several seconds for the 805 MB of one found
in a public test, and as many bytes again in the serialised module. Values that are
not in the text are not needed, so such a constant is parsed as a call of nothing.
"""

from __future__ import annotations

import re

from lagom_jax.compile.schema import message_class

_ELIDED = re.compile(r"\bconstant\(\{\.\.\.\}\)")
_STAND_IN = "lagom_jax: elided constant"


def keep_elided(text: str) -> tuple[str, bool]:
    """The text without elided constants, and whether there were any.

    Example:
        >>> keep_elided("c = f32[9]{0} constant({...})")[0]
        'c = f32[9]{0} custom-call(), custom_call_target="lagom_jax: elided constant"'
    """
    changed, count = _ELIDED.subn(
        f'custom-call(), custom_call_target="{_STAND_IN}"', text
    )
    return changed, count > 0


def restore_elided(data: bytes) -> bytes:
    """The serialised module, its elided constants being constants again."""
    module = message_class("HloModuleProto").FromString(data)
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.custom_call_target == _STAND_IN:
                instruction.opcode = "constant"
                instruction.ClearField("custom_call_target")
    return module.SerializeToString()
