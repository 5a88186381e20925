"""Compiler options that the installed XLA knows.

The catalogue of `xla_flags` says what some versions knew; this asks the compiler
itself, option by option, with a program of one line. Answers are kept for the process.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from lagom_jax.cluster import Cluster, target_config, topology
from lagom_jax.compile import child, failures
from lagom_jax.compile.toolchain import Toolchain
from xla_flags import Flag, known, print_option

Verdict: TypeAlias = Literal["known", "unknown", "value refused", "failed", "crashed"]

_UNKNOWN = re.compile(r"No such compile option")
# Those that jax itself hands over are refused by Python.
_REFUSED = re.compile(r"is not a valid|incompatible function arguments")
_CLUSTER = "h100:1x1"
_PROGRAM = b"""module @nothing attributes {mhlo.num_partitions = 1 : i32,
                                mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}
"""
_TIMEOUT_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class OptionSupport:
    """The compiler's verdict on one option.

    Example:
        >>> OptionSupport("xla_gpu_x", 1, "unknown", "No such compile option").usable
        False
    """

    name: str
    value: object
    verdict: Verdict
    """`known` says that it is accepted, not that it has an effect."""
    says: str = ""
    """The compiler's own words where it was not accepted."""

    @property
    def usable(self) -> bool:
        """True if the option can be passed to this compiler."""
        return self.verdict == "known"


def known_options(options: Mapping[str, object]) -> dict[str, OptionSupport]:
    """Asks the compiler about options, each by itself.

    Args:
        options: Values by name, as `jax.jit(compiler_options=...)` would get them.

    Returns:
        The compiler's verdicts, by name.

    Raises:
        ToolchainError: The GPU compiler is missing or its parts do not fit together.
        CompileError: The compiler did not even take the program without options.

    Example:
        >>> said = known_options({"xla_gpu_autotune_level": 0, "xla_gpu_no_such": 1})
        >>> [(name, answer.verdict) for name, answer in said.items()]
        [('xla_gpu_autotune_level', 'known'), ('xla_gpu_no_such', 'unknown')]
    """
    answers = _ask(tuple((n, type(v), v) for n, v in options.items()))
    return {answer.name: answer for answer in answers}


def known_flags(flags: Iterable[Flag] | None = None) -> dict[str, OptionSupport]:
    """Asks the compiler which knobs of the catalogue it knows.

    Each is asked about with the default of this version, which changes nothing.

    Args:
        flags: Which; all that are compiler options by default.

    Returns:
        The compiler's verdicts, by name.

    Raises:
        ToolchainError: The GPU compiler is missing or its parts do not fit together.
        CompileError: The compiler did not even take the program without options.

    Example:
        >>> from xla_flags import find
        >>> known_flags([find("xla_gpu_memory_limit_slop_factor")])[
        ...     "xla_gpu_memory_limit_slop_factor"
        ... ].verdict
        'known'
    """
    version = Toolchain.probe().version("jaxlib")
    chosen = known().values() if flags is None else flags
    return known_options(
        {
            flag.name: _harmless(flag, version)
            for flag in chosen
            if "compiler_options" in flag.routes
        }
    )


_NEUTRAL: dict[str, object] = {
    "bool": False,
    "int": 0,
    "float": 0.0,
    "string": "",
    "list": "",
    "bytes": b"",
}


def _harmless(flag: Flag, version: str) -> object:
    default = flag.seen.get(version, flag.default)
    if default is not None:
        return print_option(flag, default)
    return flag.choices[0] if flag.type == "enum" else _NEUTRAL[flag.type]


# A value's type is part of the question: 1 and True are equal, but not to XLA.
@functools.cache
def _ask(options: tuple[tuple[str, type, object], ...]) -> tuple[OptionSupport, ...]:
    toolchain = Toolchain.probe().require()
    cluster = Cluster.parse(_CLUSTER)
    request = {
        "target_text": target_config(cluster.gpu, toolchain.version("jaxlib")),
        "topology": topology(cluster),
        "device_order": (0,),
        "tuple_args": False,
        "propagate_to_inputs": (False,),
        "propagate_to_outputs": (False,),
        "custom_calls": (),
        "batch_partitionable": (),
        "settings": {},
    }
    return tuple(_answers(request, [(name, value) for name, _, value in options]))


def _answers(
    request: Mapping[str, Any], options: Sequence[tuple[str, object]]
) -> list[OptionSupport]:
    answer = child.ask_once(
        {**request, "each_option": options}, _PROGRAM, timeout_s=_TIMEOUT_S
    )
    if answer.header is not None and answer.header["ok"]:
        said = cast("list[str]", answer.header["refusals"])
        return [
            OptionSupport(
                name, value, _verdict(words), "\n".join(failures.reason(words))
            )
            for (name, value), words in zip(options, said, strict=True)
        ]
    if answer.header is not None or answer.timed_out or not options:
        raise failures.explain(answer, "a program of one line", _CLUSTER, _TIMEOUT_S)
    if len(options) == 1:
        ((name, value),) = options
        return [OptionSupport(name, value, "crashed", "\n".join(answer.printed))]
    # One of them ended the process, and with it the answers to all.
    middle = len(options) // 2
    return [
        *_answers(request, options[:middle]),
        *_answers(request, options[middle:]),
    ]


def _verdict(words: str) -> Verdict:
    if not words:
        return "known"
    if _UNKNOWN.search(words):
        return "unknown"
    return "value refused" if _REFUSED.search(words) else "failed"
