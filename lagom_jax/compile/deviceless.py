"""XLA's GPU compiler, run for a cluster that need not be there."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lagom_jax.cluster import Cluster, target_config, topology
from lagom_jax.compile import failures
from lagom_jax.compile.collective_matmul_loops import loops_unseen
from lagom_jax.compile.compiler import Compiler
from lagom_jax.compile.lowering import LoweredStep
from lagom_jax.compile.toolchain import Toolchain
from lagom_jax.errors import StepError, StepTypeError
from lagom_jax.plan.order import APPLIED, NOT_MET, OrderOutcome, ScheduleEdit
from lagom_jax.typed_json import plain, typed
from xla_flags import in_effect, pinned_here

LOG = logging.getLogger("lagom_jax")

_TRITON = "xla_gpu_enable_triton_gemm"
_FALLBACK_NOTE = (
    f"compiled with {_TRITON}=false: without a GPU XLA finds no tiles for one of its "
    "own matmul kernels"
)
DEFAULT_TIMEOUT_S = 1800.0

# How XLA begins a line that is a warning or an error.
_WARNING = re.compile(r"[WE]\d{4} ")


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The machines that the compiler compiles for."""

    name: str
    """The user's name for it, as in `h100:8x8`."""
    text: str = dataclasses.field(repr=False)
    """The GPU, as a `GpuTargetConfigProto` in text form."""
    topology: str
    """Slices, hosts per slice and GPUs per host, as in `8x1x8`."""

    @property
    def devices(self) -> int:
        """The number of GPUs.

        Example:
            >>> Target("h100:8x8", "...", "8x1x8").devices
            64
        """
        return math.prod(int(part) for part in self.topology.split("x"))


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on one device, as the compiler assigned its buffers."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    """Outputs that live in the memory of a donated argument."""
    temp_bytes: int
    peak_bytes: int | None
    """The most that is alive at once; None where the compiler does not say."""

    @property
    def kept_bytes(self) -> int:
        """Arguments and results, donated ones once: what no schedule changes.

        Example:
            >>> MemoryUse(100, 60, 50, 30, None).kept_bytes
            110
        """
        return self.argument_bytes + self.output_bytes - self.alias_bytes

    @property
    def most_bytes(self) -> int:
        """All arguments, results and temporary buffers: no step takes more.

        Example:
            >>> MemoryUse(100, 60, 50, 30, None).most_bytes
            140
        """
        return self.kept_bytes + self.temp_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledStep:
    """A step as the GPU compiler scheduled it."""

    module_bytes: bytes = dataclasses.field(repr=False)
    """The scheduled module: a serialised `HloModuleProto`."""
    name: str
    target: str
    device_kind: str
    device_order: tuple[int, ...] = dataclasses.field(repr=False)
    """The device of each partition, counted host by host."""
    memory: MemoryUse
    start_seconds: float
    """Loading the compiler, in the child."""
    compile_seconds: float
    serialise_seconds: float
    versions: dict[str, str]
    options: dict[str, Any]
    """The compiler options in effect, the user's own among them."""
    warnings: tuple[str, ...] = ()
    """The compiler's own warnings, as when memory cannot be made to suffice."""
    notes: tuple[str, ...] = ()
    """Departures from the request."""
    scheduled_bytes: bytes | None = dataclasses.field(default=None, repr=False)
    """The module as XLA's scheduler left it, before an order was applied and before the
    passes that follow; only where it was to be captured."""
    schedule_fingerprint: str | None = None
    """Of that schedule; None without order and capture."""
    order_outcome: OrderOutcome | None = None
    """None without an order."""
    stored: bool = False
    """True if it was compiled before and has been kept; its times are 0 then."""


