"""Compiles in this very process with the pass and prints what happened; run by a test."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from lagom_jax.compile import ScheduledOrder
from lagom_jax.compile.scheduler_pass import scheduler_pass
from lagom_jax.plan import ScheduleEdit
from tests.compile.conftest import TARGET_TEXT
from tests.compile.overlapping import OPTIONS, overlapping_step
from tests.compile.steps import training_step

HIT = "/jax/compilation_cache/cache_hits"


def native_mesh():
    topology = topologies.get_topology_desc(
        platform="cuda", topology="1x1x8", target_config=TARGET_TEXT
    )
    return Mesh(np.array(topology.devices), ("data",))


def compiled(step, arguments, options=None):
    executable = step.lower(*arguments).compile(compiler_options=options)
    (module,) = executable.runtime_executable().hlo_modules()
    return ScheduledOrder.of(module.as_serialized_hlo_module_proto())


def passes(mesh):
    step = overlapping_step(mesh)
    plain = compiled(*step, OPTIONS)
    with scheduler_pass(None, capture=True) as seen:
        compiled(*overlapping_step(mesh), OPTIONS)
    before = ScheduledOrder.of(seen.before)
    number = len(before.computations) - 1
    kinds = before.computations[number].opcodes
    parameters_first = sorted(range(len(kinds)), key=lambda i: kinds[i] != "parameter")
    edit = ScheduleEdit(seen.fingerprint, {number: tuple(parameters_first)})
    with scheduler_pass(edit, capture=False) as applied:
        moved = compiled(*overlapping_step(mesh), OPTIONS)
    applied.fingerprint = None
    after = compiled(*overlapping_step(mesh), OPTIONS)
    try:
        with scheduler_pass(edit, capture=False) as broken:
            raise LookupError
    except LookupError:
        compiled(*overlapping_step(mesh), OPTIONS)
    count = kinds.count("parameter")
    return {
        "outcome": str(applied.outcome),
        "order was obeyed": {*moved.computations[-1].opcodes[:count]} == {"parameter"},
        "next compile is as without": after == plain != moved,
        "next compile went by": applied.fingerprint is not None,
        "cleared after an error": broken.fingerprint is None,
    }


def threads(mesh):
    steps = [overlapping_step(mesh), training_step(two_axes(mesh))]

    def capture(step):
        with scheduler_pass(None, capture=True) as seen:
            compiled(*step)
        return seen.fingerprint

    alone = [capture(step) for step in steps]
    again = [overlapping_step(mesh), training_step(two_axes(mesh))]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(capture, again))
    return {"threads saw their own": alone == together and alone[0] != alone[1]}


def two_axes(mesh):
    return Mesh(mesh.devices.reshape(4, 2), ("data", "model"))


def persistent_cache(folder):
    hits = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event == HIT else None
    )
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    def compile_on_the_cpu():
        # A new function each time: jax keeps what it has compiled itself.
        jax.jit(lambda x: jnp.tanh(x @ x)).lower(jnp.ones((8, 8))).compile()

    def entries():
        return len(list(folder.glob("*-cache")))

    # This one decides for jax that the cache is in use.
    jax.jit(lambda x: x + 1)(jnp.ones(3))
    begin = entries()
    with scheduler_pass(None, capture=True):
        compile_on_the_cpu()
    inside = entries() - begin
    compile_on_the_cpu()
    outside = entries() - begin
    with scheduler_pass(None, capture=True):
        compile_on_the_cpu()
    hits_inside = len(hits)
    compile_on_the_cpu()
    return {
        "cache entries inside": inside,
        "cache entries outside": begin > 0 and outside > inside,
        "cache hits inside": hits_inside,
        "cache hits outside": len(hits) - hits_inside,
        "cache is on again": bool(jax.config.jax_enable_compilation_cache),
    }


def main():
    mesh = native_mesh()
    folder = Path(sys.argv[1])
    print(json.dumps(passes(mesh) | threads(mesh) | persistent_cache(folder)))


if __name__ == "__main__":
    sys.exit(main())
