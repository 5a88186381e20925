"""Questions about the machine that a program asks, answered as on a cluster.

A step may ask for the platform, the kind of the devices or their number, and be
another program for another answer. Inside `questions_asked` the code of users and of
their libraries is answered as the cluster would answer, while jax itself is told the
truth: devices stay those that are here, so that meshes can be made of them.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import jax

from lagom_jax.cluster import Cluster
from lagom_jax.compile._internal import internal
from lagom_jax.compile.asking_code import asking_frame, is_lookup, place_of

_GPU: Final = (None, "gpu", "cuda")
_NAMED: Final = 4
# A look at more variables than this from one place is a look at all of them.
_VARIABLES: Final = 8

_cluster: contextvars.ContextVar[Cluster | None] = contextvars.ContextVar(
    "lagom_jax_cluster", default=None
)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question about the machine, and its answer.

    Example:
        >>> str(Question("model.py:12", "the platform", "gpu"))
        'model.py:12 asked for the platform (gpu)'
    """

    place: str
    """File and line of the code that asked."""
    subject: str
    answer: str
    verb: str = "asked for"

    def __str__(self) -> str:
        """The question in words."""
        return f"{self.place} {self.verb} {self.subject} ({self.answer})"


@dataclasses.dataclass(frozen=True, slots=True)
class Questions:
    """The questions that were asked."""

    as_there: list[Question] = dataclasses.field(default_factory=list[Question])
    """Those about the machine that were answered as on the cluster."""
    as_here: list[Question] = dataclasses.field(default_factory=list[Question])
    """Those that were not, although the cluster has another answer."""
    environment: list[Question] = dataclasses.field(default_factory=list[Question])
    """Environment variables that were read."""

    def notes(self, cluster: str) -> tuple[str, ...]:
        """Lines about what was answered well.

        Args:
            cluster: The name of the cluster whose answers were given.

        Example:
            >>> asked = Questions([Question("a.py:1", "the platform", "gpu")])
            >>> asked.notes("h100:1x8")
            ('traced as on h100:1x8: a.py:1 asked for the platform (gpu)',)
        """
        lines: list[str] = []
        if self.as_there:
            lines.append(f"traced as on {cluster}: {_listed(self.as_there)}")
        places: dict[str, list[Question]] = {}
        for question in self.environment:
            places.setdefault(question.place, []).append(question)
        few = [asked for asked in places.values() if len(asked) <= _VARIABLES]
        if read := [question for asked in few for question in asked]:
            lines.append(
                f"traced with the environment of this process: {_listed(read)}"
            )
        return tuple(lines)

    def cautions(self, when: str) -> tuple[str, ...]:
        """Lines about what was answered as on this machine.

        Args:
            when: The moment at which it was asked.

        Example:
            >>> asked = Questions(as_here=[Question("a.py:1", "the platform", "cpu")])
            >>> asked.cautions("before it was traced")
            ('before it was traced, a.py:1 asked for the platform (cpu), and was \
answered as on this machine: if the step depends on that, it is another program here',)
        """
        if not self.as_here:
            return ()
        return (
            f"{when}, {_listed(self.as_here)}, and was answered as on this machine: if "
            "the step depends on that, it is another program here",
        )


def _listed(questions: list[Question]) -> str:
    shown = ", ".join(map(str, questions[:_NAMED]))
    more = len(questions) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown


@contextlib.contextmanager
def traced_for(cluster: Cluster) -> Iterator[None]:
    """Steps that are lowered in this block are for a cluster.

    Args:
        cluster: The cluster whose answers they get.

    Example:
        >>> with traced_for(Cluster.parse("h100:1x8")):
        ...     current_cluster().name
        'h100:1x8'
    """
    token = _cluster.set(cluster)
    try:
        yield
    finally:
        _cluster.reset(token)


def current_cluster() -> Cluster | None:
    """The cluster that steps are traced for, if any."""
    return _cluster.get()