def compile_step(
    lowered: LoweredStep,
    target: Cluster | Target,
    options: Mapping[str, object] | None = None,
    *,
    order: ScheduleEdit | None = None,
    capture: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    compiler: Compiler | None = None,
) -> CompiledStep:
    """Compiles a lowered step for a cluster, in a process of its own.

    What was compiled before is taken from the compiler's store.

    Args:
        lowered: What `lower` returned.
        target: Where the step would run, a cluster or what the compiler is told about
            one; it must have as many GPUs as the step's mesh has devices.
        options: Compiler options by name; `fdo_profile` takes bytes. What the step's
            own `jax.jit(compiler_options=...)` says wins over them.
        order: Another order of instructions than the one XLA's scheduler chooses. One
            that cannot be applied is left out, with a note.
        capture: Whether to keep the module as the scheduler left it.
        timeout_s: After how many seconds to give up.
        compiler: Whose processes and store to use; by default new processes, and the
            usual store.

    Returns:
        The scheduled module and what the compiler says about its memory.

    Raises:
        ToolchainError: The GPU compiler is missing or its parts do not fit together.
        CompileError: The compiler refused the program, died, or took too long.
        StepError: The step is for another number of devices, or an option is unknown.
    """
    if compiler is None:
        with Compiler() as compiler:
            return compile_step(
                lowered,
                target,
                options,
                order=order,
                capture=capture,
                timeout_s=timeout_s,
                compiler=compiler,
            )
    toolchain = compiler.toolchain.require()
    if isinstance(target, Cluster):
        text = target_config(target.gpu, toolchain.version("jaxlib"))
        target = Target(target.name, text, topology(target))
    _check_device_count(lowered, target)
    effective = _checked_options({**(options or {}), **lowered.compiler_options})
    request = _request(lowered, target, effective, order, capture)
    answer = _found(compiler, request, lowered)
    stored = answer is not None
    if answer is None:
        answer = _compiled(compiler, request, lowered, target, timeout_s)
    header, payload = answer
    scheduled_at = len(payload) - header.get("scheduled_size", 0)
    captured = lowered.locations.restored(payload[scheduled_at:]) if capture else None
    return CompiledStep(
        module_bytes=lowered.locations.restored(payload[:scheduled_at]),
        name=lowered.name,
        target=target.name,
        device_kind=header["device_kind"],
        device_order=lowered.device_order,
        memory=_memory(header["memory"]),
        start_seconds=0.0 if stored else header["start_seconds"],
        compile_seconds=0.0 if stored else header["compile_seconds"],
        serialise_seconds=0.0 if stored else header["serialise_seconds"],
        versions=toolchain.versions,
        options={**effective, **header["fallback"]},
        notes=(
            *(_FALLBACK_NOTE for _ in header["fallback"]),
            *_order_notes(header, order, toolchain),
            *loops_unseen(
                in_effect(pinned_here(effective)).values(), lowered.num_partitions
            ),
        ),
        warnings=tuple(header["warnings"]),
        scheduled_bytes=captured,
        schedule_fingerprint=header.get("schedule_fingerprint"),
        order_outcome=_outcome(header),
        stored=stored,
    )


def _request(
    lowered: LoweredStep,
    target: Target,
    options: dict[str, Any],
    order: ScheduleEdit | None,
    capture: bool,
) -> dict[str, Any]:
    return {
        "target_text": target.text,
        "topology": target.topology,
        "device_order": lowered.device_order,
        "tuple_args": lowered.tuple_args,
        "propagate_to_inputs": lowered.allow_propagation_to_inputs,
        "propagate_to_outputs": lowered.allow_propagation_to_outputs,
        "options": options,
        "custom_calls": lowered.custom_calls,
        "batch_partitionable": lowered.batch_partitionable,
        "settings": lowered.settings,
        "order": None if order is None else plain(order),
        "capture": capture,
    }


def _found(
    compiler: Compiler, request: dict[str, Any], lowered: LoweredStep
) -> tuple[dict[str, Any], bytes] | None:
    """The stored result of the same compile, if any.

    One with the captured module also serves a request without it.
    """
    ways = [request] if request["capture"] else [request, {**request, "capture": True}]
    for way in ways:
        key = None if lowered.rules else compiler.key(way, lowered.digest)
        if key is None or compiler.store is None:
            return None
        found = compiler.store.find(key)
        if found is not None:
            return found
    return None


