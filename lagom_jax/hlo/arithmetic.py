"""Operations per element of a result, for each opcode.

Additions, multiplications, comparisons, selections, conversions and bit operations
are one operation each, for floating-point and integer elements alike: an integer
operation occupies the same arithmetic units. Moving data is none. What the GPU
computes on its special function units counts `SPECIAL_OPERATIONS`.
"""

from __future__ import annotations

from lagom_jax.hlo.module import Computation

SPECIAL_OPERATIONS = 16
"""Operations that one result of the special function units stands for.

A multiprocessor of compute capability 9.0 gives 16 such results in the time of 128
fused multiply-adds (arithmetic throughput table of NVIDIA's CUDA C++ programming
guide), and a fused multiply-add is two operations.
"""

_SIMPLE = """
    abs add and ceil clamp compare complex convert count-leading-zeros floor imag
    is-finite maximum minimum multiply negate not or popcnt real reduce-precision
    round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic
    shift-right-logical sign stochastic-convert subtract xor"""
_SPECIAL = """
    acos acosh asin asinh atan2 atanh cbrt cosh cosine divide erf exponential
    exponential-minus-one log log-plus-one logistic power remainder rsqrt sine sinh
    sqrt tan tanh"""

ARITHMETIC: dict[str, float] = {
    **dict.fromkeys(_SIMPLE.split(), 1.0),
    **dict.fromkeys(_SPECIAL.split(), float(SPECIAL_OPERATIONS)),
}
"""Operations per element of the elementwise opcodes.

Example:
    >>> ARITHMETIC["add"], ARITHMETIC["tanh"]
    (1.0, 16.0)
"""


def complex_factor(opcode: str) -> float:
    """Real operations that stand for one operation on complex numbers.

    Example:
        >>> complex_factor("multiply"), complex_factor("add")
        (6.0, 2.0)
    """
    return 6.0 if opcode == "multiply" else 2.0


def scalar_flops(body: Computation) -> float:
    """Operations of one call of a scalar function: a reducer, a comparator.

    Args:
        body: The computation that a reduction, a scatter or a sort calls.
    """
    total = 0.0
    for instruction in body.instructions.values():
        weight = ARITHMETIC.get(instruction.opcode)
        if weight:
            if instruction.shape.type[0] == "c":
                weight *= complex_factor(instruction.opcode)
            total += weight
    return total
