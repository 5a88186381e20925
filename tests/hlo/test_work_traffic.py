"""Which bytes a kernel reads and writes."""

import json

import pytest

from lagom_jax.hlo.work import NOTHING, Work, launches_kernel, work
from tests.hlo.kernels import ADD, fused, one, work_of
from tests.texts import parse

BIG = "f32[64,1024]"
ROW = 1024 * 4
INDEX = 4


def test_elementwise_reads_and_writes_everything_once():
    body = "s = f32[64,1024] add(p0, p1)\nROOT m = f32[64,1024] multiply(s, p0)"
    assert work_of(fused(body, BIG, BIG, BIG)) == Work(
        "fusion", 2 * 64 * 1024, 2 * 64 * ROW, 64 * ROW
    )


SLICED = "z = s32[] constant(0)\ns = f32[1,1024] dynamic-slice(p0, p1, z)"
SIZES = ", dynamic_slice_sizes={1,1024}"


@pytest.mark.parametrize(
    "rest",
    [
        "ROOT r = f32[1,1024] negate(s)",
        "b = f32[1024] bitcast(s)\nROOT r = f32[1024] negate(b)",
        "b = f32[1024] reshape(s)\nc = f32[1024] copy(b)\nROOT r = f32[1024] abs(c)",
        "t = f32[1024,1] transpose(s), dimensions={1,0}\nROOT r = f32[1024,1] exp(t)",
        "c = bf16[1,1024] convert(s)\nROOT r = bf16[1,1024] negate(c)",
        "a = f32[1,1024] add(s, s)\nROOT r = f32[1,1024] multiply(a, s)",
    ],
)
def test_a_dynamic_slice_reads_the_slice(rest):
    rest = rest.replace("exp(", "exponential(")
    result = rest.rsplit("ROOT r = ")[-1].split(" ")[0]
    found = work_of(fused(SLICED + SIZES + "\n" + rest, result, BIG, "s32[]"))
    assert found.bytes_read == ROW + INDEX


@pytest.mark.parametrize(
    "before",
    [
        "x = f32[64,1024] bitcast(p0)",
        "x = f32[64,1024] copy(p0)",
        "x = f32[64,1024] negate(p0)",
        "y = f32[65536] reshape(p0)\nx = f32[64,1024] reshape(y)",
        "y = f32[1024,64] transpose(p0), dimensions={1,0}\n"
        "x = f32[64,1024] transpose(y), dimensions={1,0}",
    ],
)
def test_a_slice_of_something_computed_reads_what_the_slice_needs(before):
    body = f"{before}\nROOT s = f32[3,1024] slice(x), slice={{[7:10], [0:1024]}}"
    assert work_of(fused(body, "f32[3,1024]", BIG)).bytes_read == 3 * ROW


def test_arithmetic_before_a_slice_is_done_for_the_slice_only():
    body = """
      t = f32[64,1024] add(p0, p0)
      ROOT s = f32[3,1024] slice(t), slice={[7:10], [0:1024]}"""
    assert work_of(fused(body, "f32[3,1024]", BIG)).flops == 3 * 1024


def slices(*bounds):
    lines = [
        f"part{n} = f32[{high - low},1024] slice(p0), "
        f"slice={{[{low}:{high}], [0:1024]}}"
        for n, (low, high) in enumerate(bounds)
    ]
    names = ", ".join(f"part{n}" for n in range(len(bounds)))
    rows = sum(high - low for low, high in bounds)
    result = f"f32[{rows},1024]"
    body = "\n".join(
        [*lines, f"ROOT c = {result} concatenate({names}), dimensions={{0}}"]
    )
    return fused(body, result, BIG)


@pytest.mark.parametrize(
    ("bounds", "rows"),
    [
        pytest.param([(0, 4), (8, 16)], 12, id="different rows add up"),
        pytest.param([(0, 4), (0, 4)], 4, id="the same rows are read once"),
        pytest.param([(0, 60), (2, 62), (4, 64)], 64, id="never more than there is"),
    ],
)
def test_several_slices_of_one_input(bounds, rows):
    assert work_of(slices(*bounds)).bytes_read == rows * ROW


