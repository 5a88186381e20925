"""Buffers in S(1), and collectives that XLA runs by puts of its own."""

import pytest

from lagom_jax.hlo.symmetric_memory import uses_symmetric_memory
from lagom_jax.program.build import build_program

from ..texts import parse

GROUPS = "replica_groups={{0,1,2,3,4,5,6,7}}"
MODE = (
    'backend_config={"collective_backend_config":'
    '{"collectives_mode":"COLLECTIVES_SYMMETRIC_MEMORY"}}'
)


def gather(space, *, sent=True, received=True, mode=""):
    def shape(dims, there):
        return f"bf16[{dims}]{{0{f':S({space})' if there and space else ''}}}"

    part, whole = shape(1024, sent), shape(8192, received)
    text = f"""
ENTRY main {{
  p = {part} parameter(0)
  start = ({part}, {whole}) all-gather-start(p), channel_id=1, {GROUPS}, dimensions={{0}}, use_global_device_ids=true{", " + mode if mode else ""}
  ROOT done = {whole} all-gather-done(start)
}}
"""
    return parse(text, header=", num_partitions=8")


def site(module):
    ((found, _, _),) = build_program(module).collectives()
    return found


@pytest.mark.parametrize("space", [1, 7])
def test_buffers_in_symmetric_memory(space):
    module = gather(space)
    found = site(module)
    assert (found.sends_symmetric, found.receives_symmetric) == (True, True)
    assert not found.one_sided
    assert uses_symmetric_memory(module)


def test_one_side_alone():
    found = site(gather(1, sent=False))
    assert (found.sends_symmetric, found.receives_symmetric) == (False, True)
    found = site(gather(1, received=False))
    assert (found.sends_symmetric, found.receives_symmetric) == (True, False)


@pytest.mark.parametrize("space", [0, 5])
def test_ordinary_memory_and_the_host_s(space):
    module = gather(space)
    found = site(module)
    assert not any((found.sends_symmetric, found.receives_symmetric, found.one_sided))
    assert not uses_symmetric_memory(module)


def test_puts_of_xla():
    assert site(gather(1, mode=MODE)).one_sided
