"""The text of `XLA_FLAGS`, cut into words and put together as XLA does.

Tried on jaxlib 0.10.2 and 0.12.0.1. XLA reads words for as long as they begin with a
dash, and says nothing of what comes after the first that does not: `--a=1 b --c=2` sets
only `a`. A value in quotes may hold blanks; in double quotes a backslash takes the next
character as it is. Text whose first word has no dash is the name of a file, whose text
is read by the same rules, so a file that begins with a comment sets nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from xla_flags.flag import FlagError

_BLANKS = " \t\n\v\f\r"
_QUOTES = "'\""
_IN_NAMES = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
)


def split(text: str) -> tuple[tuple[tuple[str, str | None], ...], str]:
    """The settings in the text of `XLA_FLAGS`, or of a file that it names.

    Args:
        text: What the variable or the file holds.

    Returns:
        Pairs of a name without dashes and the text of its value, None for a name alone,
        in their order; and the rest of the text, which XLA does not read. Where there
        is no pair, a rest in `XLA_FLAGS` is the name of a file.

    Raises:
        FlagError: A word begins with one dash only, which no name does.

    Example:
        >>> split("--xla_a=1 --xla_b --xla_c='x y' stray --xla_d=2")
        ((('xla_a', '1'), ('xla_b', None), ('xla_c', 'x y')), 'stray --xla_d=2')
        >>> split("/home/me/flags")
        ((), '/home/me/flags')
    """
    found: list[tuple[str, str | None]] = []
    at = _after_blanks(text, 0)
    while at < len(text) and text[at] == "-":
        end = at
        while end < len(text) and text[end] in _IN_NAMES:
            end += 1
        if text[end : end + 1] == "=" and text[end + 1 : end + 2] in {*_QUOTES}:
            value, after = _quoted(text, end + 1)
            word = text[at:end]
        else:
            after = end
            while after < len(text) and text[after] not in _BLANKS:
                after += 1
            word, equals, rest = text[at:after].partition("=")
            value = rest if equals else None
        if not word.startswith("--"):
            raise FlagError(f"{text[at:after]!r} does not begin with two dashes")
        found.append((word.removeprefix("--"), value))
        at = _after_blanks(text, after)
    return tuple(found), text[at:]


def join(settings: Iterable[tuple[str, str | None]]) -> str:
    """The text of `XLA_FLAGS` for settings.

    Args:
        settings: Pairs as `split` returns them.

    Returns:
        Text from which `split` returns the same pairs.

    Raises:
        FlagError: A name has characters that XLA does not read as part of one.

    Example:
        >>> join([("xla_a", "1"), ("xla_b", None), ("xla_dump_to", "my folder")])
        '--xla_a=1 --xla_b --xla_dump_to="my folder"'
    """
    return " ".join(_word(name, value) for name, value in settings)


def _word(name: str, value: str | None) -> str:
    if not name or not set(name) <= _IN_NAMES:
        raise FlagError(f"{name!r} is no name of a flag")
    if value is None:
        return f"--{name}"
    if value[:1] in {*_QUOTES} or set(value) & set(_BLANKS):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        value = f'"{escaped}"'
    return f"--{name}={value}"


def _quoted(text: str, at: int) -> tuple[str, int]:
    """A value in quotes, and where the text goes on; an open end closes itself."""
    quote, at = text[at], at + 1
    value: list[str] = []
    while at < len(text) and text[at] != quote:
        if quote == '"' and text[at] == "\\" and at + 1 < len(text):
            at += 1
        value.append(text[at])
        at += 1
    return "".join(value), at + 1


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def names_dump(name: str) -> bool:
    """True for an option of what XLA writes down, which makes no other program.

    Example:
        >>> names_dump("xla_dump_to"), names_dump("xla_gpu_autotune_level")
        (True, False)
    """
    return name.startswith("xla_dump_")
