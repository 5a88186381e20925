"""XLA options as they are written on a command line."""

from __future__ import annotations

from collections.abc import Iterable

from lagom_jax.errors import LagomError


def parse_options(
    words: Iterable[str], *, used: bool = True
) -> dict[str, bool | int | float | str]:
    """Options by name, each value with the type that the compiler expects.

    Args:
        words: `NAME=VALUE`, with or without the two dashes of `XLA_FLAGS`.
        used: False where options make no sense; then there must be none.

    Raises:
        LagomError: A word is not of that form.

    Example:
        >>> parse_options(["--xla_gpu_enable_pipelined_all_gather=true",
        ...                "xla_gpu_all_gather_combine_threshold_bytes=1048576"])
        {'xla_gpu_enable_pipelined_all_gather': True,
         'xla_gpu_all_gather_combine_threshold_bytes': 1048576}
    """
    found: dict[str, bool | int | float | str] = {}
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals or not name:
            raise LagomError(f"{word!r} is no compiler option; write NAME=VALUE")
        found[name] = _typed(value)
    if found and not used:
        raise LagomError(
            "--option goes with a step that is compiled; a dump is already compiled"
        )
    return found


def _typed(value: str) -> bool | int | float | str:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
