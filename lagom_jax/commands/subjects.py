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
from lagom_jax.commands.terminal import import_jax
from lagom_jax.errors import LagomError

_DUMP_ENDINGS = (".txt", ".pb", ".hlo", ".gz", ".pbtxt", ".log")


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A step to compile, or a dump to read."""

    name: str
    dump: str | None = None
    step: Any = None
    arguments: tuple[Any, ...] = ()
    description: str = ""
    """A description in a line; may be empty."""


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
        return Subject(text, dump=text)
    import_jax()
    module, colon, factory = text.rpartition(":")
    if colon:
        _refuse(zoo_options, "a step of your own")
        return _own_step(text, module, factory, cluster)
    return _zoo_step(text, cluster, zoo_options)


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
    step = zoo.build(text, devices=cluster.devices, **options)
    return Subject(
        step.name,
        step=step.function,
        arguments=tuple(step.arguments),
        description=step.describe().removeprefix(f"{step.name}: "),
    )


def _own_step(text: str, module: str, factory: str, cluster: Cluster) -> Subject:
    make = getattr(_import(module), factory, None)
    if make is None:
        raise LagomError(f"{module!r} has nothing called {factory!r}")
    if not callable(make):
        raise LagomError(f"{text} is no function; it must return (step, arguments)")
    positional, named = _factory_arguments(text, make, cluster.devices)
    made: Any = make(*positional, **named)
    if hasattr(made, "function") and hasattr(made, "arguments"):
        step, arguments = made.function, made.arguments
    elif isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        step, arguments = made
    else:
        raise LagomError(
            f"{text} returned {type(made).__name__}; it must return a pair: the step "
            "and a tuple of its arguments (jax.ShapeDtypeStruct will do)"
        )
    if not isinstance(arguments, tuple | list):
        arguments = (arguments,)
    return Subject(factory, step=step, arguments=tuple(arguments))


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
