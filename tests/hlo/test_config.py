"""Settings as binary messages say the same as settings as JSON text."""

import json

import pytest

from lagom_jax.compile.schema import message_class
from lagom_jax.hlo import read_module
from lagom_jax.hlo.collective import read_collective
from lagom_jax.hlo.config import backend_config, library_line, section
from lagom_jax.program.build import build_program

from ..texts import parse

SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
REDUCE = (
    SUM
    + """
ENTRY main {
  x = f32[16] parameter(0)
  ROOT y = f32[16] all-reduce-start(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum
}"""
)
LOOP = """
body {
  p = f32[8] parameter(0)
  ROOT m = f32[8] multiply(p, p)
}
condition {
  q = f32[8] parameter(0)
  ROOT t = pred[] constant(true)
}
ENTRY main {
  x = f32[8] parameter(0)
  ROOT loop = f32[8] while(x), condition=condition, body=body
}"""


def configured(text, config):
    """The module with this backend config at its root."""
    proto = parse(text).proto
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    root = next(i for i in entry.instructions if i.id == entry.root_id)
    if isinstance(config, dict):
        root.backend_config = json.dumps(config).encode()
    else:
        root.backend_config_payload.value = config.SerializeToString()
    return read_module(proto.SerializeToString())


def collective_config(**settings):
    return message_class("GpuBackendConfig")(collective_backend_config=settings)


@pytest.mark.parametrize(
    "config",
    [
        {"collective_backend_config": {"is_sync": True, "is_pipelined": True}},
        collective_config(is_sync=True, is_pipelined=True),
    ],
    ids=["text", "binary"],
)
def test_collectives(config):
    module = configured(REDUCE, config)
    found = read_collective(module, module.entry, module.entry.root)
    assert (found.is_sync, found.is_pipelined, found.one_shot_kernel) == (
        True,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("strategy", "one_shot"),
    [
        ("KERNEL_STRATEGY_DEFAULT", False),
        ("KERNEL_STRATEGY_TRITON_ONE_SHOT", True),
        ("KERNEL_STRATEGY_TRITON_TWO_SHOT", True),
        (0, False),
        (1, True),
        (2, True),
    ],
)
def test_kernel_strategies(strategy, one_shot):
    config = (
        collective_config(kernel_strategy=strategy)
        if isinstance(strategy, int)
        else {"collective_backend_config": {"kernel_strategy": strategy}}
    )
    module = configured(REDUCE, config)
    found = read_collective(module, module.entry, module.entry.root)
    assert found.one_shot_kernel == one_shot


@pytest.mark.parametrize(
    "config",
    [
        {"known_trip_count": {"n": "7"}},
        message_class("WhileLoopBackendConfig")(known_trip_count={"n": 7}),
    ],
    ids=["text", "binary"],
)
def test_trips(config):
    (loop,) = build_program(configured(LOOP, config)).body
    assert (loop.trips, loop.trips_known) == (7, True)


def test_what_is_no_config_is_an_empty_one():
    module = parse(REDUCE).proto
    root = module.computations[-1].instructions[-1]
    for payload in (b"opaque", b'["a", "list"]', b"\xff\xfe"):
        root.backend_config = payload
        read = read_module(module.SerializeToString())
        assert backend_config(read.entry.root) == {}
    root.ClearField("backend_config")
    root.backend_config_payload.value = b"\xff\xff"
    read = read_module(module.SerializeToString())
    assert section(backend_config(read.entry.root), "any") == {}


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        ("/home/me/train.py", False),
        ("/env/lib/python3.11/site-packages/flax/linen.py", True),
        ("/usr/lib/python3/dist-packages/flax/linen.py", True),
        ("/usr/lib/python3.11/functools.py", True),
        # The zoo from a wheel, where its lines are looked at as in a clone.
        ("/env/lib/python3.11/site-packages/lagom_models/layout.py", False),
        ("/env/lib/python3.11/site-packages/other/lagom_models.py", True),
    ],
)
def test_lines_of_installed_packages_are_a_library_s_but_for_the_zoo_s(file, installed):
    text = "ENTRY main {\n  x = f32[8] parameter(0)\n  ROOT y = f32[8] negate(x), "
    module = parse(f'{text}metadata={{source_file="{file}" source_line=7}}\n}}')
    root = next(i for i in module.entry.instructions.values() if i.name == "y")
    assert library_line(module, root) == (f"{file}:7" if installed else "")
