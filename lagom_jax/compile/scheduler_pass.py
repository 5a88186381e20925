"""A pass of our own after XLA's scheduler: keeps what it left, applies an order.

Where it stands in XLA's GPU compiler: behind copy insertion and the scheduler, and
before asynchronous collectives that hide nothing are made synchronous, before
rematerialisation, the wrapping of instructions into fusions, and dynamic memcpys.

So the final module has the sequences that the pass left, instruction by instruction
and under the same names, apart from these differences (seen with jax 0.10.2 and
0.12.0.1):

- a collective whose result is waited for at once is made synchronous: its start moves
  down to its done, past instructions that take no time, and in jax 0.12 the two
  become one instruction with a name of its own, which also ends the computation that
  held it;
- optimisation barriers are gone, and users read their operands.

A module that XLA had to rematerialise, which adds instructions, was not among these.

jax 0.10.2 forgets which arguments are donated when a pass has changed the module, for
it puts another entry computation in the place of the old one; an order that keeps
every instruction in its place therefore hands nothing back.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from lagom_jax.compile import _plugin_pass
from lagom_jax.compile.scheduled_order import ScheduledOrder
from lagom_jax.compile.schema import STREAM_ATTRIBUTE, message_class
from lagom_jax.plan.order import APPLIED, NOT_MET, OrderOutcome, ScheduleEdit

# XLA numbers its streams for communication from 0.
_SECOND = "1"

# A registration belongs to the process: whoever comes second waits.
_lock = threading.Lock()


class SchedulerPass:
    """The outcome of the pass; read it when the block has ended.

    Attributes:
        outcome: The answer to the order; None without one.
        before: The module as the scheduler left it, serialised; only with capture.
        fingerprint: Of its schedule; None where nothing was compiled.
        donates: Whether results of that module live in the memory of arguments.
    """

    def __init__(self, edit: ScheduleEdit | None, capture: bool) -> None:
        self.outcome: OrderOutcome | None = None if edit is None else NOT_MET
        self.before: bytes | None = None
        self.fingerprint: str | None = None
        self.donates = False
        self._edit = edit
        self._capture = capture
        self._size = -1
        self._interrupted: BaseException | None = None

    def transform(self, module: bytes) -> bytes | None:
        """The changed module, or None; never raises, for the caller is in C++."""
        try:
            return self._transform(module)
        except Exception as error:
            why = f"the pass failed: {type(error).__name__}: {error}"
            self.outcome = OrderOutcome("refused", why)
        except BaseException as interruption:
            self._interrupted = interruption
        return None

    def raise_if_interrupted(self) -> None:
        """Raises what could not be raised inside the compiler, as Ctrl-C."""
        if self._interrupted is not None:
            raise self._interrupted

    def _transform(self, module: bytes) -> bytes | None:
        order = ScheduledOrder.of(module)
        fingerprint = order.fingerprint
        edit = self._edit
        met = edit is not None and edit.fingerprint == fingerprint
        # From jax 0.12 on every kernel comes by as a module of its own.
        if met or order.size > self._size:
            self._size = order.size
            self.fingerprint, self.donates = fingerprint, order.donates
            self.before = module if self._capture else None
        if edit is None or not met:
            return None
        refused = order.objection(edit)
        if refused is not None:
            self.outcome = OrderOutcome("refused", refused)
            return None
        changed = None if edit.keeps_everything else _reordered(module, order, edit)
        self.outcome = APPLIED
        return changed


@contextlib.contextmanager
def scheduler_pass(edit: ScheduleEdit | None, capture: bool) -> Iterator[SchedulerPass]:
    """Compiles inside the block see their schedule kept, and put into another order.

    Only one such block runs at a time in a process, others wait. jax's persistent
    compilation cache is off inside, for its keys do not know of passes. A compile
    that another thread begins meanwhile without a block of its own goes by the same
    pass; it is changed only if it has the very schedule that the order was made for.

    Args:
        edit: The order to apply.
        capture: Whether to keep the module as the scheduler left it.

    Yields:
        What the pass does, to be read after the compile.

    Raises:
        ToolchainError: This jax offers no way to register a pass.

    Example:
        >>> with scheduler_pass(None, capture=False) as seen:
        ...     pass
        >>> seen.outcome, seen.before, seen.fingerprint
        (None, None, None)
    """
    seen = SchedulerPass(edit, capture)
    if edit is None and not capture:
        yield seen
        return
    with (
        _lock,
        _without_persistent_cache(),
        _plugin_pass.registered(seen.transform),
    ):
        yield seen
    seen.raise_if_interrupted()


@contextlib.contextmanager
def placed(module: bytes) -> Iterator[None]:
    """A compile inside the block goes on with a module in the place of its own.

    Args:
        module: The scheduled module, of the same name as the program that is compiled.

    Raises:
        LookupError: The block ended, and the module was not taken.
    """
    left = [module]
    name = message_class("HloModuleNameProto").FromString(module).name

    def transform(found: bytes) -> bytes | None:
        # From jax 0.12 on every kernel comes by as a module of its own.
        said = message_class("HloModuleNameProto").FromString(found).name
        return left.pop() if left and said == name else None

    with _lock, _without_persistent_cache(), _plugin_pass.registered(transform):
        yield
    if left:
        raise LookupError("nothing was scheduled")


@contextlib.contextmanager
def _without_persistent_cache() -> Iterator[None]:
    # Without jax, as in a process that only compiles, there is none.
    if "jax" not in sys.modules:
        yield
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    # Whether the cache is used is decided once in a process, until it is reset.
    config: Any = jax.config
    enabled = config.jax_enable_compilation_cache
    config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def _reordered(module: bytes, order: ScheduledOrder, edit: ScheduleEdit) -> bytes:
    """The module with new sequences, verified by XLA itself."""
    hlo: Any = importlib.import_module("jaxlib._hlo")
    parsed = hlo.HloModule.from_serialized_hlo_module_proto(module)
    schedule = parsed.schedule()
    computations = {found.name: found for found in parsed.computations()}
    for number, permutation in edit.sequences.items():
        computation = computations[order.computations[number].name]
        sequence = schedule.sequence(computation)
        schedule.set_sequence(computation, [sequence[place] for place in permutation])
    # No `update()`: in jax 0.12 it mends an impossible order, where it should refuse.
    schedule.verify()
    parsed.set_schedule(schedule)
    return _on_streams(parsed.as_serialized_hlo_module_proto(), order, edit)


def _on_streams(module: bytes, order: ScheduledOrder, edit: ScheduleEdit) -> bytes:
    """The module with launches that name the second stream for communication."""
    if not edit.second_stream:
        return module
    chosen = {
        (made.name, made.names[place])
        for made, places in (
            (order.computations[number], places)
            for number, places in edit.second_stream.items()
        )
        for place in places
    }
    parsed = message_class("HloModuleProto").FromString(module)
    for computation in parsed.computations:
        for instruction in computation.instructions:
            if (computation.name, instruction.name) in chosen:
                instruction.frontend_attributes.map.add(
                    key=STREAM_ATTRIBUTE, value=_SECOND
                )
    return parsed.SerializeToString()
