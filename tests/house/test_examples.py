"""Examples in Python on the pages run as they stand, each page in a process of its own.

A page takes some names as its reader's own; they are made here, small, before it. The
blocks of a page are run one after the other, as somebody reads them.
"""

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.forked import Forked

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
STEP = """
import jax, jax.numpy as jnp
import lagom_jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

def shapes_on(devices):
    mesh = AbstractMesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    cut = NamedSharding(mesh, P("data"))
    return tuple(
        jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=cut) for _ in "wb"
    )

def step(weights, batch):
    return weights - 0.01 * jax.grad(lambda w: ((batch @ w) ** 2).mean())(weights)

shapes = shapes_on(64)
"""
PLAN = f"""{STEP}
from lagom_jax.compile import lower
from lagom_jax.plan import save
from lagom_jax.planner import Budget
shapes = shapes_on(8)
one = Budget(compiles=1)
save(lagom_jax.make_plan(step, *shapes, cluster="h100:1x8", budget=one), "plan.json")
"""
DUMP = f"""{STEP}
import pathlib
from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.hlo import read_module
done = compile_step(lower(step, *shapes_on(8)), Cluster.parse("h100:1x8"))
pathlib.Path("dump").mkdir()
pathlib.Path("dump/module_0042.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb").write_bytes(done.module_bytes)
"""
RUNNING = """
import jax, jax.numpy as jnp, lagom_jax
step = jax.jit(lambda state, batch: state + batch.sum())
state, batches = jnp.zeros(()), [jnp.ones(8)] * 3
batch = batches[0]
"""
ORDER = f"""{STEP}
from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.cost.model import CostModel
from lagom_jax.hlo import read_module
from lagom_jax.settings.controls import named
cluster = Cluster.parse("h100:8x8")
model = CostModel.of(cluster)
done = compile_step(lower(step, *shapes), cluster, capture=True)
module = read_module(done.scheduled_bytes)
"""
GIVEN = {
    "explanation/deviceless.md": "",
    "explanation/ordering.md": ORDER,
    "explanation/planning.md": STEP,
    "explanation/search.md": STEP,
    "how-to/calibration.md": RUNNING,
    "how-to/look.md": DUMP,
    "how-to/mesh.md": "",
    "how-to/own-step.md": "",
    "how-to/tune.md": RUNNING,
    "how-to/training.md": RUNNING,
    "reference/plan.md": PLAN,
}
ELSEWHERE = {
    "how-to/libraries.md": "tests/programs/test_libraries.py",
    "how-to/libraries/equinox.md": "tests/programs/test_libraries.py",
    "how-to/libraries/flax.md": "tests/programs/test_libraries.py",
    "how-to/libraries/keras.md": "tests/programs/test_libraries.py",
    "how-to/libraries/levanter.md": "tests/programs/test_libraries.py",
    "how-to/libraries/maxtext.md": "tests/programs/test_libraries.py",
    "how-to/libraries/others.md": "tests/programs/test_libraries.py",
    "how-to/libraries/tunix.md": "tests/programs/test_libraries.py",
    "how-to/regions.md": "tests/regions/test_several_processes.py",
    "how-to/slices.md": "tests/decompose",
    "reference/flags.md": "tests/xla_flags",
    "reference/models.md": "tests/models/test_documents.py",
    "reference/tuner.md": "tests/nccl_plugin",
}
"""Pages whose blocks are parts of something larger, and what runs the whole of it."""


def blocks(page):
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    return [textwrap.dedent(one) for one in found]


def name_of(page):
    return page.relative_to(ROOT / "docs").as_posix()


def test_every_example_is_run_here_or_elsewhere():
    with_examples = {
        name_of(page) for page in PAGES if "api/" not in name_of(page) and blocks(page)
    }
    assert with_examples == GIVEN.keys() | ELSEWHERE.keys()
    for place in ELSEWHERE.values():
        assert (ROOT / place).exists(), place


@pytest.mark.slow
@pytest.mark.parametrize("name", GIVEN)
def test_examples_of_a_page_run(name, tmp_path):
    parts = [GIVEN[name], *blocks(ROOT / "docs" / name)]
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(parts))
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "models")]),
    }
    told = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with Forked([script], cwd=tmp_path, env=environment, **told) as process:
        _, said = process.communicate()
    assert process.returncode == 0, said[-3000:]
