"""Compiled programs for one set of arguments, as they are and as a plan asks for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

import jax

from lagom_jax.compile._internal import internal
from lagom_jax.compile._jax_internals import lowered_devices
from lagom_jax.compile.lowering import sha256
from lagom_jax.compile.scheduler_pass import scheduler_pass
from lagom_jax.errors import LagomError, PlanError, ToolchainError
from lagom_jax.hlo.communicated import collectives_of
from lagom_jax.plan import Plan
from lagom_jax.plan.evidence import COSTS
from lagom_jax.plan.order import APPLIED
from lagom_jax.runtime.arguments import devices_of, facts_of, trace_context
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.say import LOG
from lagom_jax.units import in_bytes

REFUSALS: Final = (TypeError, ValueError)
"""The errors by which a program refuses arguments, before it takes any of them. An
error of a step that runs is none of these: jax hands it on as a JaxRuntimeError."""


def _nan_found() -> tuple[type[Exception], ...]:
    try:
        return (internal("jax._src.api_util", "InternalFloatingPointError"),)
    except ToolchainError:
        return ()


NAN_FOUND: Final = _nan_found()
"""Errors of programs with `jax_debug_nans` that jax catches in calls of its own."""


class StepCall(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rest: tuple[Any, ...]
    """Those of `args` that are not static: what a compiled program takes."""
    named: dict[str, Any]
    """Likewise of `kwargs`."""

    def of(self, program: Built) -> Any:
        """Runs a compiled program."""
        return program.run(*self.rest, **self.named)

    def deleted(self) -> bool:
        """True if it cannot be made again, since donated arguments are gone."""
        arrays = jax.tree.leaves((self.rest, self.named))
        return any(isinstance(x, jax.Array) and x.is_deleted() for x in arrays)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """A function, traced and lowered for one set of arguments by the jax that runs it.

    Errors of the function or the arguments come from here as they would from a call.
    """

    traced: Any
    """As `lagom_jax.compile.lower` takes it."""
    lowered: Any
    devices: tuple[Any, ...]
    """All devices that the program runs on, in the order of their ids."""
    facts: tuple[tuple[Any, ...], Hashable] | None
    """Of the arrays among the arguments, and of jax's configuration in the caller's
    thread; None where a wrapper sorts its arguments itself."""
    digest: str
    """A hash of the program."""
    inner: str
    """A hash of it without the shardings of its arguments."""
    kind: Hashable
    """Equal for those of one program that can share what is compiled for it."""

    @classmethod
    def of(
        cls, function: Any, args: Any, kwargs: dict[str, Any], rest: Any = None
    ) -> Stages:
        """Traces and lowers a function.

        Args:
            function: What has `lower`.
            args: Arguments of the call.
            kwargs: The same by keyword.
            rest: All of them without static ones; None for a wrapper, of which nobody
                knows what is static.
        """
        # Some, as eqx.filter_jit, have no stage before this.
        traced = getattr(function, "trace", function.lower)(*args, **kwargs)
        lowered = traced.lower() if hasattr(traced, "lower") else traced
        devices = _devices(lowered, (args, kwargs))
        facts, kind = None, object()
        if rest is not None:
            # Afterwards: the first trace of a process changes its context.
            facts = (facts_of(jax.tree.leaves(rest)), trace_context())
            # On one device results say whether arguments were committed to it.
            kind = _signature(traced, lowered), len(devices) > 1 or facts
        return cls(traced, lowered, devices, facts, *_digests(lowered.as_text()), kind)

    def compile(self, options: dict[str, Any] | None = None) -> Any:
        """Compiles the program, with more options than its user gave it."""
        return self.lowered.compile(compiler_options=options or None)

    def text(self) -> str:
        """The compiled program as it is, as text; empty where jax has none."""
        return text_of(self.compile())


def _devices(lowered: Any, arguments: Any) -> tuple[Any, ...]:
    try:
        # A mesh that only the function knows is among the arguments nowhere.
        found = lowered_devices(getattr(lowered, "lowered", lowered))
    except ToolchainError as error:
        LOG.debug("devices are those of the arguments: %s", error)
        leaves = jax.tree.leaves(arguments)
        found = devices_of(getattr(leaf, "sharding", None) for leaf in leaves)
    # Nobody has said where: where jax puts things.
    return found or tuple(jax.devices()[:1])


def _signature(traced: Any, lowered: Any) -> Hashable:
    # A module does not say which numbers are weakly typed, and which are keys.
    types = [
        (one.dtype, getattr(one, "weak_type", False))
        for one in (*traced.jaxpr.in_avals, *traced.jaxpr.out_avals)
    ]
    return lowered.in_tree, lowered.out_tree, tuple(types)


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """A program that is ready to run."""

    run: Any
    """As jax has compiled it; it takes arguments without static ones."""
    collectives: str = ""
    """A hash of what is communicated, and in which order."""


_ENTRY: Final = "  func.func public @main("
_MESH: Final = re.compile(r"  sdy\.mesh @(.*)\n")
_SHARDING: Final = re.compile(
    r'(?:sdy\.sharding = #sdy\.sharding<[^>]*>|mhlo\.sharding = "[^"]*")(?:, )?'
)


def _digests(text: str) -> tuple[str, str]:
    """Hashes of a module, and of it without the shardings of its arguments.

    >>> entry = '  func.func public @main(%a: tensor<8xf32>{}) -> (tensor<8xf32>) {{'
    >>> cut = ' {mhlo.sharding = "{devices=[8]<=[8]}"}'
    >>> one, other = (_digests(entry.format(given)) for given in ("", cut))
    >>> one[0] == other[0], one[1] == other[1]
    (False, True)
    """
    before, entry, rest = text.partition(_ENTRY)
    arguments, arrow, rest = rest.partition(") -> ")
    arguments = _SHARDING.sub("", arguments).replace(", }", "}").replace(" {}", "")
    # Meshes come in the order in which they are met; one without axes cuts nothing.
    meshes = sorted(m for m in _MESH.findall(before) if "= <[]>" not in m)
    inner = (_MESH.sub("", before), *meshes, entry, arguments, arrow, rest)
    return sha256(text), sha256("".join(inner))


def build(
    stages: Stages, plan: Plan, *, on_gpus: bool, memory_limit: int | None
) -> Built:
    """Compiles the program that a plan asks for; nothing is executed.

    Args:
        stages: What to compile.
        plan: The plan.
        on_gpus: Whether it will run on GPUs. Elsewhere the compiler takes the options
            and does nothing about them, and there is no schedule to be changed.
        memory_limit: Bytes that it may take on a device; None where nobody counts.

    Raises:
        PlanError: The compiler refuses the plan's options, the plan's order of
            instructions was not taken, or the program takes too much memory.
    """
    options, order = plan.compiler_options(), plan.order
    # The user's own options, which are pinned, win over a plan's.
    for pinned in plan.holds_for.pinned:
        if pinned.place == "compiler_options":
            options.pop(pinned.name, None)
    if not on_gpus:
        options.pop(COSTS, None)
        order = None
    try:
        # A jax that takes no order of others has that in common with one that takes
        # another: the plan can do without.
        with scheduler_pass(order, capture=False) as seen:
            compiled = stages.compile(options)
    except Exception as error:
        raise PlanError(
            f"the program of the plan cannot be compiled: {error}"
        ) from error
    if order is not None and seen.outcome != APPLIED:
        raise PlanError(
            f"the plan's order of instructions was not taken: {seen.outcome}"
        )
    inner = getattr(compiled, "compiled", compiled)
    stats = inner.memory_analysis() if memory_limit is not None else None
    needed = getattr(stats, "peak_memory_in_bytes", 0)
    if memory_limit is not None and needed > memory_limit:
        raise PlanError(
            f"the program of the plan needs {in_bytes(needed)} on a device, and may "
            f"take {in_bytes(memory_limit)}"
        )
    return Built(compiled, collectives_of(text_of(compiled)))


def text_of(compiled: Any) -> str:
    """A compiled program as text; empty where jax has none."""
    return getattr(compiled, "compiled", compiled).as_text() or ""


def first_step(
    plan: Plan,
    run: Callable[[], Any],
    call: StepCall,
    usual: Callable[..., Any] | None,
    cache: Cache,
) -> tuple[Any, Exception | None]:
    """Runs the first step of a plan's program, with a mark for the next job.

    Args:
        plan: The plan.
        run: Runs its program.
        call: What it is called with.
        usual: The step as it was, which runs instead where the program fails at once;
            None where it must not.
        cache: Where the mark is left if the job ends meanwhile.

    Returns:
        The results, and the error that the program has failed with.
    """
    cache.mark(plan)
    try:
        result = run()
        # What fails on a device is not known before.
        jax.block_until_ready(result)
    except (LagomError, jax.errors.JaxRuntimeError) as error:
        if usual is None or call.deleted():
            raise
        # If that fails, too, it is not the plan's fault.
        return usual(*call.args, **call.kwargs), error
    except BaseException:
        # Not the plan's fault: arguments, or somebody calls the process away.
        cache.survived(plan)
        raise
    cache.survived(plan)
    return result, None
