"""Convolutions: how many multiplications a window over padded data takes."""

from __future__ import annotations

import math
from typing import Any

from lagom_jax.hlo.module import Shape


def positions(
    inputs: int,
    kernel: int,
    outputs: int,
    *,
    stride: int = 1,
    padding: int = 0,
    kernel_dilation: int = 1,
    input_dilation: int = 1,
) -> int:
    """Pairs of output and kernel positions that meet an input, in one dimension.

    Positions that fall into padding or between dilated elements take no arithmetic.

    Args:
        inputs: Size of the input.
        kernel: Size of the kernel.
        outputs: Size of the output.
        stride: Steps in the input between two outputs.
        padding: Zeros before the input's first element; negative crops.
        kernel_dilation: Distance between neighbouring kernel elements.
        input_dilation: Distance between neighbouring input elements.

    Example:
        A window of three over five elements with one zero on either side loses one
        position at each end:

        >>> positions(5, 3, 5, padding=1)
        13
    """
    span = (inputs - 1) * input_dilation + 1 if inputs else 0
    # Walking the shorter side keeps the gradient of a kernel, whose window is as
    # large as an image, as cheap as the convolution itself.
    if kernel <= outputs:
        steps, step, count, each = kernel, kernel_dilation, outputs, stride
    else:
        steps, step, count, each = outputs, stride, kernel, kernel_dilation
    return sum(
        _hits(index * step - padding, each, count, span, input_dilation)
        for index in range(steps)
    )


def _hits(first: int, step: int, count: int, span: int, dilation: int) -> int:
    """Counts those of `count` places, `step` apart, that are elements of the input."""
    low = max(0, -(first // step))
    high = min(count - 1, (span - 1 - first) // step)
    if high < low:
        return 0
    common = math.gcd(step, dilation)
    if first % common:
        return 0
    period = dilation // common
    if period == 1:
        return high - low + 1
    start = -(first // common) * pow(step // common, -1, period) % period
    return (high - start) // period - (low - 1 - start) // period


def convolution_flops(instruction: Any, data: Shape, kernel: Shape, out: Shape) -> int:
    """Floating-point operations of a convolution with this geometry.

    The gradients of a convolution multiply the same pairs of elements as the
    convolution itself, so all three are counted from the forward geometry.

    Args:
        instruction: The HloInstructionProto with window, dimension numbers and group
            counts of the forward convolution.
        data: Shape of the forward convolution's input.
        kernel: Shape of its kernel.
        out: Shape of its output.
    """
    numbers = instruction.convolution_dimension_numbers
    pairs = 1
    for dimension, window in enumerate(instruction.window.dimensions):
        pairs *= positions(
            _size(data, numbers.input_spatial_dimensions[dimension]),
            _size(kernel, numbers.kernel_spatial_dimensions[dimension]),
            _size(out, numbers.output_spatial_dimensions[dimension]),
            # Zero is what an absent field reads as; both mean one.
            stride=window.stride or 1,
            padding=window.padding_low,
            kernel_dilation=window.window_dilation or 1,
            input_dilation=window.base_dilation or 1,
        )
    groups: int = max(1, instruction.batch_group_count)
    batch = _size(data, numbers.input_batch_dimension) // groups
    # What is neither a position nor the output channel is summed over: the input
    # channels, and in vectorised layouts the dimension that packs some of them.
    kept = {numbers.kernel_output_feature_dimension, *numbers.kernel_spatial_dimensions}
    summed = math.prod([n for d, n in enumerate(kernel.dimensions) if d not in kept])
    features = _size(kernel, numbers.kernel_output_feature_dimension)
    per_term = 8 if data.type in ("c64", "c128") else 2
    return per_term * pairs * batch * summed * features


def _size(shape: Shape, dimension: int) -> int:
    return shape.dimensions[dimension]
