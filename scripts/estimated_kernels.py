"""Constants of kernels that nobody measured, with the reason for each."""

from typing import Any

KERNELS: dict[str, dict[str, Any]] = {
    "launch_seconds": {
        "value": 4e-6,
        "source": "estimated: start, drain and gap of one kernel on a stream; the "
        "smallest measured matmuls, loads and arithmetic included, take 5 us",
    },
    "memory_shares": {
        "value": {
            "copy": 0.9,
            "fusion": 0.88,
            "reduction": 0.85,
            "transpose": 0.75,
            "gather": 0.6,
            "scatter": 0.4,
            "sort": 0.6,
            "fft": 0.7,
            "solve": 0.3,
            "other": 0.8,
        },
        "source": "estimated: streaming in order usually reaches 85-90 % of the peak; "
        "reductions also wait for each other, transposes and gathers leave parts of "
        "memory sectors unused, scatters read before they write and collide, sorts and "
        "transforms go through shared memory in between, factorisations are chains of "
        "small steps",
    },
    "attention_efficiency": {
        "value": 0.6,
        "source": "estimated: the FlashAttention-3 paper (2024) reports up to 75 % of "
        "an H100's bf16 peak for long forward passes; short ones, masks and backward "
        "passes reach less",
    },
    "convolution_efficiency": {
        "value": 0.6,
        "source": "estimated: matmuls by implicit lowering, less than matmuls reach",
    },
    "vector_efficiency": {
        "value": 0.6,
        "source": "estimated: the peak counts a multiply-add as two operations, which "
        "element by element arithmetic rarely is",
    },
    "host_link_efficiency": {
        "value": 0.85,
        "source": "estimated: payload share of PCIe packets",
    },
    "host_link_seconds": {
        "value": 1e-5,
        "source": "estimated: start and end of a copy between host and GPU",
    },
    "cache_speedup": {
        "value": 1.5,
        "source": "estimated: the second-level cache is two to three times as fast as "
        "memory, but not every operand of a small kernel was left there",
    },
    "cache_share": {
        "value": 0.5,
        "source": "estimated: the kernel before left its result, and other data too",
    },
}
