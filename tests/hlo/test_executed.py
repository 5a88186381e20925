"""What the threads of a fused kernel execute."""

import pytest

from tests.hlo.kernels import ADD, fused, whole_work_of

SUM = "reduce({}, z), dimensions={{{}}}, to_apply=add"


def test_what_is_spread_along_the_line_is_computed_for_each_element():
    """A mask of columns, as attention has it; its rows' part is computed once a row."""
    body = """
      columns = f32[512] negate(p1)
      by_column = f32[64,512] broadcast(columns), dimensions={1}
      rows = f32[64] negate(p2)
      by_row = f32[64,512] broadcast(rows), dimensions={0}
      one = f32[64,512] add(p0, by_column)
      ROOT two = f32[64,512] add(one, by_row)"""
    shapes = ("f32[64,512]", "f32[512]", "f32[64]")
    found = whole_work_of(fused(body, "f32[64,512]", *shapes))
    assert found.flops == 2 * 64 * 512 + 512 + 64
    assert found.executed == 3 * 64 * 512 + 64


def test_a_number_is_computed_once():
    body = """
      n = f32[] negate(p1)
      all = f32[64,512] broadcast(n), dimensions={}
      ROOT a = f32[64,512] add(p0, all)"""
    found = whole_work_of(fused(body, "f32[64,512]", "f32[64,512]", "f32[]"))
    assert found.executed == 64 * 512 + 1


def test_an_element_that_two_results_need_is_computed_once():
    body = f"""
      z = f32[] constant(0)
      e = f32[64,512] exponential(p0)
      s = f32[64] {SUM.format("e", 1)}
      ROOT t = (f32[64,512], f32[64]) tuple(e, s)"""
    found = whole_work_of(ADD + fused(body, "(f32[64,512], f32[64])", "f32[64,512]"))
    # A special function is one operation, and so is adding.
    assert found.executed == 2 * 64 * 512


def test_an_update_in_place_computes_what_it_updates():
    body = """
      n = f32[1,512] negate(p1)
      ROOT u = f32[64,512] dynamic-update-slice(p0, n, p2, p3)"""
    shapes = ("f32[64,512]", "f32[1,512]", "s32[]", "s32[]")
    assert whole_work_of(fused(body, "f32[64,512]", *shapes)).executed == 512


@pytest.mark.parametrize(
    ("shape", "dimension", "sums", "columns"),
    [
        ("f32[64,512]{1,0}", 1, "f32[64]", False),
        ("f32[64,512]{1,0}", 0, "f32[512]", True),
        # By memory, not by number.
        ("f32[64,512]{0,1}", 0, "f32[512]", False),
        ("f32[64,512]{0,1}", 1, "f32[64]", True),
        # A length of one is no line.
        ("f32[64,512,1]{2,1,0}", 1, "f32[64,1]", False),
    ],
)
def test_rows_and_columns(shape, dimension, sums, columns):
    body = f"""
      z = f32[] constant(0)
      n = {shape} negate(p0)
      ROOT s = {sums} {SUM.format("n", dimension)}"""
    assert whole_work_of(ADD + fused(body, sums, shape)).by_columns is columns


@pytest.mark.parametrize(
    ("order", "result", "elements"),
    [("1,0,2", "bf16[4,64,512]", 0), ("2,0,1", "bf16[512,64,4]", 64 * 4 * 512)],
)
def test_elements_written_across_the_order_of_reading(order, result, elements):
    dims = {"1,0,2": "{1,0,2}", "2,0,1": "{2,0,1}"}[order]
    body = f"""
      z = f32[] constant(0)
      s = f32[64,4] {SUM.format("p0", 2)}
      t = f32[{result[5:-1]}] transpose(p0), dimensions={dims}
      c = {result} convert(t)
      ROOT r = (f32[64,4], {result}) tuple(s, c)"""
    found = whole_work_of(ADD + fused(body, f"(f32[64,4], {result})", "f32[64,4,512]"))
    assert found.strided == elements


def test_a_transpose_by_itself_is_turned_round_in_tiles():
    body = "ROOT t = f32[512,64] transpose(p0), dimensions={1,0}"
    assert whole_work_of(fused(body, "f32[512,64]", "f32[64,512]")).strided == 0
