"""Compiled programs: modules, computations, instructions and their work."""

from typing import TYPE_CHECKING

from lagom_jax.later import later

if TYPE_CHECKING:
    from lagom_jax.hlo.files import HloBytes, read_bytes
    from lagom_jax.hlo.module import Computation, Instruction, Module, Shape
    from lagom_jax.hlo.read import read_module
    from lagom_jax.hlo.stated_kernels import StatedKernel, load_kernels

__all__ = [
    "Computation",
    "HloBytes",
    "Instruction",
    "Module",
    "Shape",
    "StatedKernel",
    "load_kernels",
    "read_bytes",
    "read_module",
]

__getattr__ = later(
    __name__,
    {
        "Computation": "module",
        "HloBytes": "files",
        "Instruction": "module",
        "Module": "module",
        "Shape": "module",
        "StatedKernel": "stated_kernels",
        "load_kernels": "stated_kernels",
        "read_bytes": "files",
        "read_module": "read",
    },
)
