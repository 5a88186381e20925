"""Checks that the plugin can be used on this machine, and of variables it obeys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from lagom_jax.errors import Finding, TunerError
from lagom_jax.nccl_plugin.image import load
from lagom_jax.nccl_plugin.library import built
from lagom_jax.nccl_plugin.nccl_library import find_nccl, read_nccl
from xla_flags import Pin, in_effect

PLUGIN: Final = "NCCL_TUNER_PLUGIN"
RULES: Final = "LAGOM_TUNER_RULES"
CHAIN: Final = "LAGOM_TUNER_CHAIN"
CONTROL: Final = "LAGOM_TUNER_CONTROL"
_FORBIDS: Final = ("NCCL_ALGO", "NCCL_PROTO")
_BOUNDS: Final = (
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    *("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
)


def findings(environ: Mapping[str, str], pins: Iterable[Pin]) -> Iterator[Finding]:
    """Findings on the plugin on this machine.

    Args:
        environ: Environment variables.
        pins: What is set, for XLA and for NCCL.

    Example:
        >>> [f.severity for f in findings({"LAGOM_TUNER_CONTROL": "/x"}, ())][-1]
        'warning'
    """
    pins = tuple(pins)
    try:
        plugin = built()
    except TunerError as error:
        yield Finding("warning", "NCCL's tuner plugin was not built", str(error))
        return
    yield Finding("ok", f"NCCL's tuner plugin is {plugin}")
    yield from _library()
    pinned = in_effect(pins)
    yield from _loaded(plugin, named_tuner(pins), environ)
    yield from _rules(environ)
    for name, pin in sorted(pinned.items()):
        if name in _FORBIDS or name in _BOUNDS:
            does = "forbids some rules" if name in _FORBIDS else "bounds all rules"
            yield Finding(
                "warning",
                f"{name}={pin.given} in {pin.where} {does} of the tuner plugin",
                f"unset {name}, unless it is meant",
            )


def _library() -> Iterator[Finding]:
    try:
        library = read_nccl(find_nccl())
    except TunerError:
        # Without a GPU there need not be one; where steps run, there is.
        yield Finding("ok", "no NCCL here: `lagom tuner check` where steps run")
        return
    release = f"NCCL {library.release}" if library.release else "NCCL"
    if library.speaks is None:
        yield Finding(
            "warning",
            f"{release} at {library.path} will not load the tuner plugin",
            "install NCCL 2.23 or newer",
        )
    else:
        yield Finding("ok", f"{release} asks the plugin in version {library.speaks}")


def named_tuner(pins: Iterable[Pin]) -> str:
    """The value of `NCCL_TUNER_PLUGIN`, in the environment or in NCCL's files.

    Example:
        >>> from xla_flags import pinned_by_environment
        >>> named_tuner(pinned_by_environment({"NCCL_TUNER_PLUGIN": "site.so"}))
        'site.so'
    """
    pin = in_effect(pins).get(PLUGIN)
    return "" if pin is None or pin.given is None else str(pin.given)


def _loaded(plugin: Path, named: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    if not named and environ.get(RULES):
        yield Finding(
            "warning",
            f"{RULES} is set, but {PLUGIN} is not: NCCL loads no plugin of ours",
            f"set {PLUGIN}={plugin}",
        )
    elif not named:
        yield Finding("ok", f"{PLUGIN} is not set: NCCL loads no plugin of ours")
    elif is_ours(named, plugin):
        other = environ.get(CHAIN, "")
        asks = f", which asks {other} where it has no rule" if other else ""
        yield Finding("ok", f"{PLUGIN} names the plugin{asks}")
    else:
        yield Finding(
            "warning",
            f"{PLUGIN}={named}: NCCL loads that one, and not ours",
            f"set {CHAIN}={named} and {PLUGIN}={plugin}: then it is asked where ours "
            "has no rule",
        )


def is_ours(named: str, plugin: Path) -> bool:
    """True if a value of `NCCL_TUNER_PLUGIN` names this plugin.

    Example:
        >>> is_ours("other.so", Path("/x/libnccl-tuner-lagom.so"))
        False
    """
    # NCCL also finds a library by its name, or by what makes its name special.
    by_name = named in (plugin.name, "lagom")
    return by_name or Path(named).resolve() == plugin.resolve()


def _rules(environ: Mapping[str, str]) -> Iterator[Finding]:
    path = environ.get(RULES, "")
    if environ.get(CONTROL):
        yield Finding(
            "warning",
            f"{CONTROL} is set: a control page belongs to the process that made it, "
            "and goes before a file of rules",
            f"unset {CONTROL}",
        )
    if not path:
        return
    try:
        rules = load(path)
    except TunerError as error:
        yield Finding(
            "warning",
            f"{RULES}={path}: {error}",
            "write them again with `lagom tuner write`",
        )
    else:
        shapes = ", ".join(f"{scope.ranks} ranks" for scope in rules.scopes) or "nobody"
        yield Finding("ok", f"{RULES}={path} has rules for {shapes}")
