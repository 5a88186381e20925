"""A plan that names what no search comes up with is refused at every door."""

import contextlib
import copy
import io
import json
import tempfile
from pathlib import Path

import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import lagom_jax
from lagom_jax.cli import main
from lagom_jax.environment import init
from lagom_jax.errors import PlanError
from lagom_jax.runtime.cache import Cache

from ..depth import examples
from ..plan.plans import made_by_hand
from ..plan.test_plan_file import DOCUMENT, HARMFUL, of_another_type

PARTS = {"program": "one"}


def by_command(folder, path):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main(["plan", "check", str(path)]) == 2
    return said.getvalue()


def by_init(folder, path):
    with pytest.raises(PlanError) as refused:
        init(path)
    return str(refused.value)


def by_tune(folder, path):
    step = lagom_jax.tune(jnp.sin, mode="load", plan=path, cluster="h100", strict=True)
    with pytest.raises(PlanError) as refused:
        step(1.0)
    return str(refused.value)


def by_cache(folder, path):
    Cache(folder / "kept").keep(PARTS, made_by_hand())
    (kept,) = (folder / "kept").iterdir()
    assert Cache(folder / "kept").find(PARTS) is not None
    kept.write_bytes(path.read_bytes())
    assert Cache(folder / "kept").find(PARTS) is None
    return ""


@pytest.mark.parametrize("door", [by_command, by_init, by_tune, by_cache])
@examples(12, 250, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(HARMFUL) | of_another_type)
def test_no_door_takes_it(door, option):
    name, value = option
    document = copy.deepcopy(DOCUMENT)
    document["levers"][0] |= {"name": name, "value": value}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(document))
        said = " ".join(door(Path(folder), path).split())
    assert door is by_cache or name in said
