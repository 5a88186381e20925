"""Matrix products, in every spelling that the compiler has for them."""

import json

import pytest

from lagom_jax.hlo.matmul import Matmul
from tests.hlo.kernels import fused, one, work_of

PLAIN = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
NUMBERS = {
    "lhs_contracting_dimensions": ["1"],
    "rhs_contracting_dimensions": ["0"],
    "lhs_batch_dimensions": [],
    "rhs_batch_dimensions": [],
}


def test_batch_and_contracting_dimensions_anywhere():
    text = one(
        "f32[5,3,11]",
        "dot(), lhs_batch_dims={1}, lhs_contracting_dims={0}, "
        "rhs_batch_dims={2}, rhs_contracting_dims={1}",
        "f32[7,5,3]",
        "f32[11,7,5]",
    )
    found = work_of(text)
    assert found.matmuls == (Matmul(5, 3, 11, 7, "f32", "f32", "f32"),)
    assert found.flops == 2 * 5 * 3 * 11 * 7
    assert found.bytes_read == 4 * (7 * 5 * 3 + 11 * 7 * 5)
    assert found.bytes_written == 4 * 5 * 3 * 11


@pytest.mark.parametrize(
    ("type_", "size"), [("bf16", 2), ("f8e4m3fn", 1), ("f64", 8), ("s8", 1)]
)
def test_element_types(type_, size):
    result = "s32" if type_ == "s8" else "f32"
    found = work_of(
        one(f"{result}[64,32]", f"dot(), {PLAIN}", f"{type_}[64,16]", f"{type_}[16,32]")
    )
    assert found.matmuls == (Matmul(1, 64, 32, 16, type_, type_, result),)
    assert found.bytes_read == size * (64 * 16 + 16 * 32)


def test_complex_product_takes_four_times_the_operations():
    text = one("c64[4,4]", f"dot(), {PLAIN}", "c64[4,4]", "c64[4,4]")
    assert work_of(text).flops == 4 * 2 * 4 * 4 * 4


def test_same_operand_twice_is_read_once():
    text = f"""ENTRY e {{
      p = f32[8,8] parameter(0)
      ROOT d = f32[8,8] dot(p, p), {PLAIN}
    }}"""
    assert work_of(text).bytes_read == 8 * 8 * 4


def test_fused_epilogue_and_prologue():
    body = f"""
      wide = bf16[64,16] convert(p0)
      d = f32[64,32] dot(wide, p1), {PLAIN}
      t = f32[64,32] tanh(d)
      ROOT r = bf16[64,32] convert(t)"""
    found = work_of(fused(body, "bf16[64,32]", "f8e5m2[64,16]", "bf16[16,32]"))
    assert found.kind == "matmul"
    assert found.matmuls == (Matmul(1, 64, 32, 16, "bf16", "bf16", "f32"),)
    product = 2 * 64 * 32 * 16
    assert found.flops == product + 64 * 16 + 64 * 32 * 16 + 64 * 32
    assert found.bytes_read == 64 * 16 + 16 * 32 * 2
    assert found.bytes_written == 64 * 32 * 2


def test_nested_fusion_counts_as_if_it_were_flat():
    text = f"""
    left {{
      a = s8[4,64,16] parameter(0)
      i = s32[] parameter(1)
      z = s32[] constant(0)
      s = s8[1,64,16] dynamic-slice(a, i, z, z), dynamic_slice_sizes={{1,64,16}}
      b = s8[64,16] bitcast(s)
      ROOT c = bf16[64,16] convert(b)
    }}
    right {{
      ROOT b = bf16[16,32] parameter(0)
    }}
    gemm {{
      x = s8[4,64,16] parameter(0)
      i = s32[] parameter(1)
      w = bf16[16,32] parameter(2)
      l = bf16[64,16] fusion(x, i), kind=kCustom, calls=left
      r = bf16[16,32] fusion(w), kind=kCustom, calls=right
      ROOT d = bf16[64,32] dot(l, r), {PLAIN}
    }}
    ENTRY e {{
      x = s8[4,64,16] parameter(0)
      i = s32[] parameter(1)
      w = bf16[16,32] parameter(2)
      ROOT f = bf16[64,32] fusion(x, i, w), kind=kCustom, calls=gemm,
        backend_config={{"fusion_backend_config":
          {{"kind":"__triton_nested_gemm_fusion"}}}}
    }}"""
    found = work_of(text)
    assert found.matmuls == (Matmul(1, 64, 32, 16, "bf16", "bf16", "bf16"),)
    assert found.flops == 2 * 64 * 32 * 16 + 64 * 16
    assert found.bytes_read == 64 * 16 + 4 + 16 * 32 * 2


def gemm(target, result, config, *operands):
    return one(
        result,
        f'custom-call(), custom_call_target="{target}", '
        f"backend_config={json.dumps(config)}",
        *operands,
    )


