"""Values as XLA takes them, by its exact rules.

The rules differ between `XLA_FLAGS`, which is text, and `compiler_options`, which are
Python objects. They were tried out, form by form, on jaxlib 0.10.2 and 0.12.0.1, and
were the same on both:

| type | XLA_FLAGS | compiler_options |
| --- | --- | --- |
| bool | true, false in any case, 1, 0; the name alone | True, False, "True", "False" |
| int | digits with a sign, in the range of its width | int, or the same text; no bool |
| float | a number, inf, nan | float, or the same text; no int |
| string | any text | str |
| enum | one of the choices, some shortened, some in any case | the whole name |
| list | items with commas between; some with + and - | one str with commas |
| map | key=value with commas between | refused |
| bytes | | bytes |

As an enum `compiler_options` take numbers too. They are refused here: the number of a
choice is another one in another version.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from xla_flags.flag import Flag, FlagError, OptionValue, Value

_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_INT = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+[ \t\n\v\f\r]*", re.ASCII)
_FLOAT = re.compile(
    r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf(inity)?|nan)\s*",
    re.ASCII | re.IGNORECASE,
)
_ALL = "ALLCOLLECTIVES"


def parse_flag(flag: Flag, text: str | None) -> Value:
    """The value that `XLA_FLAGS` or the environment gives a flag.

    Args:
        flag: Which.
        text: What stands behind `NAME=`; None for the name alone.

    Returns:
        The value. A list of changes to the default keeps its signs.

    Raises:
        FlagError: XLA would refuse the text, and end the process.

    Example:
        >>> from xla_flags import find
        >>> parse_flag(find("xla_gpu_enable_pipelined_p2p"), None)
        True
        >>> parse_flag(find("xla_gpu_all_gather_mode"), "symmetric")
        'COLLECTIVES_SYMMETRIC_MEMORY'
        >>> parse_flag(find("xla_gpu_enable_command_buffer"), "+collectives")
        ('+COLLECTIVES',)
    """
    if flag.routes == ("compiler_options",):
        raise FlagError(f"{flag.name} is a compiler option: XLA_FLAGS do not know it")
    if text is None:
        if flag.type != "bool":
            raise FlagError(f"{flag.name} needs a value: {flag.name}=...")
        return True
    return _FROM_TEXT[flag.type](flag, text)


def print_flag(flag: Flag, value: Value) -> str:
    """What to write behind `NAME=` in `XLA_FLAGS` or the environment.

    Args:
        flag: Which.
        value: A value as `parse_flag` returns it.

    Returns:
        Text from which `parse_flag` returns the same value.

    Raises:
        FlagError: There is no such text, or the value is of another type.

    Example:
        >>> from xla_flags import find
        >>> print_flag(find("xla_gpu_all_gather_mode"), "COLLECTIVES_PEER_MEMORY")
        'PEER'
    """
    text = _text(flag, _typed(flag, value))
    if parse_flag(flag, text) != value and value == value:
        raise FlagError(f"{flag.name}: nothing in XLA_FLAGS means {value!r}")
    return text


def parse_option(flag: Flag, value: object) -> Value:
    """The value that an entry of `compiler_options` gives a flag.

    Args:
        flag: Which.
        value: What the user handed to jax.

    Returns:
        The value.

    Raises:
        FlagError: XLA would refuse it.

    Example:
        >>> from xla_flags import find
        >>> parse_option(find("xla_gpu_enable_pipelined_p2p"), "True")
        True
        >>> parse_option(find("xla_gpu_enable_pipelined_p2p"), "true")
        Traceback (most recent call last):
        ...
        xla_flags.flag.FlagError: xla_gpu_enable_pipelined_p2p is a bool: ...
    """
    if "compiler_options" not in flag.routes:
        raise FlagError(
            f"{flag.name} is no compiler option; it is set by "
            f"{' or '.join(flag.routes)}"
        )
    in_words = isinstance(value, str) and flag.routes != ("compiler_options",)
    if flag.type == "bool":
        if value in ("True", "False"):
            return value == "True"
    elif flag.type in ("int", "float") and in_words:
        return _FROM_TEXT[flag.type](flag, str(value))
    elif flag.type == "list" and isinstance(value, str):
        items = tuple(value.split(",")) if value else ()
        return _checked(flag, items, signed=False)
    try:
        return _typed(flag, value)
    except FlagError:
        raise FlagError(
            f"{flag.name} is {_a(flag)}: as a compiler option it cannot be {value!r}"
        ) from None


def print_option(flag: Flag, value: Value) -> OptionValue:
    """What to hand to jax in `compiler_options`.

    Args:
        flag: Which.
        value: A value as `parse_option` returns it.

    Returns:
        An object from which `parse_option` returns the same value.

    Raises:
        FlagError: There is none, or the value is of another type.

    Example:
        >>> from xla_flags import find
        >>> print_option(find("xla_gpu_disable_async_collectives"), ("ALLGATHER",))
        'ALLGATHER'
    """
    typed = _typed(flag, value)
    printed = ",".join(typed) if isinstance(typed, tuple) else typed
    if parse_option(flag, printed) != value and value == value:
        raise FlagError(f"{flag.name}: no compiler option means {value!r}")
    assert not isinstance(printed, (tuple, dict))
    return printed


def _bool(flag: Flag, text: str) -> bool:
    if (value := _BOOLS.get(text.lower())) is None:
        raise _refused(flag, text)
    return value


def _int(flag: Flag, text: str) -> int:
    if not _INT.fullmatch(text):
        raise _refused(flag, text)
    return _in_range(flag, int(text))


def _float(flag: Flag, text: str) -> float:
    if not _FLOAT.fullmatch(text):
        raise _refused(flag, text)
    return float(text)


def _enum(flag: Flag, text: str) -> str:
    choice = flag.spelling.choice(text, flag.choices)
    if choice is None:
        raise _refused(flag, text)
    return choice


def _list(flag: Flag, text: str) -> tuple[str, ...]:
    words = text.split(",")
    if not flag.choices:
        return tuple(words)
    if flag.signed:
        return _changes(flag, [word.strip() for word in words])
    items: list[str] = []
    for word in words:
        item = _enum(flag, word)
        # XLA writes all kinds out.
        every = (c for c in flag.choices if c not in (_ALL, "NOOP"))
        items.extend(every if item == _ALL else [item])
    return tuple(items)


def _changes(flag: Flag, words: list[str]) -> tuple[str, ...]:
    if words == [""]:
        return ()
    signs = [word[:1] if word[:1] in "+-" else "" for word in words]
    if any(signs) and not all(signs):
        raise FlagError(f"{flag.name}: {words} mix changes to the default and items")
    items = (
        sign + _enum(flag, word.removeprefix(sign))
        for sign, word in zip(signs, words, strict=True)
    )
    return tuple(dict.fromkeys(items))


def _map(flag: Flag, text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return {key: value for key, _, value in pairs}


def _string(flag: Flag, text: str) -> str:
    return text


def _bytes(flag: Flag, text: str) -> bytes:
    raise _refused(flag, text)


_FROM_TEXT: Mapping[str, Callable[[Flag, str], Value]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "enum": _enum,
    "list": _list,
    "map": _map,
    "string": _string,
    "bytes": _bytes,
}
_PYTHON: Mapping[str, type] = {
    "bool": bool,
    "int": int,
    "float": float,
    "enum": str,
    "list": tuple,
    "map": dict,
    "string": str,
    "bytes": bytes,
}


def _text(flag: Flag, value: Value) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case dict():
            return ",".join(f"{key}={word}" for key, word in value.items())
        case str() if flag.type == "enum":
            return flag.spelling.word(value)
        case float() if math.isinf(value) or math.isnan(value):
            return str(value)
        case float():
            return repr(value)
        case _:
            return str(value)


def _typed(flag: Flag, value: Any) -> Value:
    """The value itself, if it is of the flag's type and one of its choices."""
    if type(value) is not _PYTHON[flag.type]:
        raise _refused(flag, value)
    if isinstance(value, tuple):
        items = cast("tuple[str, ...]", value)
        return _checked(flag, items, signed=flag.signed)
    if isinstance(value, int) and flag.type == "int":
        return _in_range(flag, value)
    if flag.type == "enum" and value not in flag.choices:
        raise _refused(flag, value)
    return value


def _checked(flag: Flag, items: tuple[str, ...], *, signed: bool) -> tuple[str, ...]:
    allowed = {*flag.choices}
    if signed:
        allowed |= {sign + choice for sign in "+-" for choice in flag.choices}
    if flag.choices and not allowed.issuperset(items):
        raise _refused(flag, items)
    return items


def _in_range(flag: Flag, value: int) -> int:
    limit = 1 << (flag.bits - 1)
    if not -limit <= value < limit:
        raise FlagError(f"{flag.name}: {value} does not fit into {flag.bits} bits")
    return value


def _refused(flag: Flag, value: object) -> FlagError:
    allowed = ", ".join(flag.spelling.word(choice) for choice in flag.choices)
    return FlagError(
        f"{flag.name} is {_a(flag)}{f' ({allowed})' if allowed else ''}: it cannot be "
        f"{value!r}"
    )


def _a(flag: Flag) -> str:
    return f"{'an' if flag.type[0] in 'aeiou' else 'a'} {flag.type}"