@contextlib.contextmanager
def questions_asked(
    cluster: Cluster, *, answered: bool = True, processes: int | None = None
) -> Iterator[Questions]:
    """Hears what code asks about the machine.

    Args:
        cluster: The machine that the program is for.
        answered: Whether it is answered as on that machine. If not, questions that
            would be answered otherwise there are written down.
        processes: The number of processes that own its devices; by default there is
            one for each host.

    Yields:
        The questions so far.

    Example:
        >>> with questions_asked(Cluster.parse("h100:2x8")) as asked:
        ...     jax.default_backend(), jax.device_count(), jax.process_count()
        ('gpu', 16, 2)
        >>> [question.answer for question in asked.as_there]
        ['gpu', '16', '2']
        >>> jax.default_backend()
        'cpu'
    """
    asked = Questions()
    # Two at once would each put back what the other had put there.
    with _ONE_AT_A_TIME, contextlib.ExitStack() as stack:
        owners = processes or cluster.hosts
        machine = _ClusterMachine(cluster, owners, asked, answered)
        stack.callback(machine.end)
        if answered:
            # Functions that were traced before, with other answers, are traced again.
            stack.enter_context(_told((cluster.name, owners)))
            stack.enter_context(_environment(machine, asked))
        stack.enter_context(_device_attributes(machine))
        stack.enter_context(_public_functions(machine))
        yield asked


_told: Any = internal(jax, "make_user_context")(None)
_ONE_AT_A_TIME: Final = threading.RLock()


class _ClusterMachine:
    """The cluster's answers."""

    def __init__(
        self, cluster: Cluster, processes: int, asked: Questions, answered: bool
    ) -> None:
        self.cluster, self.processes = cluster, processes
        self.answered = answered
        self._asked = asked
        self._thread: int | None = threading.get_ident()

    @property
    def local_devices(self) -> int:
        """The number of devices that each process owns."""
        return self.cluster.devices // self.processes

    @property
    def is_asked(self) -> bool:
        """True in the thread that traces, for as long as it does.

        Other threads go on with their own work meanwhile, and a module that is imported
        meanwhile keeps what it took.
        """
        return self._thread == threading.get_ident()

    def end(self) -> None:
        """Nobody is answered any more."""
        self._thread = None

    def answer(self, frame: FrameType, subject: str, here: Any, there: Any) -> Any:
        """The answer to a question, which is written down.

        Args:
            frame: The frame of the code that asks.
            subject: The thing asked for.
            here: The true answer.
            there: The answer on the cluster.
        """
        if here == there and type(here) is type(there):
            return here
        if not self.answered:
            self.answer_here(frame, subject, here)
            return here
        _note(self._asked.as_there, Question(place_of(frame), subject, str(there)))
        return there

    def answer_here(self, frame: FrameType, subject: str, here: Any) -> None:
        """Writes down a question that is answered as on this machine."""
        _note(self._asked.as_here, Question(place_of(frame), subject, str(here)))

    def attribute(self, device: Any, name: str) -> Any:
        """An attribute of a device of the cluster."""
        gpu = self.cluster.gpu
        if name == "process_index":
            return device.id // self.local_devices
        if name == "local_hardware_id":
            return device.id % self.local_devices
        return {
            "platform": "gpu",
            "device_kind": gpu.xla_device_name,
            "compute_capability": gpu.compute_capability.rstrip("abcdefgh"),
        }[name]


def _note(noted: list[Question], question: Question) -> None:
    if question not in noted:
        noted.append(question)


# Platform and kind are what programs differ by; the rest decides about input data.
_TOLD_APART: Final = ("platform", "device_kind", "compute_capability")
_ATTRIBUTES: Final = (*_TOLD_APART, "process_index", "local_hardware_id")


@contextlib.contextmanager
def _device_attributes(machine: _ClusterMachine) -> Iterator[None]:
    """Attributes of devices, for everybody but jax."""
    # The class itself, since to ask for a device would start jax.
    kind: Any = jax.Device
    before = {name: vars(kind).get(name) for name in _ATTRIBUTES}
    names = _ATTRIBUTES if machine.answered else _TOLD_APART
    try:
        for name in names:
            setattr(kind, name, property(_reader(machine, name, before[name])))
        yield
    finally:
        for name in names:
            if before[name] is None:
                delattr(kind, name)
            else:
                setattr(kind, name, before[name])


