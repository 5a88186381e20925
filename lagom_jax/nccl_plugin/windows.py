"""Runs of calls that determine a communicator's position in its sequence."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, TypeAlias

from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin.rules import Place

LONGEST_WINDOW: Final = 64
Call: TypeAlias = tuple[str, int]
"""Function and bytes."""


def shortest_period(sequence: tuple[Place, ...]) -> tuple[Place, ...]:
    """The shortest part whose repetition is the sequence.

    Example:
        >>> call = Place("all-gather", 64, None)
        >>> len(shortest_period((call, call, call)))
        1
    """
    length = len(sequence)
    for period in range(1, length + 1):
        if length % period == 0 and sequence[period:] == sequence[:-period]:
            return sequence[:period]
    return sequence


def different(
    sequences: tuple[tuple[Place, ...], ...],
) -> tuple[tuple[Place, ...], ...]:
    """Sequences without what repeats in them and among them.

    Example:
        >>> call = Place("all-gather", 64, None)
        >>> len(different(((call,), (call, call))))
        1
    """
    return tuple(dict.fromkeys(shortest_period(sequence) for sequence in sequences))


def unique_windows(
    sequences: tuple[tuple[Place, ...], ...],
) -> tuple[int, dict[tuple[Call, ...], int]]:
    """The shortest windows with which every sequence can be recognised.

    Args:
        sequences: Each is repeated for ever; `different` made them.

    Returns:
        How many calls a window has, and the windows that stand in one place only, each
        with the number of its last call, counted through all sequences.

    Raises:
        TunerError: No window of at most `LONGEST_WINDOW` calls determines a place.

    Example:
        >>> one, two = Place("all-gather", 64, None), Place("all-reduce", 64, None)
        >>> length, windows = unique_windows(((one, one, two),))
        >>> length, windows
        (1, {(('all-reduce', 64),): 2})
    """
    if not sequences:
        return 0, {}
    for length in range(1, LONGEST_WINDOW + 1):
        listed = list(_windows(sequences, length))
        count = Counter(window for _, _, window in listed)
        unique = [found for found in listed if count[found[2]] == 1]
        if len({number for number, _, _ in unique}) == len(sequences):
            return length, {window: last for _, last, window in unique}
    raise TunerError(
        f"no {LONGEST_WINDOW} calls in a row say where in its sequence a communicator "
        "is: give all calls of one size the same answer, as a rule"
    )


def _windows(
    sequences: tuple[tuple[Place, ...], ...], length: int
) -> Iterator[tuple[int, int, tuple[Call, ...]]]:
    """The sequence, the last call, and the calls."""
    first = 0
    for number, sequence in enumerate(sequences):
        calls = [(place.function, place.nbytes) for place in sequence]
        window = deque(
            (calls[-back % len(calls)] for back in range(length, 0, -1)), maxlen=length
        )
        for place, call in enumerate(calls):
            window.append(call)
            yield number, first + place, tuple(window)
        first += len(calls)
