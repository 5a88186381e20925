"""Compiles one step on three kinds of mesh and prints what differs; run by a test."""

import re
import sys

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from lagom_jax.compile import compile_step, lower
from tests.compile.conftest import TARGET_TEXT, comparable, hlo_text, mesh
from tests.compile.steps import training_step

AXES = ("data", "model")


def without_fingerprint(text):
    return re.sub(r'fingerprint_before_lhs="\w+"', "", text)


def through_lagom(on, target):
    step, arguments = training_step(on)
    lowered = lower(step, *arguments)
    return lowered, comparable(hlo_text(compile_step(lowered, target).module_bytes))


def main():
    from lagom_jax.compile import Target

    target = Target("h100:1x8", TARGET_TEXT, "1x1x8")
    cpus = np.array(jax.devices("cpu"))
    topology = topologies.get_topology_desc(
        platform="cuda", topology=target.topology, target_config=TARGET_TEXT
    )
    native_mesh = Mesh(np.array(topology.devices).reshape(4, 2), AXES)
    step, arguments = training_step(native_mesh)
    executable = step.lower(*arguments).compile().runtime_executable()
    native = comparable(
        hlo_text(executable.hlo_modules()[0].as_serialized_hlo_module_proto())
    )

    virtual, on_cpus = through_lagom(Mesh(cpus.reshape(4, 2), AXES), target)
    _, on_abstract = through_lagom(mesh(4, 2), target)
    permuted, _ = through_lagom(Mesh(cpus[::-1].reshape(4, 2), AXES), target)

    assert "all-reduce-start" in native
    print("virtual == native:", on_cpus == native)
    print(
        "abstract == native:",
        without_fingerprint(on_abstract) == without_fingerprint(native),
    )
    print("virtual order:", *virtual.device_order)
    print("permuted order:", *permuted.device_order)


if __name__ == "__main__":
    sys.exit(main())