def test_an_input_read_in_part_and_as_a_whole_is_read_as_a_whole():
    body = """
      s = f32[1,1024] slice(p0), slice={[0:1], [0:1024]}
      r = f32[1024] reshape(s)
      b = f32[64,1024] broadcast(r), dimensions={1}
      ROOT d = f32[64,1024] subtract(p0, b)"""
    assert work_of(fused(body, BIG, BIG)).bytes_read == 64 * ROW


UPDATE = """
  z = s32[] constant(0)
  u = f32[1,1024] bitcast(p1)
  d = f32[64,1024] dynamic-update-slice(p0, u, p2, z)
"""


@pytest.mark.parametrize(
    ("rest", "result"),
    [
        ("ROOT r = f32[64,1024] bitcast(d)", BIG),
        ("b = f32[65536] bitcast(d)\nROOT r = f32[256,256] bitcast(b)", "f32[256,256]"),
        ("ROOT r = (f32[64,1024]) tuple(d)", "(f32[64,1024])"),
    ],
)
def test_an_update_in_place_touches_only_the_update(rest, result):
    found = work_of(fused(UPDATE + rest, result, BIG, "f32[1024]", "s32[]"))
    assert found == Work("copy", 0, ROW + INDEX, ROW)


def test_two_updates_of_two_buffers_in_one_kernel():
    body = """
      z = s32[] constant(0)
      a = f32[64,1024] dynamic-update-slice(p0, p2, p3, z)
      b = f32[64,1024] dynamic-update-slice(p1, p2, p3, z)
      ROOT r = (f32[64,1024], f32[64,1024]) tuple(a, b)"""
    result = "(f32[64,1024], f32[64,1024])"
    found = work_of(fused(body, result, BIG, BIG, "f32[2,1024]", "s32[]"))
    assert found == Work("copy", 0, 2 * ROW + INDEX, 2 * 2 * ROW)


def test_an_update_added_to_what_was_there_reads_that_slice():
    body = """
      z = s32[] constant(0)
      s = f32[1,1024] dynamic-slice(p0, p2, z), dynamic_slice_sizes={1,1024}
      u = f32[1,1024] add(s, p1)
      ROOT d = f32[64,1024] dynamic-update-slice(p0, u, p2, z)"""
    found = work_of(fused(body, BIG, BIG, "f32[1,1024]", "s32[]"))
    assert found == Work("fusion", 1024, 2 * ROW + INDEX, ROW)


def test_an_update_of_something_computed_writes_everything():
    body = """
      z = s32[] constant(0)
      n = f32[64,1024] negate(p0)
      ROOT d = f32[64,1024] dynamic-update-slice(n, p1, p2, z)"""
    found = work_of(fused(body, BIG, BIG, "f32[1,1024]", "s32[]"))
    assert (found.bytes_read, found.bytes_written) == (64 * ROW + INDEX, 64 * ROW)


def test_an_update_of_zeros_reads_only_the_update():
    body = """
      z = s32[] constant(0)
      f = f32[] constant(0)
      n = f32[64,1024] broadcast(f), dimensions={}
      ROOT d = f32[64,1024] dynamic-update-slice(n, p0, p1, z)"""
    found = work_of(fused(body, BIG, "f32[1,1024]", "s32[]"))
    assert found == Work("copy", 0, ROW + INDEX, 64 * ROW)


def test_an_update_by_itself_is_in_place():
    text = f"""ENTRY e {{
      p = {BIG} parameter(0)
      u = f32[1,1024] parameter(1)
      i = s32[] parameter(2)
      ROOT d = {BIG} dynamic-update-slice(p, u, i, i)
    }}"""
    assert work_of(text) == Work("copy", 0, ROW + INDEX, ROW)


