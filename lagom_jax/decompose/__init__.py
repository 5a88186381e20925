"""Collectives and the matmuls next to them, cut so that one hides the other.

The functions stand on jax alone, which is imported when the first is asked for; advice
on where to cut stands on programs and prices.

Example:
    >>> from lagom_jax import decompose
    >>> decompose.Form("ring", slices=2).label
    'ring, 2 slices'
"""

from typing import TYPE_CHECKING

from lagom_jax.decompose.form import PLAIN, DecomposeError, Form
from lagom_jax.later import later

if TYPE_CHECKING:
    from lagom_jax.decompose.collective_matmul import (
        all_gather_matmul,
        gather_matmul_slices,
        gathered_weight_matmul,
        matmul_all_reduce,
        matmul_reduce_scatter,
        scatter_matmul_slices,
    )
    from lagom_jax.decompose.example_batches import half_batches
    from lagom_jax.decompose.sharded_layers import (
        attention_output,
        column_parallel,
        feed_forward,
        row_parallel,
        ulysses_attention,
    )
    from lagom_jax.decompose.sites import CommunicatedMatmul
    from lagom_jax.decompose.sliced_function import (
        half_batch_loops,
        rings,
        sliced,
        transformed,
        with_forms,
    )

_LATER = {
    "all_gather_matmul": "collective_matmul",
    "gather_matmul_slices": "collective_matmul",
    "gathered_weight_matmul": "collective_matmul",
    "matmul_all_reduce": "collective_matmul",
    "matmul_reduce_scatter": "collective_matmul",
    "scatter_matmul_slices": "collective_matmul",
    "attention_output": "sharded_layers",
    "column_parallel": "sharded_layers",
    "half_batch_loops": "sliced_function",
    "half_batches": "example_batches",
    "feed_forward": "sharded_layers",
    "row_parallel": "sharded_layers",
    "ulysses_attention": "sharded_layers",
    "CommunicatedMatmul": "sites",
    "rings": "sliced_function",
    "sliced": "sliced_function",
    "transformed": "sliced_function",
    "with_forms": "sliced_function",
}

__all__ = [
    "PLAIN",
    "CommunicatedMatmul",
    "DecomposeError",
    "Form",
    "all_gather_matmul",
    "attention_output",
    "column_parallel",
    "feed_forward",
    "gather_matmul_slices",
    "gathered_weight_matmul",
    "half_batch_loops",
    "half_batches",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "rings",
    "row_parallel",
    "scatter_matmul_slices",
    "sliced",
    "transformed",
    "ulysses_attention",
    "with_forms",
]

# Names that need jax.
__getattr__ = later(__name__, _LATER)
