"""Meshes: which sizes to train a model with, before anything is compiled or rented.

Example:
    >>> found = choose("llama-3-8b", cluster="h100:2x8", tokens=65536, sequence=2048)
    >>> found.best.sizes.devices
    16
"""

from lagom_jax.mesh.candidates import Asks as Asks
from lagom_jax.mesh.choose import MeshAdvice as MeshAdvice
from lagom_jax.mesh.choose import MeshChoice as MeshChoice
from lagom_jax.mesh.choose import choose as choose
from lagom_jax.mesh.model_shape import ExpertShape as ExpertShape
from lagom_jax.mesh.model_shape import MeshError as MeshError
from lagom_jax.mesh.model_shape import ModelShape as ModelShape
from lagom_jax.mesh.sizes import MeshSizes as MeshSizes
from lagom_jax.mesh.sizes import StepBatch as StepBatch
from lagom_jax.mesh.verify import choose_by_compiling as choose_by_compiling
from lagom_jax.mesh.verify import verified as verified