def _reader(machine: _ClusterMachine, name: str, before: Any) -> Callable[[Any], Any]:
    def read(device: Any) -> Any:
        frame = asking_frame(sys._getframe(1)) if machine.is_asked else None
        here = None
        if before is not None:
            here = before.__get__(device)
        if frame is None:
            if before is None:
                raise AttributeError(name)
            return here
        there = machine.attribute(device, name)
        given = machine.answer(
            frame, f"the {name.replace('_', ' ')} of a device", here, there
        )
        if given is None:
            raise AttributeError(name)
        return given

    return read


@contextlib.contextmanager
def _public_functions(machine: _ClusterMachine) -> Iterator[None]:
    """Functions of jax that say what machine this is, wherever they were imported."""
    replaced: dict[int, Callable[..., Any]] = {}
    originals: list[Any] = []
    for name in _ANSWERS if machine.answered else ("default_backend",):
        original = getattr(jax, name)
        originals.append(original)
        replaced[id(original)] = _replacement(machine, name, original)
    changed: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if names is None or _is_inside_jax(getattr(module, "__name__", "")):
                continue
            for name, value in list(names.items()):
                if id(value) in replaced:
                    changed.append((names, name, value))
                    names[name] = replaced[id(value)]
        yield
    finally:
        for names, name, value in changed:
            names[name] = value


def _is_inside_jax(name: str) -> bool:
    return name.startswith(("jax._src.", "jaxlib"))


def _replacement(
    machine: _ClusterMachine, name: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def asked(*args: Any, **kwargs: Any) -> Any:
        frame = asking_frame(sys._getframe(1)) if machine.is_asked else None
        backend = kwargs.get("backend", args[0] if args else None)
        if name == "local_devices":
            backend = kwargs.get("backend", args[1] if len(args) > 1 else None)
        named = backend is None or isinstance(backend, str)
        if frame is None or not named or backend not in _GPU:
            return original(*args, **kwargs)
        there = _ANSWERS[name](machine)
        if name == "local_devices":
            number = kwargs.get("process_index", args[0] if args else None) or 0
            each = machine.local_devices
            return jax.devices()[number * each : (number + 1) * each]
        here = original()
        if name == "devices":
            here = here[: machine.cluster.devices]
            if len(here) != machine.cluster.devices:
                machine.answer_here(frame, "jax.devices()", f"{len(here)} of them")
            return here
        return machine.answer(frame, f"jax.{name}()", here, there)

    return asked


_ANSWERS: Final[dict[str, Callable[[_ClusterMachine], Any]]] = {
    "default_backend": lambda machine: "gpu",
    "devices": lambda machine: None,
    "local_devices": lambda machine: None,
    "device_count": lambda machine: machine.cluster.devices,
    "local_device_count": lambda machine: machine.local_devices,
    "process_count": lambda machine: machine.processes,
    "process_index": lambda machine: 0,
}


@contextlib.contextmanager
def _environment(machine: _ClusterMachine, asked: Questions) -> Iterator[None]:
    """Environment variables, which are answered as they are and written down."""
    kind: Any = type(os.environ)
    before = kind.__getitem__

    def read(variables: Any, name: Any) -> Any:
        frame = sys._getframe(1)
        while frame is not None and is_lookup(frame):
            frame = frame.f_back
        asking = asking_frame(frame) if machine.is_asked else None
        try:
            found = before(variables, name)
        except KeyError:
            found = None
        if asking is not None and isinstance(name, str):
            question = Question(
                place_of(asking),
                f"the variable {name}",
                "not set" if found is None else found,
                "read",
            )
            _note(asked.environment, question)
        if found is None:
            return before(variables, name)
        return found

    try:
        kind.__getitem__ = read
        yield
    finally:
        kind.__getitem__ = before
