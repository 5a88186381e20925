"""One step compiled on the GPU with others mocked: `python -m gpu_stages.mocked`.

XLA mocks hosts, each with the GPUs that this one has, so a process sees one topology in
its life. The first argument says as JSON what to compile, the second names the file for
the scheduled module.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from lagom_models import TrainingStep, build


def main(text: str, module_file: str) -> None:
    asked = json.loads(text)
    try:
        step = build(asked["model"], **asked["sizes"])
        devices = _stand_ins(asked) if asked["target"] else _mocked(asked["topology"])
        compiled = lowered_on(devices, step).compile(compiler_options=asked["options"])
    except Exception as error:
        # After jax's traceback, so that the last line is the reason.
        traceback.print_exc()
        (first, *_) = str(error).strip().splitlines() or [""]
        raise SystemExit(f"{type(error).__name__}: {first}") from None
    executable: Any = compiled.runtime_executable()
    (module,) = executable.hlo_modules()
    Path(module_file).write_bytes(module.as_serialized_hlo_module_proto())


def lowered_on(devices: list[Any], step: TrainingStep) -> jax.stages.Lowered:
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
    main(*sys.argv[1:])
