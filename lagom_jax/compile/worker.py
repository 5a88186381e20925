"""The child process in which XLA's GPU compiler runs.

`python -m lagom_jax.compile.worker` answers one frame on stdout for every frame on
stdin (see `wire`) until stdin ends. A target that makes XLA abort takes only this
process with it, and a process that dies takes its worker along.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from lagom_jax.compile import _jaxlib, partitioning, stand_ins, wire

if TYPE_CHECKING:
    from lagom_jax.compile.scheduler_pass import SchedulerPass

_STAND_INS = stand_ins.StandIns()
# From <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until there are no more."""
    ready = False
    while (frame := wire.unpack(requests)) is not None:
        try:
            # An installation that does not work is an answer, too.
            if not ready:
                _use_rules_of_the_parent(requests, answers)
                ready = True
            request, module = frame
            answer = _try_options if "each_option" in request else _compile
            header, payload = answer(request, module)
        except Exception as error:
            header, payload = (
                {"ok": False, "type": type(error).__name__, "message": str(error)},
                b"",
            )
        answers.write(wire.pack(header, payload))
        answers.flush()


def _use_rules_of_the_parent(requests: BinaryIO, answers: BinaryIO) -> None:
    """Has XLA ask the process that sends requests how calls are partitioned."""

    def exchange(question: dict[str, Any], payload: bytes) -> Any:
        answers.write(wire.pack(question, payload))
        answers.flush()
        frame = wire.unpack(requests)
        if frame is None:
            raise EOFError("the process that asked for this has ended")
        return frame

    def register(targets: tuple[str, ...]) -> None:
        _STAND_INS.register(stand_ins.needing(targets))

    partitioning.use_rules(partitioning.rules_that_ask(exchange, register))


