"""Meshes: which sizes to train a model with, before anything is compiled or rented.

Example:
    >>> from lagom_jax.mesh import choose
    >>> found = choose("llama-3-8b", cluster="h100:2x8", tokens=65536, sequence=2048)
    >>> found.best.sizes.devices
    16
"""

from typing import TYPE_CHECKING

from lagom_jax.later import later

if TYPE_CHECKING:
    from lagom_jax.mesh.candidates import Asks
    from lagom_jax.mesh.choosing import MeshAdvice, MeshChoice, choose
    from lagom_jax.mesh.model_shape import ExpertShape, MeshError, ModelShape
    from lagom_jax.mesh.sizes import MeshSizes, StepBatch
    from lagom_jax.mesh.verify import choose_by_compiling, verified

__all__ = [
    "Asks",
    "ExpertShape",
    "MeshAdvice",
    "MeshChoice",
    "MeshError",
    "MeshSizes",
    "ModelShape",
    "StepBatch",
    "choose",
    "choose_by_compiling",
    "verified",
]

__getattr__ = later(
    __name__,
    {
        "Asks": "candidates",
        "ExpertShape": "model_shape",
        "MeshAdvice": "choosing",
        "MeshChoice": "choosing",
        "MeshError": "model_shape",
        "MeshSizes": "sizes",
        "ModelShape": "model_shape",
        "StepBatch": "sizes",
        "choose": "choosing",
        "choose_by_compiling": "verify",
        "verified": "verify",
    },
)