def _compiled(
    compiler: Compiler,
    request: dict[str, Any],
    lowered: LoweredStep,
    target: Target,
    timeout_s: float,
) -> tuple[dict[str, Any], bytes]:
    """The compiler's result, with its warnings and the options added as a fallback."""
    fallback: dict[str, Any] = {}
    before = None
    if request["order"] is not None and not lowered.rules:
        before = compiler.schedule_of(request, lowered.digest)
    if before is None:
        answer = compiler.ask(
            request, lowered.stablehlo, timeout_s=timeout_s, rules=lowered.rules
        )
    else:
        fallback = before.header["fallback"]
        asked = {
            **request,
            "options": {**request["options"], **fallback},
            "scheduled_size": len(before.module),
        }
        answer = compiler.ask(
            asked, lowered.stablehlo + before.module, timeout_s=timeout_s
        )
        if answer.header is None and not answer.timed_out:
            # XLA did not survive a program of ours; it may survive the step.
            LOG.info("%s: compiled whole, since XLA died of an order", lowered.name)
            del asked["scheduled_size"]
            answer = compiler.ask(asked, lowered.stablehlo, timeout_s=timeout_s)
    if failures.lacks_tiles(answer) and _TRITON not in request["options"]:
        # With a GPU XLA would have tried which tiles its own matmul kernels can take.
        fallback = {_TRITON: False}
        options = {**request["options"], **fallback}
        answer = compiler.ask(
            {**request, "options": options},
            lowered.stablehlo,
            timeout_s=timeout_s,
            rules=lowered.rules,
        )
    if answer.header is None or not answer.header["ok"]:
        raise failures.explain(answer, lowered.name, target.name, timeout_s)
    if failed := answer.header.get("reordering_failed"):
        LOG.info("%s: compiled whole for a new order: %s", lowered.name, failed)
    warned = list(filter(_WARNING.match, answer.printed))
    if before is not None and answer.header["only_reordered"]:
        warned = before.header["warnings"]
    header = {**answer.header, "fallback": fallback, "warnings": warned}
    if request["order"] is None and not lowered.rules:
        compiler.remember(request, lowered.digest, header, answer.payload)
    # Rules are code, of which the program says nothing. And a schedule that was not met
    # may be met when asked again.
    by_chance = _outcome(header) == NOT_MET
    key = None
    if not lowered.rules and not by_chance:
        key = compiler.key(request, lowered.digest)
    if key is not None and compiler.store is not None:
        compiler.store.keep(key, header, answer.payload)
    return header, answer.payload


def _order_notes(
    header: dict[str, Any], order: ScheduleEdit | None, toolchain: Toolchain
) -> Iterator[str]:
    outcome = _outcome(header)
    if order is not None and outcome == NOT_MET:
        yield (
            f"the order of instructions was left out: it is for the schedule "
            f"{order.fingerprint[:12]}, and XLA's scheduler made "
            f"{(header['schedule_fingerprint'] or 'none')[:12]}"
        )
    elif outcome not in (None, APPLIED):
        yield f"the order of instructions was left out: {outcome}"
    if header.get("donation_lost"):
        yield (
            f"jaxlib {toolchain.version('jaxlib')} forgets which arguments are donated "
            "when the order of instructions is changed: the compiled step keeps "
            "arguments and results apart, and its memory is counted so"
        )


def _outcome(header: dict[str, Any]) -> OrderOutcome | None:
    found = header.get("order_outcome")
    return None if found is None else typed(OrderOutcome, found)


def _check_device_count(lowered: LoweredStep, target: Target) -> None:
    if lowered.device_count == target.devices:
        return
    gpus = f"{target.devices} GPU" + "s" * (target.devices != 1)
    if lowered.device_count == 1:
        raise StepError(
            f"{lowered.name} is lowered for one device, but {target.name} has {gpus}: "
            "give its arguments shardings over a mesh of that many devices, as in "
            "jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(AbstractMesh("
            f"({target.devices},), ('data',)), P('data'))), which needs no device. "
            "For one GPU, name a cluster of one."
        )
    axes = ", ".join(f"{name}={size}" for name, size in lowered.mesh) or "unnamed"
    raise StepError(
        f"{lowered.name} is lowered for {lowered.device_count} devices (mesh {axes}), "
        f"but {target.name} has {gpus}: name a cluster of {lowered.device_count}, or "
        f"give the mesh {target.devices} devices (jax.sharding.AbstractMesh needs none "
        "to exist)."
    )


def _checked_options(options: dict[str, object]) -> dict[str, Any]:
    for name, value in options.items():
        if not isinstance(value, (bool, int, float, str, bytes)):
            raise StepTypeError(
                f"compiler option {name} is {value!r} of type {type(value).__name__}: "
                "options are bool, int, float or str, and fdo_profile is bytes."
            )
        if isinstance(value, bytes) != (name == "fdo_profile"):
            expected = "bytes" if name == "fdo_profile" else "bool, int, float or str"
            raise StepTypeError(
                f"compiler option {name} is {type(value).__name__}, not {expected}."
            )
    return options


def _memory(stats: dict[str, int]) -> MemoryUse:
    return MemoryUse(
        argument_bytes=stats["argument_size_in_bytes"],
        output_bytes=stats["output_size_in_bytes"],
        alias_bytes=stats["alias_size_in_bytes"],
        temp_bytes=stats["temp_size_in_bytes"],
        peak_bytes=stats.get("peak_memory_in_bytes") or None,
    )
