"""Seconds of a matrix product that a benchmark runs again and again.

A benchmark's operands are still in the cache from the time before, as far as all that
it goes through in a turn fits there; its output is, too. A kernel of a training step
finds other data there: `lagom_jax.cost.matmul` has its price. How the tables were
measured, and what of this was fitted: docs/explanation/model.md.
"""

from __future__ import annotations

import functools

import numpy as np

from lagom_jax.cluster import Gpu
from lagom_jax.cost.kernel_constants import Floats, KernelConstants
from lagom_jax.cost.matmul import Problems, predicted, rate_of
from lagom_jax.hlo.matmul import Matmul

# A benchmark has so many copies of its weights, or as many as fill the cache.
_MOST_COPIES = 5
# Of a cache that is filled in turn, what was there goes where a little more than its
# size comes through: all of it stays up to the first share of the size, none beyond the
# second.
_STAYS, _GOES = 1.0, 1.1
# Bytes of the cache that a byte of the output takes.
_OUTPUT_TAKES = 1.3


def found_in_cache(problems: Problems, gpu: Gpu) -> Floats:
    """The share of a product's bytes that are in the cache when it is run again.

    Args:
        problems: The products, each repeated alone.
        gpu: What runs them.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> gpu = Cluster.parse("l40s").gpu
        >>> sizes = [(16, 4096, 4608), (16, 4096, 6144), (16, 4096, 16384)]
        >>> of = [Matmul(1, *size, "bf16", "bf16", "bf16") for size in sizes]
        >>> found_in_cache(Problems.of(of), gpu).round(2)
        array([0.  , 0.96, 0.  ])
    """
    p = problems
    rows, output = p.m * p.k * p.lhs_bytes, p.m * p.n * p.out_bytes
    weights = p.batch * p.n * p.k * p.rhs_bytes
    copies = np.clip(np.ceil(gpu.l2_bytes / weights), 1, _MOST_COPIES)
    filled = copies * weights + p.batch * (rows + _OUTPUT_TAKES * output)
    return np.clip((_GOES - filled / gpu.l2_bytes) / (_GOES - _STAYS), 0, 1)


@functools.lru_cache(maxsize=1 << 14)
def looped_seconds(matmul: Matmul, gpu: Gpu, constants: KernelConstants) -> float:
    """Seconds of one product of a benchmark's loop, its launch included.

    Args:
        matmul: Sizes and types of the product.
        gpu: What runs it.
        constants: What that GPU's kernels reach of its peaks. Where nothing tells its
            cache from its memory, the time is that of the product in a step.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.kernel_constants import load_kernel_constants
        >>> from lagom_jax.cost.matmul import matmul_seconds
        >>> gpu, known = Cluster.parse("l40s").gpu, load_kernel_constants("l40s")
        >>> thin = Matmul(1, 16, 4096, 6144, "bf16", "bf16", "bf16")
        >>> looped_seconds(thin, gpu, known) < 0.7 * matmul_seconds(thin, gpu, known)
        True
    """
    rate, peak = rate_of(matmul.lhs, gpu)
    one = Problems.of([matmul])
    cached = found_in_cache(one, gpu)
    return float(predicted(one, gpu, peak, constants.matmul(rate), cached)[0])
