"""Origins of instructions that lost theirs, and what programs were compiled for."""

import pytest

from lagom_jax.hlo.provenance import compiled_for_gpu, described_by

from ..texts import parse

META = ', metadata={op_name="jit(step)/%s" source_file="train.py" source_line=%d}'


def named(module, name):
    return next(i for i in module.entry.instructions.values() if i.name == name)


def answer(text, name):
    module = parse(text)
    found = described_by(module, module.entry, named(module, name))
    return found.proto.metadata.op_name


def test_the_nearest_producer_speaks_for_a_collective_without_origin():
    text = f"""
ENTRY main {{
  x = f32[8] parameter(0)
  y = f32[8] negate(x){META % ("far", 1)}
  z = f32[8] negate(y){META % ("near", 2)}
  b = f32[8] bitcast(z)
  ROOT r = f32[8] collective-permute(b), channel_id=1, source_target_pairs={{{{0,1}}}}
}}"""
    assert answer(text, "r") == "jit(step)/near"


def test_a_fusion_speaks_through_its_root():
    text = f"""
inside {{
  p = f32[8] parameter(0)
  ROOT n = f32[8] negate(p){META % ("inside", 3)}
}}
ENTRY main {{
  x = f32[8] parameter(0)
  f = f32[8] fusion(x), kind=kLoop, calls=inside
  ROOT r = f32[8] collective-permute(f), channel_id=1, source_target_pairs={{{{0,1}}}}
}}"""
    assert answer(text, "r") == "jit(step)/inside"


def test_a_user_speaks_where_no_producer_does():
    text = f"""
ENTRY main {{
  x = f32[8] parameter(0)
  r = f32[8] collective-permute(x), channel_id=1, source_target_pairs={{{{0,1}}}}
  ROOT n = f32[8] negate(r){META % ("user", 4)}
}}"""
    assert answer(text, "r") == "jit(step)/user"


def test_its_own_word_comes_first():
    text = f"""
ENTRY main {{
  x = f32[8] parameter(0){META % ("x", 1)}
  ROOT r = f32[8] collective-permute(x), channel_id=1, source_target_pairs={{{{0,1}}}}{META % ("own", 5)}
}}"""
    assert answer(text, "r") == "jit(step)/own"


def test_nobody_knows():
    text = "ENTRY main { ROOT x = f32[8] parameter(0) }"
    module = parse(text)
    assert described_by(module, module.entry, module.entry.root) is module.entry.root


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        ('add(x, x), backend_config={"operation_queue_id":"0"}', True),
        ('custom-call(x), custom_call_target="__cublas$gemm"', True),
        ("add(x, x)", False),
        ('add(x, x), backend_config={"outer_dimension_partitions":["2"]}', False),
    ],
)
def test_what_gives_a_gpu_program_away(line, gpu):
    module = parse(f"ENTRY main {{ x = f32[8] parameter(0)\n ROOT y = f32[8] {line} }}")
    assert compiled_for_gpu(module) is gpu
