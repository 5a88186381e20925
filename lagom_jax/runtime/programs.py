"""The program that a plan asks for, built by the jax that will run it."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeAlias

import jax

from lagom_jax.compile.scheduler_pass import scheduler_pass
from lagom_jax.compile.schema import STREAM_ATTRIBUTE
from lagom_jax.errors import LagomError, PlanError
from lagom_jax.plan import Plan
from lagom_jax.plan.order import APPLIED
from lagom_jax.plan.plan import COSTS
from lagom_jax.runtime.jitted import Watched
from lagom_jax.units import in_bytes

# In the text of a module: what is communicated, in the order in which it is begun.
_COLLECTIVE: Final = re.compile(
    r" = (\S.*?) ((?:all-gather|all-reduce|all-to-all|ragged-all-to-all|"
    r"collective-broadcast|collective-permute|reduce-scatter|send|recv)(?:-start)?)\("
)
_STREAM: Final = re.compile(rf'{STREAM_ATTRIBUTE}="(\w*)"')
_GROUPS: Final = re.compile(r"(?:replica_groups|source_target_pairs)=(\S+?),? ")

Run: TypeAlias = Any
"""Something to be called as the step; jax's own has more to it."""


class Source(Protocol):
    """Something that programs for one set of arguments are made of."""

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `lagom_jax.compile.lower` takes."""
        ...

    @property
    def shardings(self) -> tuple[Any, ...]:
        """What it says about where arguments and results go, where that is known."""
        ...

    def usual(self) -> Run:
        """The program as it is."""
        ...

    def call(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a program, also where it has to be compiled for that."""
        ...

    def build(
        self,
        options: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Run, Any]:
        """The program with compiler options, and its `jax.stages.Compiled`."""
        ...


class JittedSource:
    """A function that `jax.jit` made: copies of it, so that jax dispatches calls."""

    def __init__(self, jitted: Any) -> None:
        """Takes the user's function."""
        self.watched = Watched(jitted)

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Traces it, once for all copies."""
        with self.watched:
            return self.watched.jitted({}).trace(*args, **kwargs)

    @property
    def shardings(self) -> tuple[Any, ...]:
        """Those that it was jitted with."""
        return self.watched.shardings

    def usual(self) -> Run:
        """A copy as the user jitted it."""
        return self.watched.jitted({})

    def call(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a copy."""
        with self.watched:
            return run(*args, **kwargs)

    def build(
        self,
        options: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Run, Any]:
        """A copy with more options; its first call finds the program compiled."""
        run = self.watched.jitted(options)
        with self.watched:
            return run, run.lower(*args, **kwargs).compile()


class LoweredSource:
    """Any wrapper around jax that has `lower`, as `nnx.jit` and `eqx.filter_jit`."""

    def __init__(self, wrapped: Any) -> None:
        """Takes the user's wrapper."""
        self._wrapped = wrapped

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Traces it, or lowers it, which is the same where it runs on GPUs."""
        wrapped = self._wrapped
        return getattr(wrapped, "trace", wrapped.lower)(*args, **kwargs)

    @property
    def shardings(self) -> tuple[Any, ...]:
        """Known to the wrapper only."""
        return ()

    def usual(self) -> Run:
        """The wrapper itself."""
        return self._wrapped

    def call(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the wrapper, or what it compiled."""
        return run(*args, **kwargs)

    def build(
        self,
        options: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Run, Any]:
        """A program for these arguments alone."""
        wrapped = self._wrapped
        compiled = wrapped.lower(*args, **kwargs).compile(
            compiler_options=dict(options)
        )

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return compiled(*args, **kwargs)
            except (TypeError, ValueError):
                # What is static for the wrapper, as a value or that two models are
                # one, no look at its arguments can tell. Nothing has run yet.
                return wrapped(*args, **kwargs)

        # What wraps a function usually wraps its stages, too.
        return run, getattr(compiled, "compiled", compiled)


class StageSource:
    """What `.lower(...)` of a jitted function returned: for one set of arguments."""

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        """Takes the stage."""
        self._lowered = lowered

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The stage itself, which knows its arguments."""
        return self._lowered

    @property
    def shardings(self) -> tuple[Any, ...]:
        """Those of its arguments suffice: it takes no others."""
        return ()

    def usual(self) -> Run:
        """The stage, compiled."""
        return self._lowered.compile()

    def call(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs what was compiled."""
        return run(*args, **kwargs)

    def build(
        self,
        options: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Run, Any]:
        """The stage, compiled with options."""
        compiled = self._lowered.compile(compiler_options=dict(options))
        return compiled, compiled


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """A program that is ready to run."""

    run: Run
    collectives: str
    """A hash of what is communicated, and in which order."""


def build(
    source: Source,
    plan: Plan | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    on_gpus: bool,
    memory_limit: int | None,
) -> Built:
    """Compiles the program that a plan asks for; nothing is executed.

    Args:
        source: What to make it of.
        plan: The plan; None for the program as it is.
        args: Arguments of the call.
        kwargs: The same by keyword.
        on_gpus: Whether it will run on GPUs. Elsewhere the compiler takes the options
            and does nothing about them, and there is no schedule to be changed.
        memory_limit: Bytes that it may take on a device; None where nobody counts.

    Raises:
        PlanError: The compiler refuses the plan's options, the plan's order of
            instructions was not taken, or the program takes too much memory.
    """
    options = {} if plan is None else plan.compiler_options()
    order = None if plan is None else plan.order
    if not on_gpus:
        options.pop(COSTS, None)
        order = None
    with scheduler_pass(order, capture=False) as seen:
        try:
            run, compiled = source.build(options, args, kwargs)
        except LagomError:
            raise
        except Exception as error:
            raise PlanError(
                f"the program of the plan cannot be compiled: {error}"
            ) from error
    if order is not None and seen.outcome != APPLIED:
        raise PlanError(
            f"the plan's order of instructions was not taken: {seen.outcome}"
        )
    needed = _peak_bytes(compiled) if memory_limit is not None else None
    if needed is not None and memory_limit is not None and needed > memory_limit:
        raise PlanError(
            f"the program of the plan needs {in_bytes(needed)} on a device, and may "
            f"take {in_bytes(memory_limit)}"
        )
    return Built(run, collectives_of(compiled.as_text() or ""))


def collectives_of(text: str) -> str:
    """A hash of what a module communicates, in its order, and of no names.

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


def _peak_bytes(compiled: Any) -> int | None:
    stats = compiled.memory_analysis()
    peak = getattr(stats, "peak_memory_in_bytes", 0)
    return peak or None
