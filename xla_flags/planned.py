"""Options that a plan may name: the ones that a search for plans can come up with.

A plan is a file that may come from anywhere, and XLA has options that write files, run
programs from a folder, or leave out passes that a program needs. So a plan can name
only the options whose records say `planned`, each with a value of its type.
"""

from __future__ import annotations

from xla_flags.catalogue import hint, known
from xla_flags.flag import FlagError, OptionValue
from xla_flags.recipes import Recipe, recipes
from xla_flags.values import parse_option, print_option


def check_planned(name: str, value: OptionValue) -> None:
    """Refuses an option that no search for plans comes up with.

    Args:
        name: A compiler option.
        value: Its value, as `compiler_options` take it.

    Raises:
        FlagError: No plan may name the option, or it cannot have that value.

    Example:
        >>> check_planned("xla_gpu_enable_pipelined_all_gather", True)
        >>> check_planned("xla_dump_to", "/tmp")
        Traceback (most recent call last):
        ...
        xla_flags.flag.FlagError: xla_dump_to is not an option that a plan may set
        >>> check_planned("xla_gpu_enable_pipelined_all_gather", 1)
        Traceback (most recent call last):
        ...
        xla_flags.flag.FlagError: xla_gpu_enable_pipelined_all_gather is a bool: as a
        compiler option it cannot be 1
    """
    flag = known().get(name)
    if flag is None or not flag.planned:
        more = hint(name) if flag is None else ""
        raise FlagError(f"{name} is not an option that a plan may set{more}")
    meant = parse_option(flag, value)
    # XLA also takes texts for numbers; a plan has one spelling for each value.
    if type(meant) is not type(value):
        raise FlagError(f"{name} is of type {flag.type}: in a plan it is no {value!r}")


def check_tried(name: str, value: OptionValue) -> None:
    """Refuses an option that neither a search for plans nor a recipe comes up with.

    Raises:
        FlagError: It is none of these.

    Example:
        >>> check_tried("optimization_level", 19)
        >>> check_tried("optimization_level", 39)
        Traceback (most recent call last):
        ...
        xla_flags.flag.FlagError: optimization_level is not an option that a plan ...
    """
    if not any(_recommends(recipe, name, value) for recipe in recipes()):
        check_planned(name, value)


def _recommends(recipe: Recipe, name: str, value: OptionValue) -> bool:
    if name not in recipe.settings:
        return False
    flag = known()[name]
    if "compiler_options" not in flag.routes:
        return False
    printed = print_option(flag, recipe.settings[name])
    return type(printed) is type(value) and printed == value
