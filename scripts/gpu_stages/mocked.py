"""One step compiled on the GPU, as if there were more: `python -m gpu_stages.mocked`.

XLA mocks hosts, each with the GPUs that this one has, so a process sees one topology in
its life. What to compile lies in FOLDER/asked.json, the scheduled module will lie in
FOLDER/module.pb, and what else is known in FOLDER/known.json.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from gpu_stages.compiled import first_line, module_bytes
from lagom_models import TrainingStep, build

# The other hosts are not there to tune their share of the kernels, and would be
# waited for for ever.
OPTIONS: Final[Mapping[str, Any]] = {"xla_gpu_shard_autotuning": False}


def main() -> int:
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "asked.json").read_text())
    step = build(asked["model"], **asked["sizes"])
    began = time.monotonic()
    try:
        devices = _stand_ins(asked) if asked["target"] else _mocked(asked["topology"])
        ready = time.monotonic()
        compiled = lowered_on(devices, step).compile(compiler_options=asked["options"])
    except Exception as error:
        # Behind all that jax has to say of it, so that the last line is the reason.
        traceback.print_exc()
        raise SystemExit(f"{type(error).__name__}: {first_line(error)}") from None
    (folder / "module.pb").write_bytes(module_bytes(compiled))
    known = {
        "device": devices[0].device_kind,
        "cores": getattr(devices[0], "core_count", None),
        "start_seconds": ready - began,
        "compile_seconds": time.monotonic() - ready,
    }
    (folder / "known.json").write_text(json.dumps(known))
    return 0


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
    sys.exit(main())
