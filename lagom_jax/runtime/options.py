"""Options of the wrapper: arguments beat flags, flags beat the environment."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from lagom_jax.cluster import Cluster
from lagom_jax.errors import LagomError
from lagom_jax.hlo.stated_kernels import StatedKernel, kernels_of
from lagom_jax.plan import Plan, load
from lagom_jax.planner import LEVERS, Budget
from lagom_jax.scheduled import cluster_named

Mode: TypeAlias = Literal["off", "report", "tune", "load"]
Verify: TypeAlias = Literal["model", "measure", "online"]
AUTO: Final = "auto"
FLAGS_MODULE: Final = "lagom_jax.flags"
PREFIX: Final = "LAGOM_"


class OptionError(LagomError, ValueError):
    """An option that the wrapper does not have, or a function that it cannot take."""


class OptionTypeError(OptionError, TypeError):
    """A value of a type that the wrapper cannot take."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The wrapper's options, checked.

    Example:
        >>> Options(mode="tune", levers=("options", "magic"))
        Traceback (most recent call last):
        ...
        lagom_jax.runtime.options.OptionError: levers: no lever 'magic'; known are
        options, transports, costs, order, streams, settings
    """

    mode: Mode = "tune"
    cluster: str | Cluster = AUTO
    levers: tuple[str, ...] = tuple(one for one in LEVERS if one != "transports")
    """Transports only where they are asked for: what goes wrong with symmetric memory
    ends a process, and no guard can catch that."""
    budget: Budget = dataclasses.field(default_factory=Budget)
    plan: Plan | str | Path | None = None
    cache: str | Path | bool = True
    """The folder of kept decisions; True for the usual one, False for none."""
    deterministic: bool = False
    strict: bool = False
    verify: Verify = "model"
    progress: bool = False
    html: str | Path | None = None
    """The page that the mode `report` writes."""
    trace: str | Path | None = None
    """The trace that it writes."""
    patience: float = 120.0
    """Seconds for which processes wait for each other, beside what planning takes."""
    kernels: tuple[StatedKernel, ...] = ()
    """Statements about kernels that nothing else is known of."""

    def __post_init__(self) -> None:
        """Checks that it can be done."""
        for name, value, known in (
            ("mode", self.mode, get_args(Mode)),
            ("verify", self.verify, get_args(Verify)),
        ):
            if value not in known:
                raise OptionError(f"{name}={value!r}: one of {', '.join(known)}")
        if not self.patience > 0:
            raise OptionError(f"patience={self.patience}: must be above 0")
        if unknown := set(self.levers) - set(LEVERS):
            raise OptionError(
                f"levers: no lever {min(unknown)!r}; known are {', '.join(LEVERS)}"
            )
        if self.cluster != AUTO:
            # A wrong name is better known now than after the first batch was read.
            cluster_named(self.cluster)


def resolve(
    given: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> Options:
    """The options from arguments, flags and the environment.

    Args:
        given: Arguments of `tune`; those that are None were not given.
        environ: Environment variables.

    Raises:
        OptionError: A value cannot be understood.
        ClusterError: No such cluster.
        KernelTableError: The kernels' file cannot be used.

    Example:
        >>> resolve({"mode": None}, {"LAGOM_MODE": "report"}).mode
        'report'
        >>> resolve({"mode": "off"}, {"LAGOM_MODE": "report"}).mode
        'off'
    """
    chosen: dict[str, Any] = {}
    for name in NAMES:
        read = _READERS.get(name, str)
        flag = "lagom" if name == "mode" else f"lagom_{name}"
        value, stated = _flag(flag)
        variable = PREFIX + name.upper()
        if given.get(name) is not None:
            chosen[name] = given[name]
        elif stated:
            chosen[name] = _read(f"--{flag}", read, value)
        elif environ.get(variable):
            chosen[name] = _read(variable, read, environ[variable])
        elif value is not None:
            chosen[name] = value
    if isinstance(chosen.get("levers"), str):
        chosen["levers"] = _words(chosen["levers"])
    if "levers" in chosen:
        chosen["levers"] = tuple(cast("Iterable[str]", chosen["levers"]))
    if "kernels" in chosen:
        chosen["kernels"] = kernels_of(chosen["kernels"])
    limits = {name: chosen.pop(name) for name in _LIMITS if name in chosen}
    if given.get("budget") is not None:
        chosen["budget"] = given["budget"]
    elif limits:
        chosen["budget"] = Budget(**limits)
    return Options(**chosen)


def plan_given(plan: Plan | str | Path) -> Plan:
    """The plan that a user gives, itself or the name of its file.

    Raises:
        PlanError: The file cannot be read, or is no plan.
    """
    return plan if isinstance(plan, Plan) else load(plan)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _truth(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("neither true nor false")


def _place(text: str) -> str | bool:
    try:
        return _truth(text)
    except ValueError:
        return text


_LIMITS: Final = ("compiles", "seconds", "memory_fraction")
NAMES: Final = (
    *(one.name for one in dataclasses.fields(Options) if one.name != "budget"),
    *_LIMITS,
)
"""The names of options that flags and variables can set."""
_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("deterministic", "strict", "progress"), _truth),
    **dict.fromkeys(("seconds", "memory_fraction", "patience"), float),
    "compiles": int,
    "levers": _words,
    "cache": _place,
}
"""The ways to read those that are no text."""


def _read(where: str, read: Callable[[str], Any], value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read(value)
    except ValueError as error:
        raise OptionError(f"{where}={value}: {error}") from None


def _flag(name: str) -> tuple[Any, bool]:
    """The value of a flag, None for none, and whether the command line states it."""
    # Only binaries have them, and may parse them later.
    if FLAGS_MODULE not in sys.modules:
        return None, False
    from absl import flags

    flag = cast("Any", flags.FLAGS)[name]
    stated = bool(flags.FLAGS.is_parsed() and flag.present)
    return (flag.value if stated else flag.default), stated
