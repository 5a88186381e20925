"""One step compiled on the GPU with others mocked: `python -m gpu_stages.mocked`.

XLA mocks hosts, each with the GPUs that this one has, so a process sees one topology in
its life. FOLDER/asked.json names the step; the process writes the scheduled module to
FOLDER/module.pb, and the GPU that it was compiled for to FOLDER/known.json.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from lagom_models import build

# The other hosts are not there to tune their share of the kernels, and would be
# waited for for ever.
OPTIONS: Final[Mapping[str, Any]] = {"xla_gpu_shard_autotuning": False}
SMALL: Final = "two products"
"""The step of a dry run, which compiles in a moment."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A jitted function with the shapes that it works on, on a mesh without devices."""

    function: Any
    arguments: tuple[Any, ...]
    mesh: AbstractMesh


def step_of(model: str, sizes: Mapping[str, Any]) -> Step:
    """A step of the suite, or the small one.

    Example:
        >>> step_of(SMALL, {"devices": 8}).mesh.size
        8
    """
    if model != SMALL:
        built = build(model, **sizes)
        return Step(built.function, built.arguments, built.mesh)
    mesh = AbstractMesh((sizes["devices"],), ("data",), (AxisType.Auto,))
    cut = NamedSharding(mesh, PartitionSpec("data"))
    whole = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=cut)

    def loss(one: Any, other: Any, batch: Any) -> Any:
        return jnp.sum(jnp.tanh(batch @ one) @ other, dtype=jnp.float32)

    return Step(jax.jit(jax.grad(loss, (0, 1))), (whole, whole, whole), mesh)


def main() -> int:
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "asked.json").read_text())
    step = step_of(asked["model"], asked["sizes"])
    try:
        devices = _stand_ins(asked) if asked["target"] else _mocked(asked["topology"])
        compiled = lowered_on(devices, step).compile(compiler_options=asked["options"])
    except Exception as error:
        # After jax's traceback, so that the last line is the reason.
        traceback.print_exc()
        (first, *_) = str(error).strip().splitlines() or [""]
        raise SystemExit(f"{type(error).__name__}: {first}") from None
    executable: Any = compiled.runtime_executable()
    (module,) = executable.hlo_modules()
    (folder / "module.pb").write_bytes(module.as_serialized_hlo_module_proto())
    known = {
        "device": devices[0].device_kind,
        "cores": getattr(devices[0], "core_count", None),
    }
    (folder / "known.json").write_text(json.dumps(known))
    return 0


def lowered_on(devices: list[Any], step: Step) -> jax.stages.Lowered:
    """The step, lowered by jax for devices rather than for an abstract mesh."""
    mesh = Mesh(
        np.array(devices).reshape(step.mesh.axis_sizes),
        step.mesh.axis_names,
        axis_types=step.mesh.axis_types,
    )
    arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, leaf.sharding.spec)
        ),
        step.arguments,
    )
    return step.function.lower(*arguments)


def _mocked(topology: str) -> list[Any]:
    # Read when the backend starts, and never again.
    jax.config.update("jax_mock_gpu_topology", topology)
    devices = jax.devices("gpu")
    if len(devices) == jax.local_device_count():
        raise SystemExit(
            f"jax {jax.__version__} does not mock the topology {topology}: it has the "
            f"{len(devices)} GPUs that are here"
        )
    return devices


def _stand_ins(asked: dict[str, Any]) -> list[Any]:
    """Devices of a dry run, which compile and are not there."""
    topology = topologies.get_topology_desc(
        platform="cuda", topology=asked["topology"], target_config=asked["target"]
    )
    return list(topology.devices)


if __name__ == "__main__":
    sys.exit(main())