def _compile(request: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    began = time.perf_counter()
    devices = _devices(request)
    ready = time.perf_counter()
    size = len(payload) - request.get("scheduled_size", 0)
    module, scheduled = payload[:size], payload[size:]
    found, failed = None, ""
    if scheduled:
        try:
            found = _in_another_order(request, scheduled, devices)
        except Exception as error:
            # A compile of the whole step is right wherever this is not.
            failed = f"{type(error).__name__}: {error}"
    if found is None:
        with schedule_pass(request) as seen:
            executable = _executable(request, module, devices, request["options"])
        compiled = time.perf_counter()
        result = _only_module(executable)
    else:
        executable, seen, result = found
        compiled = time.perf_counter()
    serialised = time.perf_counter()
    return {
        "ok": True,
        "device_kind": devices[0].device_kind,
        "memory": _memory(executable.get_compiled_memory_stats()),
        "start_seconds": ready - began,
        "compile_seconds": compiled - ready,
        "serialise_seconds": serialised - compiled,
        "only_reordered": found is not None,
        "reordering_failed": failed,
        **(_schedule(seen, result) if seen is not None else {}),
    }, result + ((seen and seen.before) or b"")


def _only_module(executable: Any) -> bytes:
    modules = executable.hlo_modules()
    if len(modules) != 1:
        raise RuntimeError(f"one module was compiled into {len(modules)}")
    return modules[0].as_serialized_hlo_module_proto()


def _in_another_order(
    request: dict[str, Any], scheduled: bytes, devices: list[Any]
) -> tuple[Any, SchedulerPass, bytes] | None:
    """The executable, the pass and the module of a step that was scheduled before.

    None where the order is not taken; a compile of the whole step says why.
    """
    from lagom_jax.compile import reordering
    from lagom_jax.compile.scheduler_pass import SchedulerPass, placed
    from lagom_jax.plan.order import ScheduleEdit
    from lagom_jax.typed_json import typed

    seen = SchedulerPass(typed(ScheduleEdit, request["order"]), request["capture"])
    moved = seen.transform(scheduled)
    if moved is None:
        return None
    program, given, made = reordering.placeholder(scheduled, len(devices))
    asked = {
        **request,
        "tuple_args": False,
        "propagate_to_inputs": (False,) * given,
        "propagate_to_outputs": (False,) * made,
    }
    with placed(reordering.without_frames(moved)):
        executable = _executable(asked, program, devices, request["options"])
    result = reordering.with_frames(_only_module(executable), scheduled)
    return executable, seen, result


@contextlib.contextmanager
def schedule_pass(request: dict[str, Any]) -> Iterator[SchedulerPass | None]:
    """A pass after the scheduler, if an order or the schedule itself is asked for.

    Args:
        request: Holds `order`, a `ScheduleEdit` as JSON, or None, and
            `capture`.

    Yields:
        What the pass does; None where none is needed.
    """
    order, capture = request["order"], request["capture"]
    if order is None and not capture:
        yield None
        return
    from lagom_jax.compile.scheduler_pass import scheduler_pass
    from lagom_jax.plan.order import ScheduleEdit
    from lagom_jax.typed_json import typed

    edit = None if order is None else typed(ScheduleEdit, order)
    with scheduler_pass(edit, capture) as seen:
        yield seen


def _schedule(seen: SchedulerPass, result: bytes) -> dict[str, Any]:
    from lagom_jax.compile.scheduled_order import ScheduledOrder
    from lagom_jax.typed_json import plain

    return {
        "order_outcome": plain(seen.outcome),
        "schedule_fingerprint": seen.fingerprint,
        "scheduled_size": len(seen.before or b""),
        "donation_lost": seen.donates and not ScheduledOrder.of(result).donates,
    }


def _try_options(
    request: dict[str, Any], module: bytes
) -> tuple[dict[str, Any], bytes]:
    """The compiler's refusal of each option by itself; empty where it takes it."""
    devices = _devices(request)
    # Without options first: what fails here is no option's fault.
    _executable(request, module, devices, {})
    refusals: list[str] = []
    for name, value in request["each_option"]:
        try:
            _executable(request, module, devices, {name: value})
            refusals.append("")
        except Exception as error:
            refusals.append(str(error) or type(error).__name__)
    return {"ok": True, "refusals": refusals}, b""


def _devices(request: dict[str, Any]) -> list[Any]:
    """The devices to compile for, in the order of the partitions."""
    devices = _jaxlib.devices(request["topology"], request["target_text"])
    platforms = {device.platform for device in devices}
    if not platforms <= {"gpu", "cuda"}:
        raise RuntimeError(f"the devices to compile for are no GPUs: {platforms}")
    order = request["device_order"]
    if sorted(order) != list(range(len(devices))):
        raise RuntimeError(
            f"topology {request['topology']} has {len(devices)} devices, the step "
            f"asks for {len(order)}"
        )
    return [devices[index] for index in order]


def _executable(
    request: dict[str, Any], module: bytes, devices: list[Any], options: dict[str, Any]
) -> Any:
    _STAND_INS.register(stand_ins.needing(request["custom_calls"]))
    for name in request["batch_partitionable"]:
        _jaxlib.register_batch_partitionable(name)
    made = _jaxlib.compile_options(
        [device.id for device in devices],
        tuple_args=request["tuple_args"],
        propagate_to_inputs=request["propagate_to_inputs"],
        propagate_to_outputs=request["propagate_to_outputs"],
        options=options,
        settings=request["settings"],
    )
    while True:
        try:
            return _jaxlib.compile_module(module, devices, made)
        except Exception as error:
            missing = stand_ins.lacking(str(error))
            if missing is None:
                raise
            name, typed = missing
            if not _STAND_INS.register([name], typed=typed):
                raise


def _memory(stats: Any) -> dict[str, int]:
    return {
        name: int(value)
        for name in dir(stats)
        if name.endswith("_in_bytes") and isinstance(value := getattr(stats, name), int)
    }


def die_with(parent: int) -> None:
    """Ends this process when the one that started it ends, however that ends.

    A compile reads nothing for minutes, so the end of stdin would be noticed late.
    Linux alone can do this; elsewhere nothing happens.

    Args:
        parent: The id of the process that started this one.
    """
    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        if prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            return
        if os.getppid() != parent:
            # It ended before it could be watched.
            os._exit(1)


def main() -> None:
    """Serves stdin, with everything that others print moved to stderr."""
    if len(sys.argv) > 1:
        die_with(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # What a compile leaves behind is freed by counting; looking for circles in what
    # is imported takes longer than it helps.
    gc.disable()
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