def test_a_library_product_between_slices():
    numbers = {"lhs_contracting_dimensions": [1], "rhs_contracting_dimensions": [0]}
    config = json.dumps({"gemm_backend_config": {"dot_dimension_numbers": numbers}})
    body = f"""
      z = s32[] constant(0)
      s = bf16[1,64,16] dynamic-slice(p0, p2, z, z), dynamic_slice_sizes={{1,64,16}}
      l = bf16[64,16] bitcast(s)
      g = (bf16[64,32], s8[1024]) custom-call(l, p1),
        custom_call_target="__cublas$gemm", backend_config={config}
      o = bf16[64,32] get-tuple-element(g), index=0
      b = bf16[1,64,32] bitcast(o)
      d = bf16[8,64,32] dynamic-update-slice(p3, b, p2, z, z)
      w = s8[1024] get-tuple-element(g), index=1
      ROOT r = (bf16[8,64,32], s8[1024]) tuple(d, w)"""
    result = "(bf16[8,64,32], s8[1024])"
    shapes = ("bf16[8,64,16]", "bf16[16,32]", "s32[]", "bf16[8,64,32]")
    found = work_of(fused(body, result, *shapes, kind="kCustom"))
    assert (found.kind, found.target) == ("matmul", "__cublas$gemm")
    assert found.flops == 2 * 64 * 32 * 16
    assert found.bytes_read == 2 * (64 * 16 + 16 * 32) + INDEX
    assert found.bytes_written == 2 * 64 * 32


def test_a_collective_in_a_fusion_that_slices_for_it():
    body = """
      z = s32[] constant(0)
      s = f32[8,1024] reduce-scatter(p0), replica_groups={{0,1,2,3,4,5,6,7}},
        dimensions={0}, to_apply=add
      ROOT d = f32[64,1024] dynamic-update-slice(p1, s, p2, z)"""
    found = work_of(ADD + fused(body, BIG, BIG, BIG, "s32[]", kind="kCustom"))
    assert found == Work("collective", 0, 64 * ROW + INDEX, 8 * ROW)


def test_results_of_a_kernel_with_several():
    body = """
      n = f32[64,1024] negate(p0)
      c = bf16[64,1024] convert(p0)
      ROOT r = (f32[64,1024], bf16[64,1024]) tuple(n, c)"""
    found = work_of(fused(body, "(f32[64,1024], bf16[64,1024])", BIG))
    assert (found.bytes_read, found.bytes_written) == (64 * ROW, 64 * ROW * 3 // 2)


@pytest.mark.parametrize(
    ("body", "result", "read"),
    [
        ("ROOT b = f32[64,1024] broadcast(p0), dimensions={1}", BIG, ROW),
        ("ROOT i = f32[64,1024] iota(), iota_dimension=0", BIG, 0),
        (
            "z = f32[] constant(0)\n"
            "w = f32[1028] pad(p0, z), padding=2_2\nROOT a = f32[1028] abs(w)",
            "f32[1028]",
            ROW,
        ),
        (
            "z = f32[] constant(0)\nROOT w = f32[1000] pad(p0, z), padding=-4_-20",
            "f32[1000]",
            4000,
        ),
        ("ROOT c = f32[2048] concatenate(p0, p0), dimensions={0}", "f32[2048]", ROW),
        ("ROOT v = f32[1024] reverse(p0), dimensions={0}", "f32[1024]", ROW),
    ],
)
def test_operations_that_only_move(body, result, read):
    found = work_of(fused(body, result, "f32[1024]"))
    assert found.bytes_read == read


def test_a_gather_reads_the_rows():
    text = one(
        "f32[5,1024]",
        "gather(), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
        "index_vector_dim=1, slice_sizes={1,1024}",
        BIG,
        "s32[5]",
    )
    assert work_of(text) == Work("gather", 0, 5 * ROW + 5 * INDEX, 5 * ROW)


SCATTER = (
    "scatter(p0, p1, p2), update_window_dims={1}, inserted_window_dims={0}, "
    "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply="
)
OVERWRITE = """
take { a = f32[] parameter(0)
  ROOT b = f32[] parameter(1) }
"""


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("function", "name", "old_rows", "flops"),
    [(ADD, "add", 5, 5 * 1024), (OVERWRITE, "take", 0, 0)],
)
def test_a_scatter_touches_the_rows(alone, function, name, old_rows, flops):
    shapes = (BIG, "s32[5]", "f32[5,1024]")
    if alone:
        text = one(BIG, SCATTER.replace("p0, p1, p2", "") + name, *shapes)
    else:
        text = fused(f"ROOT s = {BIG} {SCATTER}{name}", BIG, *shapes)
    found = work_of(function + text)
    assert found == Work("scatter", flops, (5 + old_rows) * ROW + 5 * INDEX, 5 * ROW)


