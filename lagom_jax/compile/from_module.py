"""A step from a module that somebody wrote down before it was compiled.

StableHLO, what `jax.export` wrote, and HLO from before the optimisations say all that a
traced step says, but for the names of its arguments. They are compiled as it would be.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence

from lagom_jax.compile import _jax_internals, _jax_modules, partitioning
from lagom_jax.compile.lowering import LoweredStep, compiler_settings, sha256
from lagom_jax.compile.starting import start_jax
from lagom_jax.errors import StepError

_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")
_NAME = re.compile(r'module @"?([\w.$-]+)')
_MAIN = re.compile(r"func\.func (?:public )?@main\((.*)$", re.MULTILINE)
_ARGUMENT = re.compile(r"%arg(\d+): ")
_MESH_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_MESHES = re.compile(r"sdy\.mesh @\S+ = <\[([^\]]*)\]|#sdy\.mesh<\[([^\]]*)\]")
_DONOR = re.compile(r"\((\d+),")
_TILES = re.compile(r"devices=\[([\d,]+)\]")
_SHARDED = ("mhlo.sharding", "sdy.sharding")
_DONATED = ("tf.aliasing_output", "jax.buffer_donor")
_ALIASED = re.compile(r"alias = \{[^}]*?parameter_number = (\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class HloFacts:
    """Facts about HLO that stand in the first line of its text alone.

    Example:
        >>> line = "HloModule jit_f, num_partitions=8, "
        >>> line += "allow_spmd_sharding_propagation_to_parameters={true,false}"
        >>> HloFacts.of(line).partitions, HloFacts.of(line).to_parameters
        (8, (True, False))
    """

    partitions: int | None = None
    to_parameters: tuple[bool, ...] | None = None
    to_output: tuple[bool, ...] | None = None
    donors: tuple[int, ...] = ()
    """Parameters whose memory any result may take."""

    @classmethod
    def of(cls, text: str) -> HloFacts:
        """Reads them.

        Args:
            text: The HLO, or its first line.
        """
        line = text[text.find("HloModule") :].partition("\n")[0]
        partitions = re.search(r"num_partitions=(\d+)", line)
        donors = re.search(r"buffer_donor=\{(.*?\}\)) *\}", line)
        return cls(
            int(partitions[1]) if partitions else None,
            _flags(line, "allow_spmd_sharding_propagation_to_parameters"),
            _flags(line, "allow_spmd_sharding_propagation_to_output"),
            tuple(map(int, _DONOR.findall(donors[1]))) if donors else (),
        )


def _flags(line: str, name: str) -> tuple[bool, ...] | None:
    found = re.search(name + r"=\{([a-z, ]*)\}", line)
    if found is None:
        return None
    return tuple(word.strip() == "true" for word in found[1].split(",") if word.strip())


def lowered_from_hlo(
    module: bytes, devices: int, facts: HloFacts | None = None
) -> LoweredStep:
    """A step from HLO that XLA has not optimised yet.

    Args:
        module: A serialised `HloModuleProto`.
        devices: The number of devices that it says it is for; 1 where it says nothing.
        facts: Facts from its text, where there is one.

    Raises:
        StepError: It cannot be read.
    """
    _started()
    facts = facts or HloFacts.of(_jax_modules.hlo_header(module))
    try:
        stablehlo = _jax_modules.stablehlo_of(module, facts.donors)
    except Exception as error:
        raise StepError(
            f"this HLO cannot be compiled again, since it holds what StableHLO has no "
            f"word for: {error}. Give the program from before the optimisations"
        ) from error
    step = lowered_from_stablehlo(stablehlo, devices=facts.partitions or devices)
    count = step.argument_count
    to_inputs = facts.to_parameters
    if to_inputs is None:
        to_inputs = (False,) * count
    return dataclasses.replace(
        step,
        allow_propagation_to_inputs=_of_length(to_inputs, count),
        allow_propagation_to_outputs=_of_length(
            facts.to_output or (True,), len(step.allow_propagation_to_outputs)
        ),
    )


def _of_length(flags: Sequence[bool], count: int) -> tuple[bool, ...]:
    """XLA writes one flag where all are the same."""
    return (flags[0],) * count if len(flags) == 1 else tuple(flags)


def lowered_from_export(data: bytes) -> LoweredStep:
    """A step from a file of `jax.export`.

    Raises:
        StepError: It cannot be read, or is not for CUDA alone.
    """
    _started()
    from jax import export

    try:
        exported = export.deserialize(bytearray(data))
    except Exception as error:
        raise StepError(f"jax.export cannot read this file: {error}") from error
    if exported.platforms != ("cuda",):
        raise StepError(
            f"this step was exported for {', '.join(exported.platforms)}: export it "
            'for GPUs alone, jax.export.export(step, platforms=["cuda"])(...)'
        )
    step = lowered_from_stablehlo(
        exported.mlir_module_serialized, devices=exported.nr_devices
    )
    return dataclasses.replace(step, name=exported.fun_name or step.name)


def lowered_from_stablehlo(data: bytes | str, *, devices: int = 1) -> LoweredStep:
    """A step from StableHLO: text, bytecode, or a portable artifact.

    Args:
        data: The module.
        devices: The number of devices where the module does not say.

    Raises:
        StepError: It cannot be read.

    Example:
        >>> step = lowered_from_stablehlo(
        ...     "module @jit_f { func.func public @main(%arg0: tensor<8xf32>) -> "
        ...     "tensor<8xf32> { return %arg0 : tensor<8xf32> } }"
        ... )
        >>> step.name, step.device_count, step.argument_count
        ('f', 1, 1)
    """
    _started()
    try:
        module = _jax_modules.read_stablehlo(data)
    except Exception as error:
        raise StepError(f"this StableHLO cannot be read: {error}") from error
    text = module.text_without_names
    called = partitioning.called_targets(text)
    if "CustomSPMDPartitioning" in called:
        raise StepError(
            "this program has calls with jax.experimental.custom_partitioning, whose "
            "rules are functions of the process that wrote it: give the step itself"
        )
    found = _PARTITIONS.search(text)
    mesh = _mesh(text)
    partitions = int(found[1]) if found else devices
    if partitions == 1:
        partitions = math.prod(size for _, size in mesh) if mesh else _tiles(text)
    arguments = _arguments(text)
    results = _results(text)
    aliased = {int(number) for number in _ALIASED.findall(text)}
    name = _NAME.search(text)
    return LoweredStep(
        name=(name[1] if name else "step").removeprefix("jit_"),
        stablehlo=module.bytecode,
        locations=module.locations,
        digest=sha256(module.text),
        fingerprint=sha256(text),
        num_partitions=partitions,
        num_replicas=1,
        tuple_args=False,
        allow_propagation_to_inputs=tuple(not _has(a, _SHARDED) for a in arguments),
        allow_propagation_to_outputs=tuple(not _has(r, _SHARDED) for r in results),
        compiler_options={},
        donated=tuple(
            _has(argument, _DONATED) or number in aliased
            for number, argument in enumerate(arguments)
        ),
        mesh=mesh,
        device_order=tuple(range(partitions)),
        argument_count=len(arguments),
        custom_calls=called,
        batch_partitionable=_jax_internals.batch_partitionable(called),
        settings=compiler_settings() | {"jax_use_shardy_partitioner": "sdy." in text},
    )


def _started() -> None:
    if not _jax_internals.backends_started():
        start_jax()


def _has(text: str, words: Sequence[str]) -> bool:
    return any(word in text for word in words)


def _signature(text: str) -> tuple[str, str]:
    """Arguments and results of the main function."""
    line = _MAIN.search(text)
    if line is None:
        raise StepError("this StableHLO has no function main")
    depth, quoted = 1, False
    for place, letter in enumerate(line[1]):
        if letter == '"':
            quoted = not quoted
        if quoted:
            continue
        depth += (letter in "({[<") - (letter in ")}]>" and line[1][place - 1] != "-")
        if depth == 0:
            return line[1][:place], line[1][place + 1 :]
    return line[1], ""


def _arguments(text: str) -> list[str]:
    arguments, _ = _signature(text)
    places = [match.start() for match in _ARGUMENT.finditer(arguments)]
    return [arguments[a:b] for a, b in itertools.pairwise([*places, len(arguments)])]


def _results(text: str) -> list[str]:
    _, rest = _signature(text)
    rest = rest.partition("->")[2]
    # A type begins each result; attributes of it follow.
    places = [match.start() for match in re.finditer(r"(?:tensor|tuple)<", rest)]
    return [rest[a:b] for a, b in itertools.pairwise([*places, len(rest)])]


def _tiles(text: str) -> int:
    """The number of devices that shardings speak of.

    Example:
        >>> _tiles('mhlo.sharding = "{devices=[4,2]<=[8]}"'), _tiles("")
        (8, 1)
    """
    sizes = (map(int, found.split(",")) for found in _TILES.findall(text))
    return max(map(math.prod, sizes), default=1)


def _mesh(text: str) -> tuple[tuple[str, int], ...]:
    found = _MESHES.search(text)
    if found is None:
        return ()
    said = (found[1] or found[2] or "").replace("\\22", '"')
    return tuple((name, int(size)) for name, size in _MESH_AXIS.findall(said))