@pytest.mark.parametrize("target", ["__cublas$gemm", "__cublas$lt$matmul"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_cublas_in_new_and_old_spelling(target, wrapped):
    config = {"beta": 0, "dot_dimension_numbers": NUMBERS, "lhs_stride": "1024"}
    config = {"gemm_backend_config": config} if wrapped else config
    result = "(bf16[64,32], s8[4194304])"
    found = work_of(gemm(target, result, config, "bf16[64,16]", "bf16[16,32]"))
    assert (found.kind, found.target) == ("matmul", target)
    assert found.matmuls == (Matmul(1, 64, 32, 16, "bf16", "bf16", "bf16"),)
    assert found.bytes_read == 2 * (64 * 16 + 16 * 32)
    # The workspace is no traffic.
    assert found.bytes_written == 2 * 64 * 32


def test_cublas_adds_to_a_matrix_and_leaves_an_auxiliary_result():
    config = {
        "gemm_backend_config": {
            "beta": 1,
            "epilogue": "BIAS_GELU_AUX",
            "dot_dimension_numbers": NUMBERS,
        }
    }
    operands = ("bf16[64,16]", "bf16[16,32]", "bf16[64,32]", "bf16[32]")
    result = "(bf16[64,32], bf16[64,32], s8[1024])"
    found = work_of(gemm("__cublas$lt$matmul", result, config, *operands))
    assert found.bytes_read == 2 * (64 * 16 + 16 * 32 + 64 * 32 + 32)
    assert found.bytes_written == 2 * 2 * 64 * 32


def test_cublas_batches_by_the_operands_dimensions():
    numbers = {
        "lhs_contracting_dimensions": ["2"],
        "rhs_contracting_dimensions": ["2"],
        "lhs_batch_dimensions": ["0"],
        "rhs_batch_dimensions": ["0"],
    }
    config = {"gemm_backend_config": {"dot_dimension_numbers": numbers}}
    shapes = ("bf16[12,64,16]", "bf16[12,48,16]")
    found = work_of(gemm("__cublas$gemm", "bf16[12,64,48]", config, *shapes))
    assert found.matmuls == (Matmul(12, 64, 48, 16, "bf16", "bf16", "bf16"),)


def test_cublas_scaled_fp8():
    config = {"gemm_backend_config": {"beta": 0, "dot_dimension_numbers": NUMBERS}}
    found = work_of(
        gemm(
            "__cublas$lt$matmul$f8",
            "(bf16[64,32], f32[], s8[64])",
            config,
            *("f8e4m3fn[64,16]", "f8e5m2[16,32]", "f32[]", "f32[]"),
        )
    )
    assert found.matmuls == (Matmul(1, 64, 32, 16, "f8e4m3fn", "f8e5m2", "bf16"),)
    assert found.bytes_read == 64 * 16 + 16 * 32 + 8
    assert found.bytes_written == 2 * 64 * 32 + 4


def test_block_scaled_product():
    text = one(
        "bf16[4,64,32]",
        'custom-call(), custom_call_target="__op$block_scaled_dot"',
        *("f8e4m3fn[4,64,96]", "f8e4m3fn[4,32,96]"),
        *("f8e8m0fnu[4,64,3]", "f8e8m0fnu[4,32,3]"),
    )
    found = work_of(text)
    assert found.matmuls == (Matmul(4, 64, 32, 96, "f8e4m3fn", "f8e4m3fn", "bf16"),)
    assert found.bytes_read == 4 * (64 * 96 + 32 * 96 + 64 * 3 + 32 * 3)


RAGGED = {
    "dot_dimension_numbers": {
        "lhs_contracting_dimensions": ["1"],
        "rhs_contracting_dimensions": ["1"],
    },
    "lhs_ragged_dimensions": ["0"],
    "rhs_group_dimensions": ["0"],
}


def test_grouped_cublas_product():
    config = {"grouped_gemm_backend_config": {"ragged_dot_dimension_numbers": RAGGED}}
    shapes = ("bf16[96,16]", "bf16[8,16,32]", "s32[8]")
    target = "__cublas$lt$groupedMatmul"
    found = work_of(gemm(target, "(bf16[96,32], s8[64])", config, *shapes))
    assert found.matmuls == (Matmul(8, 12, 32, 16, "bf16", "bf16", "bf16"),)
    assert found.flops == 2 * 96 * 32 * 16
    assert found.bytes_read == 2 * (96 * 16 + 8 * 16 * 32) + 8 * 4


@pytest.mark.parametrize(
    ("result", "dims", "lhs", "rhs", "flops"),
    [
        pytest.param(
            "bf16[96,32]",
            "lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
            "lhs_ragged_dims={0}, rhs_group_dims={0}",
            *("bf16[96,16]", "bf16[8,16,32]"),
            2 * 96 * 16 * 32,
            id="rows",
        ),
        pytest.param(
            "bf16[8,16,32]",
            "lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}",
            *("bf16[96,16]", "bf16[96,32]"),
            2 * 96 * 16 * 32,
            id="summed",
        ),
    ],
)
def test_ragged_dot(result, dims, lhs, rhs, flops):
    found = work_of(one(result, f"ragged-dot(), {dims}", lhs, rhs, "s32[8]"))
    assert (found.kind, found.flops) == ("matmul", flops)


def test_a_product_of_matrices_is_known_by_its_sizes_where_its_config_is_missing():
    shapes = ("f8e4m3fn[32,64]", "f8e5m2[128,64]", "f32[]", "f32[]")
    target = "__cublas$lt$matmul$f8"
    found = work_of(gemm(target, "(bf16[32,128], s8[64])", {}, *shapes))
    assert found.matmuls == (Matmul(1, 32, 128, 64, "f8e4m3fn", "f8e5m2", "bf16"),)


@pytest.mark.parametrize(
    ("result", "lhs", "rhs"),
    [
        ("f32[2,8,8]", "f32[2,8,8]", "f32[2,8,8]"),
        ("f32[7,5]", "f32[8,8]", "f32[8,8]"),
        ("f32[0,0]", "f32[8,8]", "f32[8,8]"),
    ],
)
def test_other_products_without_config_are_unknown_but_keep_their_bytes(
    result, lhs, rhs
):
    found = work_of(gemm("__cublas$gemm", result, {}, lhs, rhs))
    assert (found.kind, found.flops, found.target) == ("custom", 0, "__cublas$gemm")
    other = one(result, 'custom-call(), custom_call_target="foo"', lhs, rhs)
    assert found.bytes_read == work_of(other).bytes_read > 0
