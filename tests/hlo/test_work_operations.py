"""Convolutions, attention, transforms, reductions, sorting and unknown calls."""

import itertools
import json
import math

import hypothesis
import hypothesis.strategies as st
import pytest

from lagom_jax.hlo.arithmetic import SPECIAL_OPERATIONS
from lagom_jax.hlo.convolution import positions
from lagom_jax.hlo.sorting import bitonic_sort
from lagom_jax.hlo.work import Work
from tests.hlo.kernels import ADD, fused, one, work_of


@hypothesis.given(
    inputs=st.integers(1, 9),
    kernel=st.integers(1, 9),
    stride=st.integers(1, 4),
    low=st.integers(-2, 4),
    high=st.integers(-2, 4),
    kernel_dilation=st.integers(1, 4),
    input_dilation=st.integers(1, 4),
)
def test_positions_are_those_that_a_loop_meets(
    inputs, kernel, stride, low, high, kernel_dilation, input_dilation
):
    span = (inputs - 1) * input_dilation + 1
    reach = (kernel - 1) * kernel_dilation + 1
    outputs = max(0, (span + low + high - reach) // stride + 1)
    met = 0
    for out, tap in itertools.product(range(outputs), range(kernel)):
        place = out * stride - low + tap * kernel_dilation
        met += 0 <= place < span and place % input_dilation == 0
    found = positions(
        inputs,
        kernel,
        outputs,
        stride=stride,
        padding=low,
        kernel_dilation=kernel_dilation,
        input_dilation=input_dilation,
    )
    assert found == met


X, W, Y = "bf16[8,57,57,64]", "bf16[128,3,3,64]", "bf16[8,28,28,128]"
LABELS = "window={size=3x3 stride=2x2}, dim_labels=b01f_o01i->b01f"
CONVOLUTION = 2 * (8 * 28 * 28) * 128 * (3 * 3 * 64)


@pytest.mark.parametrize(
    ("target", "result", "operands"),
    [
        ("__cudnn$convForward", Y, (X, W)),
        ("__cudnn$convBackwardInput", X, (Y, W)),
        ("__cudnn$convBackwardFilter", W, (X, Y)),
        ("__cudnn$convBiasActivationForward", Y, (X, W, "bf16[128]")),
        ("__cudnn$convForwardGraph", Y, (X, W, Y)),
    ],
)
def test_cudnn_convolution_and_its_gradients(target, result, operands):
    call = f'custom-call(), {LABELS}, custom_call_target="{target}"'
    found = work_of(one(f"({result}, u8[1024])", call, *operands))
    assert (found.kind, found.target) == ("convolution", target)
    assert found.flops == CONVOLUTION
    assert found.bytes_written == work_of(one(result, "copy()", result)).bytes_written


def test_convolution_without_a_library():
    found = work_of(one(Y, f"convolution(), {LABELS}", X, W))
    assert (found.kind, found.flops) == ("convolution", CONVOLUTION)
    assert found.bytes_read == 2 * (8 * 57 * 57 * 64 + 128 * 3 * 3 * 64)


def test_grouped_convolution_sums_over_its_groups_channels():
    call = (
        "convolution(), window={size=3}, dim_labels=b0f_0io->b0f, feature_group_count=4"
    )
    found = work_of(one("f32[2,10,8]", call, "f32[2,12,16]", "f32[3,4,8]"))
    assert found.flops == 2 * (2 * 10) * 8 * (3 * 4)


def test_convolution_of_packed_channels():
    call = (
        "custom-call(), window={size=3x3}, dim_labels=bf?01_oi?01->bf?01, "
        'custom_call_target="__cudnn$convForward"'
    )
    shapes = ("s8[1,16,4,10,10]", "s8[128,16,4,3,3]")
    found = work_of(one("(s8[1,32,4,8,8], u8[9])", call, *shapes))
    assert found.flops == 2 * (8 * 8) * 128 * (64 * 3 * 3)


def attention(target, mask, *, heads=(16, 16), keys=512, width=64, extra=None):
    config = {
        "mask_type": mask,
        "intermediate_tensor_shape": {"dimensions": ["2", "16", "1024", str(keys)]},
        "bmm1_dot_dimension_numbers": {
            "lhs_contracting_dimensions": ["3"],
            "rhs_contracting_dimensions": ["3"],
            "lhs_batch_dimensions": ["0", "2"],
            "rhs_batch_dimensions": ["0", "2"],
        },
        **(extra or {}),
    }
    if "Backward" in target:
        # The gradient's config names other products.
        del config["bmm1_dot_dimension_numbers"]
    text = json.dumps({"cudnn_fmha_backend_config": config})
    query = f"bf16[2,1024,16,{width}]"
    other = f"bf16[2,{keys},{heads[1]},{width}]"
    result = f"({query}, f32[2,16,1024], u8[4096])"
    call = f'custom-call(), custom_call_target="{target}", backend_config={text}'
    return work_of(one(result, call, query, other, other))


SCORES = 2 * 16 * 1024 * 512


@pytest.mark.parametrize("name", ["Softmax", "ScaleBiasSoftmaxDropout", "SoftmaxF8"])
def test_attention_is_two_products(name):
    found = attention(f"__cudnn$fmha{name}", "NO_MASK")
    assert found.kind == "attention"
    assert found.flops == 2 * (2 * SCORES * 64)
    assert [m.flops for m in found.matmuls] == [2 * SCORES * 64] * 2
    assert found.bytes_written == 2 * (2 * 1024 * 16 * 64) + 4 * (2 * 16 * 1024)


def test_the_gradient_of_attention_is_five_products():
    found = attention("__cudnn$fmhaSoftmaxBackward", "NO_MASK")
    assert found.flops == 5 * (2 * SCORES * 64)


def test_causal_attention_computes_half_of_the_square():
    for target in ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"):
        full = attention(target, "NO_MASK", keys=1024)
        for mask in ("CAUSAL", "PADDING_CAUSAL"):
            assert attention(target, mask, keys=1024).flops == full.flops / 2
    old = attention("__cudnn$fmhaSoftmax", 0, keys=1024, extra={"is_causal_mask": True})
    assert old.flops == attention("__cudnn$fmhaSoftmax", "CAUSAL", keys=1024).flops


def test_a_sliding_window_computes_a_band():
    found = attention(
        "__cudnn$fmhaSoftmax", "CAUSAL", keys=1024, extra={"sliding_window_length": 128}
    )
    band = 128 * 128 / 2 + (1024 - 128) * 128
    assert found.flops == 2 * (2 * 2 * 16 * band * 64)


def test_grouped_queries_share_keys_but_not_products():
    found = attention("__cudnn$fmhaSoftmax", "NO_MASK", heads=(16, 4))
    assert found.flops == 2 * (2 * SCORES * 64)
    assert found.bytes_read == 2 * (2 * 1024 * 16 * 64 + 2 * 2 * 512 * 4 * 64)


ENGINE = (
    "{attn_heads = 32 : i64, bias_type = 0 : i64, deterministic = false, "
    "dropout_probability = 0.000000e+00 : f64, input_batch = 2 : i64, "
    "kv_max_seqlen = 4096 : i64, mask_type = %d : i64, num_gqa_groups = 8 : i64, "
    "q_max_seqlen = 4096 : i64, qk_head_dim = 128 : i64, qkv_layout = 9 : i64, "
    "v_head_dim = 64 : i64, window_size_left = -1 : i64, "
    "window_size_right = -1 : i64}"
)


@pytest.mark.parametrize(("mask", "part"), [(0, 1), (1, 1), (2, 0.5), (3, 0.5)])
@pytest.mark.parametrize(
    ("direction", "wide", "narrow"), [("forward", 1, 1), ("backward", 3, 2)]
)
def test_transformer_engine_attention(direction, wide, narrow, mask, part):
    call = (
        f'custom-call(), custom_call_target="te_fused_attn_{direction}_ffi", '
        f"api_version=API_VERSION_TYPED_FFI, backend_config={ENGINE % mask}"
    )
    query, key = "bf16[2,4096,32,128]", "bf16[2,4096,8,128]"
    value = "bf16[2,4096,8,64]"
    found = work_of(one("(bf16[2,4096,32,64], u8[99])", call, query, key, value))
    square = 2 * 32 * 4096 * 4096
    assert found.kind == "attention"
    assert found.flops == part * 2 * square * (wide * 128 + narrow * 64)
    assert found.bytes_written == 2 * (2 * 4096 * 32 * 64)


def fft(kind, result, operand, length):
    return work_of(one(result, f"fft(), fft_type={kind}, fft_length={length}", operand))


def test_fourier_transforms():
    points = 5 * 256 * math.log2(256)
    assert fft("FFT", "c64[3,256]", "c64[3,256]", "{256}").flops == 3 * points
    assert fft("IFFT", "c64[3,256]", "c64[3,256]", "{256}").flops == 3 * points
    assert fft("RFFT", "c64[3,129]", "f32[3,256]", "{256}").flops == 3 * points / 2
    assert fft("IRFFT", "f32[3,256]", "c64[3,129]", "{256}").flops == 3 * points / 2
    square = fft("FFT", "c64[16,16]", "c64[16,16]", "{16,16}")
    assert square == Work("fft", points, 8 * 256, 8 * 256)


def test_a_reduction_combines_all_but_one():
    call = "reduce(), dimensions={1}, to_apply=add"
    found = work_of(ADD + one("f32[64]", call, "f32[64,1000]", "f32[]"))
    assert found == Work("reduction", 64 * 999, 4 * 64 * 1000 + 4, 4 * 64)


def test_a_fused_reduction_computes_on_the_way():
    body = """
      c = f32[64,1000] convert(p0)
      q = f32[64,1000] multiply(c, c)
      z = f32[] constant(0)
      ROOT s = f32[64] reduce(q, z), dimensions={1}, to_apply=add"""
    found = work_of(ADD + fused(body, "f32[64]", "bf16[64,1000]"))
    assert found.flops == 2 * 64 * 1000 + 64 * 999
    assert (found.bytes_read, found.bytes_written) == (2 * 64 * 1000, 4 * 64)


def test_a_slice_of_a_reduction_reads_its_rows():
    body = """
      z = f32[] constant(0)
      r = f32[64] reduce(p0, z), dimensions={1}, to_apply=add
      ROOT s = f32[4] slice(r), slice={[8:12]}"""
    found = work_of(ADD + fused(body, "f32[4]", "f32[64,1000]"))
    assert (found.flops, found.bytes_read) == (4 * 999, 4 * 4 * 1000)


def test_a_reduction_of_several_arrays():
    text = """
    largest { a = f32[] parameter(0)
      i = s32[] parameter(1)
      b = f32[] parameter(2)
      j = s32[] parameter(3)
      c = pred[] compare(a, b), direction=GE
      x = f32[] select(c, a, b)
      y = s32[] select(c, i, j)
      ROOT t = (f32[], s32[]) tuple(x, y) }
    """ + one(
        "(f32[64], s32[64])",
        "reduce(), dimensions={1}, to_apply=largest",
        *("f32[64,1000]", "s32[64,1000]", "f32[]", "s32[]"),
    )
    found = work_of(text)
    assert found == Work("reduction", 3 * 64 * 999, 2 * 4 * 64 * 1000 + 8, 2 * 4 * 64)


def test_windows():
    call = "reduce-window(), window={size=1x16 stride=1x16}, to_apply=add"
    found = work_of(ADD + one("f32[64,64]", call, "f32[64,1024]", "f32[]"))
    assert found == Work("reduction", 64 * 64 * 15, 4 * 64 * 1024 + 4, 4 * 64 * 64)


def test_the_gradient_of_pooling():
    text = """
    ge { a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT c = pred[] compare(a, b), direction=GE }
    """
    call = "select-and-scatter(), window={size=1x4 stride=1x4}, select=ge, scatter=add"
    shapes = ("f32[8,64]", "f32[8,16]", "f32[]")
    found = work_of(ADD + text + one("f32[8,64]", call, *shapes))
    assert (found.kind, found.flops) == ("scatter", 8 * 16 * (3 + 1))


def test_special_functions_weigh_more_and_complex_numbers_count_as_two():
    for opcode, weight in [("negate", 1), ("tanh", SPECIAL_OPERATIONS)]:
        assert work_of(one("f32[100]", f"{opcode}()", "f32[100]")).flops == 100 * weight
    pair = ("c64[100]", "c64[100]")
    assert work_of(one("c64[100]", "add()", *pair)).flops == 200
    assert work_of(one("c64[100]", "multiply()", *pair)).flops == 600


LESS = """
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT }
"""


def test_a_sort_within_one_tile_goes_over_its_data_once():
    call = "sort(), dimensions={1}, to_apply=less"
    found = work_of(LESS + one("f32[64,1024]", call, "f32[64,1024]"))
    size = 4 * 64 * 1024
    assert found == Work("sort", 64 * 512 * 10 * 11 / 2, size, size)


def test_a_sort_beyond_one_tile_goes_over_its_data_again():
    # 2^14 elements are two stages more than the 2^12 of a tile: one pass for the
    # tiles, then one between tiles and one within, then two and one.
    assert bitonic_sort(1 << 14, 1, 4).passes == 1 + 2 + 3
    call = "sort(), dimensions={0}, to_apply=less"
    found = work_of(LESS + one("f32[16384]", call, "f32[16384]"))
    assert found.bytes_read == found.bytes_written == 6 * 4 * 16384


@hypothesis.given(stages=st.integers(0, 24), tile_bytes=st.sampled_from([4, 8, 12, 64]))
def test_passes_are_those_of_the_bitonic_network(stages, tile_bytes):
    tile = min(4096, 49152 // tile_bytes)
    tile = 1 << (tile.bit_length() - 1)
    passes, within = 0, False
    for stage in range(stages):
        for step in range(stage, -1, -1):
            partner = 2 ** (stage + 1) - 1 if step == stage else 2**step
            passes += partner >= tile or not within
            within = partner < tile
    assert bitonic_sort(1 << stages, 1, tile_bytes).passes == max(1, passes)


def test_a_radix_sort_has_a_pass_for_each_digit():
    call = 'custom-call(), custom_call_target="__cub$DeviceRadixSort"'
    result = "(u16[1000], f32[1000], u8[512])"
    found = work_of(one(result, call, "u16[1000]", "f32[1000]"))
    assert found == Work(
        "sort", 0, 2 * 6000 + 2000, 2 * 6000, (), 0, "__cub$DeviceRadixSort"
    )


def test_the_largest_few():
    call = 'custom-call(), custom_call_target="__gpu$TopK"'
    found = work_of(one("(f32[4,8], s32[4,8])", call, "f32[4,32000]"))
    size = 4 * 4 * 32000
    assert found == Work("sort", 4 * 32000, size, 2 * 4 * 32, (), 0, "__gpu$TopK")


def test_factorisations_and_solves():
    call = 'custom-call(), custom_call_target="cusolver_potrf_ffi"'
    found = work_of(one("(f32[3,96,96], s32[3])", call, "f32[3,96,96]"))
    assert (found.kind, found.flops) == ("solve", 3 * 96**3 / 3)
    call = 'custom-call(), custom_call_target="__cublas$triangularSolve"'
    found = work_of(one("(f32[96,32], s8[64])", call, "f32[96,96]", "f32[96,32]"))
    assert (found.kind, found.flops) == ("solve", 96 * 96 * 32)
    assert work_of(one("f32[96,96]", "cholesky()", "f32[96,96]")).flops == 96**3 / 3


@pytest.mark.parametrize(
    ("kind", "each"), [("LAYER_FWD_TRAIN", 8), ("LAYER_BWD", 13), (2, 13)]
)
def test_cudnn_norm(kind, each):
    config = json.dumps({"cudnn_norm_backend_config": {"kind": kind}})
    call = f'custom-call(), custom_call_target="__cudnn$norm", backend_config={config}'
    shapes = ("bf16[64,1024]", "bf16[1024]", "bf16[1024]")
    found = work_of(one("(bf16[64,1024], u8[99])", call, *shapes))
    assert (found.kind, found.flops) == ("reduction", each * 64 * 1024)
    assert found.bytes_written == 2 * 64 * 1024


def test_an_unknown_call_keeps_its_bytes_and_its_name():
    call = 'custom-call(), custom_call_target="my_kernel", backend_config="not json"'
    found = work_of(one("(f32[10], u8[7])", call, "f32[100]", "bf16[100]"))
    assert found == Work("custom", 0, 600, 47, (), 0, "my_kernel")


def test_a_callback_moves_its_arrays_to_the_host_and_back():
    target = "xla_ffi_python_gpu_callback"
    call = f'custom-call(), custom_call_target="{target}"'
    found = work_of(one("(f32[10])", call, "f32[100]"))
    assert found == Work("host-copy", 0, 400, 40, (), 440, target)


def test_infeed_and_outfeed():
    text = """ENTRY e {
      t = token[] after-all()
      i = (f32[10], token[]) infeed(t)
      x = f32[10] get-tuple-element(i), index=0
      ROOT o = token[] outfeed(x, t)
    }"""
    assert work_of(text, "i") == Work("host-copy", 0, 0, 40, (), 40)
    assert work_of(text, "o") == Work("host-copy", 0, 40, 0, (), 40)


def test_a_known_call_of_an_unknown_form_keeps_its_bytes():
    call = 'custom-call(), custom_call_target="__cudnn$fmhaSoftmax"'
    found = work_of(one("f32[10]", call, "f32[100]"))
    assert found == Work("custom", 0, 400, 40, (), 0, "__cudnn$fmhaSoftmax")


@pytest.mark.parametrize(
    ("call", "result", "written"),
    [
        ("all-gather(), dimensions={0}", "f32[64]", 256),
        ("all-gather-start(), dimensions={0}", "(f32[8], f32[64])", 256),
        ("all-reduce-start(), to_apply=add", "f32[8]", 32),
        ("reduce-scatter(), dimensions={0}, to_apply=add", "f32[1]", 4),
        (
            "collective-permute-start(), source_target_pairs={{0,1}}",
            "(f32[8], f32[8])",
            32,
        ),
        (
            "collective-permute-start(), source_target_pairs={{0,1}}",
            "(f32[8], f32[8], u32[], u32[])",
            32,
        ),
    ],
)
def test_collectives_read_what_they_send_and_write_what_they_receive(
    call, result, written
):
    if "permute" not in call:
        call += ", replica_groups={{0,1,2,3,4,5,6,7}}"
    found = work_of(ADD + one(result, call, "f32[8]"))
    assert found == Work("collective", 0, 32, written)
