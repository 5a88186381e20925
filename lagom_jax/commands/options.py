"""XLA options as they are written on a command line."""

from __future__ import annotations

from collections.abc import Iterable

from lagom_jax.errors import LagomError
from xla_flags import FlagError, OptionValue, known, parse_flag, print_option


def parse_options(words: Iterable[str], *, used: bool = True) -> dict[str, OptionValue]:
    """Options by name, each value with the type that the compiler expects.

    Values of options in the catalogue are written as in `XLA_FLAGS`; those of others
    are taken for what they look like.

    Args:
        words: `NAME=VALUE`, with or without the two dashes of `XLA_FLAGS`.
        used: False where options make no sense; then there must be none.

    Raises:
        LagomError: A word is not of that form, or the option cannot have that value.

    Example:
        >>> parse_options(["--xla_gpu_enable_pipelined_all_gather=true",
        ...                "xla_gpu_pipeline_all_gather=on", "xla_gpu_unheard_of=2"])
        {'xla_gpu_enable_pipelined_all_gather': True,
         'xla_gpu_pipeline_all_gather': 'COLLECTIVE_PIPELINING_MODE_ON',
         'xla_gpu_unheard_of': 2}
    """
    found: dict[str, OptionValue] = {}
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals or not name:
            raise LagomError(f"{word!r} is no compiler option; write NAME=VALUE")
        found[name] = _typed(name, value)
    if found and not used:
        raise LagomError(
            "--option goes with a step that is compiled; a dump is already compiled"
        )
    return found


def _typed(name: str, value: str) -> OptionValue:
    flag = known().get(name)
    if flag is not None and flag.routes[0] == "XLA_FLAGS":
        try:
            return print_option(flag, parse_flag(flag, value))
        except FlagError as error:
            raise LagomError(f"--option {name}={value}: {error}") from error
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
