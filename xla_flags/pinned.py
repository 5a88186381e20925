"""Values that the user has set, and their places.

Pure functions over what they are given: nothing here reads this process's environment,
and files are read only through the function that is handed in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from xla_flags.catalogue import known
from xla_flags.flag import Flag, FlagError, Value
from xla_flags.flag_text import split
from xla_flags.values import parse_flag, parse_option

_SYSTEM_CONF = "/etc/nccl.conf"
_CONF = "NCCL_CONF_FILE"


@dataclasses.dataclass(frozen=True, slots=True)
class Pin:
    """One setting that the user has made.

    Example:
        >>> pinned_by_options({"xla_gpu_autotune_level": 0})[0].where
        'compiler_options'
    """

    name: str
    given: object
    """As it was written."""
    where: str
    """`XLA_FLAGS`, `compiler_options`, `the environment`, or the path of a file."""
    value: Value | None = None
    """What it means; None where the catalogue cannot tell."""
    problem: str = ""
    """Why it has no effect, or would be refused."""

    @property
    def flag(self) -> Flag | None:
        """Its record in the catalogue, if it has one."""
        return known().get(self.name)

    @property
    def counts(self) -> bool:
        """True if there is nothing against it."""
        return not self.problem


def pinned_by_xla_flags(
    text: str, read: Callable[[str], str | None] | None = None
) -> tuple[Pin, ...]:
    """The settings in `XLA_FLAGS`, or in the file that it names.

    Args:
        text: What the variable holds; empty if it is not set.
        read: Gives the text of a file, None if it cannot be read.

    Returns:
        Every setting in its order, with those that XLA does not read.

    Example:
        >>> for pin in pinned_by_xla_flags("--xla_gpu_autotune_level=0 oops --xla_a=1"):
        ...     print(pin.name, pin.value, pin.problem)
        xla_gpu_autotune_level 0
        xla_a None XLA stops reading XLA_FLAGS at 'oops'
    """
    pairs, rest, where = *_cut(text), "XLA_FLAGS"
    if isinstance(rest, FlagError):
        return (Pin(text, text, where, problem=str(rest)),)
    if not pairs and rest:
        where = text
        content = read(where) if read is not None else None
        if content is None:
            problem = "XLA takes this for the name of a file, which cannot be read"
            return (Pin(where, where, "XLA_FLAGS", problem=problem),)
        pairs, rest = _cut(content)
        if isinstance(rest, FlagError):
            return (Pin(where, content, where, problem=str(rest)),)
    pins = [_of_flag(name, given, where) for name, given in pairs]
    return (*pins, *_unread(rest, where))


def pinned_by_environment(
    environ: Mapping[str, str],
    read: Callable[[str], str | None] | None = None,
    *,
    home: str = "",
) -> tuple[Pin, ...]:
    r"""All that an environment pins: `XLA_FLAGS` and NCCL's variables and files.

    Args:
        environ: Environment variables.
        read: Gives the text of a file, None if it cannot be read.
        home: The home directory, where NCCL looks for `.nccl.conf`.

    Returns:
        Every setting; the last one of a name that counts is in effect.

    Example:
        >>> files = {"/etc/nccl.conf": "NCCL_MAX_CTAS=8\nNCCL_ALGO=ring"}
        >>> environ = {"NCCL_MAX_CTAS": "16", "PATH": "/bin"}
        >>> for pin in pinned_by_environment(environ, files.get):
        ...     print(pin.name, pin.value, pin.where)
        NCCL_ALGO ring /etc/nccl.conf
        NCCL_MAX_CTAS 8 /etc/nccl.conf
        NCCL_MAX_CTAS 16 the environment
    """
    pins = list(pinned_by_xla_flags(environ.get("XLA_FLAGS", ""), read))
    own = environ.get(_CONF) or (f"{home}/.nccl.conf" if home else "")
    # The first to set a variable wins, so the last to be listed is the first read.
    for path in (_SYSTEM_CONF, own):
        content = read(path) if path and read is not None else None
        for name, given in reversed(_conf(content or "")):
            pins.append(_of_variable(name, given, path))
    pins.extend(
        _of_variable(name, given, "the environment")
        for name, given in environ.items()
        if name.startswith("NCCL_")
    )
    return tuple(pins)


def pinned_by_options(options: Mapping[str, object]) -> tuple[Pin, ...]:
    """The values that a step's own `compiler_options` set.

    Args:
        options: As the user handed them to jax.

    Returns:
        Every setting; over those of `XLA_FLAGS` they win.

    Example:
        >>> pinned_by_options({"xla_gpu_autotune_level": "4"})[0].value
        4
    """
    pins: list[Pin] = []
    for name, given in options.items():
        flag, value, problem = known().get(name), None, ""
        if flag is not None:
            try:
                value = parse_option(flag, given)
            except FlagError as error:
                problem = str(error)
        pins.append(Pin(name, given, "compiler_options", value, problem))
    return tuple(pins)


def in_effect(pins: Iterable[Pin]) -> dict[str, Pin]:
    """The setting of each name that is in effect.

    The last one wins. In `XLA_FLAGS` lists of strings, maps, and changes to a default
    are added to those before them instead.

    Args:
        pins: Those of the environment first, then those of `compiler_options`.

    Returns:
        By name, what counts in the end.

    Example:
        >>> pins = pinned_by_xla_flags("--xla_gpu_autotune_level=0")
        >>> pins += pinned_by_options({"xla_gpu_autotune_level": 4})
        >>> in_effect(pins)["xla_gpu_autotune_level"].value
        4
        >>> twice = "--xla_disable_hlo_passes=a --xla_disable_hlo_passes=b"
        >>> in_effect(pinned_by_xla_flags(twice))["xla_disable_hlo_passes"].value
        ('a', 'b')
    """
    found: dict[str, Pin] = {}
    for pin in pins:
        if pin.counts:
            found[pin.name] = _added(found.get(pin.name), pin)
    return found


def _added(earlier: Pin | None, later: Pin) -> Pin:
    flag = later.flag
    if earlier is None or flag is None or later.where == "compiler_options":
        return later
    match earlier.value, later.value:
        case dict() as before, dict() as after:
            return dataclasses.replace(later, value=before | after)
        case tuple() as before, tuple() as after if not flag.choices:
            return dataclasses.replace(later, value=before + after)
        case tuple() as before, tuple() as after if after and after[0][0] in "+-":
            return dataclasses.replace(later, value=_changed(before, after))
        case _:
            return later


def _changed(items: tuple[str, ...], changes: tuple[str, ...]) -> tuple[str, ...]:
    if items and items[0][0] in "+-":
        return items + changes
    left = [item for item in items if f"-{item}" not in changes]
    more = [c[1:] for c in changes if c[0] == "+" and c[1:] not in items]
    return (*left, *more)


def _cut(
    text: str,
) -> tuple[tuple[tuple[str, str | None], ...], str | FlagError]:
    try:
        return split(text)
    except FlagError as error:
        return (), error


def _of_flag(name: str, given: str | None, where: str) -> Pin:
    flag = known().get(name)
    if flag is None:
        return Pin(name, given, where)
    try:
        return Pin(name, given, where, parse_flag(flag, given))
    except FlagError as error:
        return Pin(name, given, where, problem=str(error))


def _unread(rest: str, where: str) -> list[Pin]:
    if not rest:
        return []
    word, *others = rest.split()
    problem = f"XLA stops reading {where} at {word!r}"
    lost = [other for other in others if other.startswith("--")]
    if not lost:
        return [Pin(word, word, where, problem=problem)]
    names = (other.removeprefix("--").partition("=") for other in lost)
    return [
        Pin(name, given if equals else None, where, problem=problem)
        for name, equals, given in names
    ]


def _conf(content: str) -> list[tuple[str, str]]:
    """NCCL's own file format: `KEY=value` lines; # begins a comment in column one."""
    lines = (line.partition("=") for line in content.splitlines() if line[:1] != "#")
    return [(name, given) for name, equals, given in lines if equals]


def _of_variable(name: str, given: str, where: str) -> Pin:
    flag = known().get(name)
    if flag is None:
        return Pin(name, given, where)
    try:
        return Pin(name, given, where, parse_flag(flag, given))
    except FlagError:
        # NCCL reads forms of its own and ends at none of them.
        return Pin(name, given, where)
