"""The subject of a command: a dump, a model of the zoo, or a step of the user's own."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.commands.entered import enter
from lagom_jax.commands.terminal import import_jax
from lagom_jax.dumped import step_in
from lagom_jax.errors import LagomError
from lagom_jax.hlo.files import HloBytes, read_program

_DUMP_ENDINGS = (
    *(".txt", ".pb", ".hlo", ".gz", ".pbtxt", ".log"),
    *(".mlir", ".mlirbc", ".stablehlo", ".export"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A step to compile, or a dump to read."""

    name: str
    dump: HloBytes | None = None
    step: Any = None
    arguments: tuple[Any, ...] = ()
    named_arguments: Mapping[str, Any] = dataclasses.field(
        default_factory=dict[str, Any]
    )
    description: str = ""
    """A description in a line; may be empty."""
    cautions: tuple[str, ...] = ()
    """Reasons why it may be another program than on the cluster."""


def find_subject(
    text: str, cluster: Cluster, zoo_options: Mapping[str, Any]
) -> Subject:
    """Finds out what the user means.

    Args:
        text: A path, a model's name, or `MODULE:FACTORY`.
        cluster: What the step will be compiled for.
        zoo_options: Options for a model of the zoo.

    Raises:
        LagomError: There is nothing of that name, or options were given that only
            models of the zoo have.
    """
    if not text.strip():
        raise LagomError(
            "what to report on is empty; name a model of the zoo, FILE.py:FACTORY, or "
            "a dump"
        )
    if text.endswith(".py"):
        raise LagomError(
            f"{text} is a program, not a dump; name the function in it that returns "
            f"the step and its arguments: {text}:make_step"
        )
    if text == "-" or Path(text).exists() or text.endswith(_DUMP_ENDINGS):
        _refuse(zoo_options, "a dump")
        return _dump(text)
    module, colon, factory = text.rpartition(":")
    import_jax(cluster.devices if colon else None)
    if colon:
        _refuse(zoo_options, "a step of your own")
        return _own_step(text, module, factory, cluster)
    return _zoo_step(text, cluster, zoo_options)


def _dump(text: str) -> Subject:
    """A dump to read, or to compile where XLA has not done so yet."""
    found = read_program(text)
    if found.scheduled:
        return Subject(text, dump=found)
    import_jax()
    step = step_in(found)
    assert step is not None
    return Subject(step.name, step=step, description=f"the program in {text}")


def _refuse(zoo_options: Mapping[str, Any], what: str) -> None:
    if zoo_options:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in zoo_options)
        raise LagomError(f"{names}: only models of the zoo have these, not {what}")


def _zoo_step(text: str, cluster: Cluster, options: Mapping[str, Any]) -> Subject:
    try:
        zoo = importlib.import_module("lagom_models")
    except ImportError as error:
        raise LagomError(str(error)) from None
    if text not in zoo.names():
        near = difflib.get_close_matches(text, zoo.names(), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise LagomError(
            f"{text!r} is no file, no MODULE:FACTORY and no model of the zoo{hint}; "
            f"the models are {', '.join(zoo.names())}"
        )
    wanted = {**options, "devices": cluster.devices}
    if wanted.get("batch") == "auto":
        from lagom_jax.mesh.candidates import Asks

        del wanted["batch"]
        room = Asks().memory_fraction * cluster.gpu.memory_bytes
        wanted["batch"] = zoo.largest_batch(text, memory_bytes=room, **wanted)
    step = zoo.build(text, **wanted)
    return Subject(
        step.name,
        step=step.function,
        arguments=tuple(step.arguments),
        description=step.summary,
    )


def named_factory(module: str, factory: str) -> Any:
    """The thing that a module has under a name.

    Args:
        module: As Python imports it, or the path of a file.
        factory: The name in it.

    Raises:
        LagomError: There is no such module or file, or nothing of that name in it.
    """
    make = getattr(_import(module), factory, None)
    if make is None:
        raise LagomError(f"{module!r} has nothing called {factory!r}")
    return make


def _own_step(text: str, module: str, factory: str, cluster: Cluster) -> Subject:
    # Here and not above: a dump is read without jax.
    from lagom_jax.compile import questions_asked

    # What is asked before there is a step cannot be answered as on the cluster: the
    # devices that are here may be computed with.
    with questions_asked(cluster, answered=False) as asked:
        made = _made(text, named_factory(module, factory), cluster)
    cautions = asked.cautions("before the step was traced")
    return dataclasses.replace(_subject(text, factory, made), cautions=cautions)


def _made(text: str, make: Any, cluster: Cluster) -> Any:
    """The result of a factory, or what is no function and stands for one."""
    if is_stage(make):
        return make
    if not callable(make):
        raise LagomError(f"{text} is no function; it must return (step, arguments)")
    positional, named = _factory_arguments(text, make, cluster.devices)
    made: Any = make(*positional, **named)
    # A factory that enters a mesh stays in it until there is nothing left to trace.
    if inspect.isgenerator(made):
        made = contextlib.contextmanager(lambda: made)()
    if isinstance(made, contextlib.AbstractContextManager):
        return enter(made)
    return made


def _subject(text: str, factory: str, made: Any) -> Subject:
    if is_stage(made):
        return Subject(factory, step=made)
    named: dict[str, Any] = {}
    if hasattr(made, "function") and hasattr(made, "arguments"):
        step, arguments = made.function, made.arguments
    elif isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        step, arguments = made
    elif (
        isinstance(made, tuple)
        and len(made) == 3
        and callable(made[0])
        and isinstance(made[2], Mapping)
    ):
        step, arguments, named = made
    else:
        raise LagomError(
            f"{text} returned {type(made).__name__}; it must return a pair: the step "
            "and a tuple of its arguments (jax.ShapeDtypeStruct will do), or what "
            "step.trace(...) returned"
        )
    if not isinstance(arguments, tuple | list):
        arguments = (arguments,)
    return Subject(
        factory, step=step, arguments=tuple(arguments), named_arguments=dict(named)
    )


def is_stage(value: Any) -> bool:
    """True for what `.trace(...)` or `.lower(...)` of a jitted function returns."""
    import jax

    kinds = (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled)
    inner = (getattr(value, name, None) for name in ("traced", "lowered", "compiled"))
    return isinstance(value, kinds) or any(isinstance(found, kinds) for found in inner)


def _factory_arguments(
    text: str, make: Any, devices: int
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Arguments that tell a factory the number of devices, if it takes them."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return (), {}
    parameter = signature.parameters.get("devices")
    by_name = parameter is not None and parameter.kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    ways: list[tuple[tuple[int, ...], dict[str, int]]] = (
        [((), {"devices": devices})] if by_name else [((), {}), ((devices,), {})]
    )
    for positional, named in ways:
        with contextlib.suppress(TypeError):
            signature.bind(*positional, **named)
            return positional, named
    raise LagomError(
        f"{text}{signature} cannot be called with nothing but the number of devices. "
        "Name not the step but a function that returns a pair: the step and a tuple of "
        "its arguments (jax.ShapeDtypeStruct will do)"
    )


def _import(module: str) -> ModuleType:
    if module.endswith(".py"):
        return _import_file(Path(module))
    # As `python -m` does: what lies in the working directory can be named.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.split(".")[0] == error.name.split(".")[0]:
            raise LagomError(
                f"there is no module {module!r} here; name a module that Python can "
                "import, or a file: path/to/train.py:make_step"
            ) from None
        raise


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LagomError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered, and with its folder on the path, as if it were run.
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module
