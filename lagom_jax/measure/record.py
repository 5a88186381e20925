"""Reading a calibration's corrections back from JSON, believing nothing in it."""

from __future__ import annotations

import math
from typing import Any

from lagom_jax.measure.curve import LARGEST, Curve
from lagom_jax.measure.fit import Correction, Error
from lagom_jax.measure.samples import Key


def read_correction(item: dict[str, Any]) -> Correction:
    """A correction from its JSON object.

    Raises:
        KeyError: Something is missing.
        TypeError: Something is of another type.
        ValueError: A number is impossible, or the knots are.

    Example:
        >>> read_correction({"sizes": [1024, float("inf")]})
        Traceback (most recent call last):
        ...
        ValueError: inf is not finite
    """
    least, greatest = map(as_number, item["sizes"])
    kept_out: Any = item["kept_out"]
    return Correction(
        key=Key(
            *(as_text(item["key"][name]) for name in ("family", "kind", "scope")),
            ranks=int(item["key"]["ranks"]),
        ),
        unit=as_text(item["unit"]),
        curve=Curve(_knots(item["curve"]["knots"])),
        rows=int(item["rows"]),
        sizes=(least, greatest),
        spread=as_number(item["spread"]),
        before=_error(item["before"]),
        after=_error(item["after"]),
        kept_out=None if kept_out is None else _error(kept_out),
    )


def _knots(items: list[Any]) -> tuple[tuple[float, float], ...]:
    knots = tuple((as_number(place), as_number(height)) for place, height in items)
    places = [place for place, _ in knots]
    if places != sorted(set(places)):
        raise ValueError("the knots are not in order")
    if any(abs(height) > LARGEST for _, height in knots):
        raise ValueError(f"a factor is beyond {2**LARGEST:g}")
    return knots


def _error(item: dict[str, Any]) -> Error:
    return Error(as_number(item["median"]), as_number(item["worst_tenth"]))


def as_number(value: Any) -> float:
    """A value that must be a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is not finite")
    return float(value)


def as_text(value: Any) -> str:
    """A value that must be text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