def test_a_copy_and_a_change_of_layout():
    text = one("f32[64,1024]{1,0}", "copy()", "f32[64,1024]{1,0}")
    assert work_of(text) == Work("copy", 0, 64 * ROW, 64 * ROW)
    text = one("f32[64,1024]{0,1}", "copy()", "f32[64,1024]{1,0}")
    assert work_of(text).kind == "transpose"


def test_a_fused_transpose():
    body = "ROOT t = f32[1024,64] transpose(p0), dimensions={1,0}"
    found = work_of(fused(body, "f32[1024,64]", BIG, kind="kInput"))
    assert found == Work("transpose", 0, 64 * ROW, 64 * ROW)


HOST = "f32[64,1024]{1,0:S(5)}"
DEVICE = "f32[64,1024]{1,0}"


def start(to, at):
    return f"""ENTRY e {{
      p = {at} parameter(0)
      s = ({to}, {at}, u32[]) copy-start(p)
      ROOT d = {to} copy-done(s)
    }}"""


def test_a_copy_between_host_and_device_crosses_the_bus():
    size = 64 * ROW
    assert work_of(start(HOST, DEVICE), "s") == Work("host-copy", 0, size, 0, (), size)
    assert work_of(start(DEVICE, HOST), "s") == Work("host-copy", 0, 0, size, (), size)
    assert work_of(start(DEVICE, DEVICE), "s") == Work("copy", 0, size, size)
    assert work_of(start(HOST, DEVICE), "d") == NOTHING
    assert work_of(one(HOST, "copy()", DEVICE)).host_bytes == size


def test_a_kernel_that_slices_host_memory_moves_the_slice():
    body = SLICED + SIZES + "\nROOT r = f32[1,1024] negate(s)"
    text = fused(body, "f32[1,1024]", BIG, "s32[]").replace(
        f"p0 = {BIG} parameter(0)", f"p0 = {HOST} parameter(0)"
    )
    found = work_of(text)
    assert found == Work("fusion", 1024, INDEX, ROW, (), ROW)


def test_an_update_of_host_memory_moves_the_update():
    text = fused(
        UPDATE + "ROOT r = f32[64,1024] bitcast(d)", BIG, BIG, "f32[1024]", "s32[]"
    )
    text = text.replace(BIG, HOST)
    assert work_of(text) == Work("host-copy", 0, ROW + INDEX, 0, (), ROW)


def test_what_launches_nothing():
    module = parse("""
    body { q = (s32[], f32[8]) parameter(0)
      ROOT r = (s32[], f32[8]) copy(q) }
    condition { q = (s32[], f32[8]) parameter(0)
      ROOT r = pred[] constant(false) }
    ENTRY e {
      p = f32[8] parameter(0)
      c = s32[] constant(3)
      b = f32[2,4] bitcast(p)
      t = (s32[], f32[8]) tuple(c, p)
      w = (s32[], f32[8]) while(t), body=body, condition=condition
      i = u32[] partition-id()
      k = token[] after-all()
      x = u8[64] custom-call(), custom_call_target="AllocateBuffer"
      ROOT g = f32[8] get-tuple-element(w), index=1
    }""")
    for instruction in module.entry.instructions.values():
        assert not launches_kernel(instruction), instruction.name
        assert work(module, module.entry, instruction) == NOTHING


def test_one_array_of_a_tuple_that_a_kernel_is_given():
    text = """
    body { q = (f32[64,1024], f32[512]) parameter(0)
      g = f32[512] get-tuple-element(q), index=1
      ROOT n = f32[512] negate(g) }
    ENTRY e {
      p = (f32[64,1024], f32[512]) parameter(0)
      ROOT f = f32[512] fusion(p), kind=kLoop, calls=body
    }"""
    assert work_of(text) == Work("fusion", 512, 2048, 2048)
