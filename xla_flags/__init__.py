"""The knobs of XLA's GPU compiler and of NCCL, as data.

The catalogue says what each knob binds, where it can be set, what it was seen to
change and what it can break; `values` and `flag_text` read and write settings exactly
as XLA does; `pinned` finds what the user has set already; `recipes` holds what others
recommend. Nothing here needs jax, a compiler or a GPU.

Example:
    >>> flag = find("xla_gpu_pipeline_all_gather")
    >>> parse_flag(flag, "on")
    'COLLECTIVE_PIPELINING_MODE_ON'
    >>> nearest("xla_gpu_all_gather_combine_treshold")
    'xla_gpu_all_gather_combine_threshold_bytes'
"""

from xla_flags.catalogue import find, flags, known, nearest
from xla_flags.flag import Flag, FlagError, OptionValue, Value
from xla_flags.flag_text import join, names_dump, split
from xla_flags.here import pinned_here
from xla_flags.pinned import (
    Pin,
    in_effect,
    pinned_by_environment,
    pinned_by_options,
    pinned_by_xla_flags,
)
from xla_flags.planned import check_planned, check_tried
from xla_flags.recipes import Recipe, recipes
from xla_flags.values import parse_flag, parse_option, print_flag, print_option

__all__ = [
    "Flag",
    "FlagError",
    "OptionValue",
    "Pin",
    "Recipe",
    "Value",
    "check_planned",
    "check_tried",
    "find",
    "flags",
    "in_effect",
    "join",
    "known",
    "names_dump",
    "nearest",
    "parse_flag",
    "parse_option",
    "pinned_by_environment",
    "pinned_by_options",
    "pinned_by_xla_flags",
    "pinned_here",
    "print_flag",
    "print_option",
    "recipes",
    "split",
]
