"""Bytes, flags and origin of collectives in their spellings."""

import pytest

from lagom_jax.hlo.collective import collective_kind, read_collective
from lagom_jax.hlo.kinds import KINDS
from lagom_jax.hlo.module import Module
from lagom_jax.program.build import build_program

from ..texts import parse

SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
AMONG = "channel_id=1, replica_groups={{0,1,2,3}}"
GROUPS = f"{AMONG}, use_global_device_ids=true"
PAIRS = "channel_id=1, source_target_pairs={{0,1},{1,0}}"
# spelling of the root -> kind, bytes on the larger side, operand bytes, operands
SPELLINGS = {
    f"f32[64] all-gather(x), {GROUPS}, dimensions={{0}}": ("all-gather", 256, 64, 1),
    f"(f32[16], f32[64]) all-gather-start(x), {GROUPS}, dimensions={{0}}": (
        "all-gather",
        256,
        64,
        1,
    ),
    f"((f32[16], bf16[8]), (f32[64], bf16[32])) all-gather-start(x, h), {GROUPS}, dimensions={{0}}": (
        "all-gather",
        320,
        80,
        2,
    ),
    f"f32[16] all-reduce(x), {GROUPS}, to_apply=sum": ("all-reduce", 64, 64, 1),
    f"f32[16] all-reduce-start(x), {GROUPS}, to_apply=sum": ("all-reduce", 64, 64, 1),
    f"(f32[16], bf16[8]) all-reduce-start(x, h), {GROUPS}, to_apply=sum": (
        "all-reduce",
        80,
        80,
        2,
    ),
    f"f32[4] reduce-scatter(x), {GROUPS}, dimensions={{0}}, to_apply=sum": (
        "reduce-scatter",
        64,
        64,
        1,
    ),
    f"f32[16] all-to-all(x), {AMONG}, dimensions={{0}}": ("all-to-all", 64, 64, 1),
    f"(f32[4], f32[4], f32[4], f32[4]) all-to-all(q, q, q, q), {AMONG}": (
        "all-to-all",
        64,
        64,
        4,
    ),
    f"f32[16] collective-permute(x), {PAIRS}": ("collective-permute", 64, 64, 1),
    f"(f32[16], f32[16]) collective-permute-start(x), {PAIRS}": (
        "collective-permute",
        64,
        64,
        1,
    ),
    f"(f32[16], f32[16], u32[], u32[]) collective-permute-start(x), {PAIRS}": (
        "collective-permute",
        64,
        64,
        1,
    ),
    f"((f32[16], bf16[8]), (f32[16], bf16[8])) collective-permute-start(x, h), {PAIRS}": (
        "collective-permute",
        80,
        80,
        2,
    ),
    "f32[16] collective-broadcast(x), channel_id=1, replica_groups={{0,1,2,3}}": (
        "collective-broadcast",
        64,
        64,
        1,
    ),
}


def root_in(spelling: str, more: str = "") -> Module:
    return parse(
        SUM
        + f"""
ENTRY main {{
  x = f32[16] parameter(0)
  h = bf16[8] parameter(1)
  q = f32[4] parameter(2)
  ROOT y = {spelling}{more}
}}""",
        header=", num_partitions=4",
    )


@pytest.mark.parametrize(
    ("spelling", "expected"), SPELLINGS.items(), ids=list(SPELLINGS)
)
def test_bytes_of_every_spelling(spelling, expected):
    module = root_in(spelling)
    found = read_collective(module, module.entry, module.entry.root)
    counted = (found.kind, found.bytes, found.operand_bytes, found.operand_count)
    assert counted == expected


def test_element_types():
    spelling = f"(f32[16], bf16[8]) all-reduce-start(x, h), {GROUPS}, to_apply=sum"
    module = root_in(spelling)
    found = read_collective(module, module.entry, module.entry.root)
    assert found.element_types == ("f32", "bf16")


@pytest.mark.parametrize(
    "config",
    [
        '{"collective_backend_config":{"is_sync":true,"is_pipelined":true}}',
        '{"is_sync":true,"is_pipelined":true}',
    ],
    ids=["since 2024", "before"],
)
def test_flags_in_both_spellings(config):
    spelling = f"(f32[16], f32[64]) all-gather-start(x), {GROUPS}, dimensions={{0}}"
    module = root_in(spelling, f", backend_config={config}")
    found = read_collective(module, module.entry, module.entry.root)
    assert found.is_sync
    assert found.is_pipelined


def test_a_fusion_that_communicates():
    """Newer compilers put small all-reduces into a Triton fusion."""
    module = parse(
        SUM
        + """
inside {
  p = f32[16] parameter(0)
  ROOT r = f32[16] all-reduce(p), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum
}
ENTRY main {
  x = f32[16] parameter(0)
  ROOT y = f32[16] fusion(x), kind=kCustom, calls=inside, backend_config={"fusion_backend_config":{"kind":"__triton_collective"}}
}"""
    )
    ((found, times, synchronous),) = build_program(module).collectives()
    assert (found.kind, found.name, found.bytes, times) == ("all-reduce", "y", 64, 1)
    assert synchronous
    assert found.one_shot_kernel


def test_origin_from_metadata():
    spelling = f"f32[64] all-gather(x), {GROUPS}, dimensions={{0}}"
    more = (
        ', metadata={op_name="jit(step)/gather" source_file="train.py" source_line=7}'
    )
    module = root_in(spelling, more)
    found = read_collective(module, module.entry, module.entry.root)
    assert (found.op_name, found.source) == ("jit(step)/gather", "train.py:7")


def test_origin_from_the_operand_where_a_combiner_dropped_it():
    module = parse(
        """
ENTRY main {
  x = f32[16] parameter(0)
  z = f32[16] negate(x), metadata={op_name="jit(step)/neg" source_file="train.py" source_line=9}
  ROOT y = f32[64] all-gather(z), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
}"""
    )
    found = read_collective(module, module.entry, module.entry.root)
    assert (found.op_name, found.source) == ("jit(step)/neg", "train.py:9")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_kinds(kind):
    assert collective_kind(kind) == kind
    assert collective_kind(f"{kind}-start") == kind
    assert collective_kind(f"{kind}-done") is None
