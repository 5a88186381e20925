"""Compiled programs: modules, computations, instructions and their work."""

from lagom_jax.hlo.files import HloBytes as HloBytes
from lagom_jax.hlo.files import read_bytes as read_bytes
from lagom_jax.hlo.module import Computation as Computation
from lagom_jax.hlo.module import Instruction as Instruction
from lagom_jax.hlo.module import Module as Module
from lagom_jax.hlo.module import Shape as Shape
from lagom_jax.hlo.read import read_module as read_module
from lagom_jax.hlo.stated_kernels import StatedKernel as StatedKernel
from lagom_jax.hlo.stated_kernels import load_kernels as load_kernels
