"""The form of each place in a step that suits it best, by its program's prices."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from lagom_jax.hlo.collective import Collective
from lagom_jax.plan.form import Form
from lagom_jax.plan.rewrite import (
    LEFT_TO_PARTITIONER,
    TRANSPOSED,
    SiteForm,
    When,
)

PRIMITIVES: Final[Mapping[str, str]] = {
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-reduce": "psum",
}
Saved = Mapping[Form, tuple[float, ...]]
"""By form: seconds of a step less, by the likeliest model and others."""
Savings = Mapping[Collective, Saved]


@dataclasses.dataclass(frozen=True, slots=True)
class CutPlace:
    """The collectives of one kind and pass that the same lines lead to.

    One form holds for all of them: those of a loop and of its repetition.

    Attributes:
        kind: jax's primitive: `dot_general` where the partitioner made them.
        lines: The user's lines, the innermost first; none where the compiler dropped
            them.
        sites: The collectives.
        when: Their pass.
    """

    kind: str
    lines: tuple[str, ...]
    sites: tuple[Collective, ...]
    when: When = "forward"


def places_of(sites: Iterable[Collective]) -> tuple[CutPlace, ...]:
    """The places of collectives; one without lines is a place by itself.

    Example:
        >>> places_of(())
        ()
    """
    found: dict[tuple[str, tuple[str, ...], When, str], list[Collective]] = {}
    for site in sites:
        lines = tuple(PurePath(one).name for one in (site.source, *site.callers) if one)
        alone = "" if lines else site.name
        kind = LEFT_TO_PARTITIONER if by_partitioner(site) else PRIMITIVES[site.kind]
        when = "backward" if TRANSPOSED in site.op_name else "forward"
        found.setdefault((kind, lines, when, alone), []).append(site)
    return tuple(
        CutPlace(kind, lines, tuple(sites), when)
        for (kind, lines, when, _), sites in found.items()
    )


def by_partitioner(site: Collective) -> bool:
    """True for a collective that no function has of its own.

    jax names what is inside of `shard_map`, and the partitioner has no names but those
    of the matmul that it made the collective for.
    """
    return bool(site.op_name) and "shard_map" not in site.op_name.split("/")


def likeliest(saved: Sequence[float]) -> float:
    """Seconds saved by the likeliest model."""
    return saved[0]


def by_all(saved: Sequence[float]) -> float:
    """Seconds saved on average, where by no model it takes more; 0 otherwise."""
    return sum(saved) / len(saved) if min(saved) > 0.0 else 0.0


def saved_at(place: CutPlace, savings: Savings) -> dict[Form, tuple[float, ...]]:
    """Seconds that each form saves at a place, all its collectives together."""
    sums: dict[Form, list[tuple[float, ...]]] = defaultdict(list)
    for site in place.sites:
        for form, saved in savings[site].items():
            sums[form].append(saved)
    return {
        form: tuple(sum(by_model) for by_model in zip(*saved, strict=True))
        for form, saved in sums.items()
    }


def best_form(saved: Saved, worth: Callable[[Sequence[float]], float]) -> Form | None:
    """The form with the largest worth; None where none is known.

    Example:
        >>> two = Form("chunks", slices=2)
        >>> best_form({Form("ring"): (1.0,), two: (2.0,)}, likeliest) == two
        True
    """
    return max(saved, key=lambda form: worth(saved[form]), default=None)


def forms_by_place(
    savings: Savings,
    worth: Callable[[Sequence[float]], float] = likeliest,
    allowed: Callable[[Form], bool] = lambda form: True,
    *,
    by_pass: bool = False,
) -> tuple[SiteForm, ...]:
    """The form with the largest worth at each place, as far as it is worth anything.

    Args:
        savings: Of each collective.
        worth: Of the seconds that a form saves.
        allowed: Chooses among forms.
        by_pass: Whether each place and pass is named by itself, also where others have
            the same form: another choice then names it likewise.

    Example:
        >>> forms_by_place({})
        ()
    """
    chosen: dict[CutPlace, Form | None] = {}
    for place in places_of(savings):
        able = {f: saved for f, saved in saved_at(place, savings).items() if allowed(f)}
        best = best_form(able, worth)
        pays = best is not None and worth(able[best]) > 0.0
        chosen[place] = best if pays else None
    named = named_by_line(chosen, by_pass=by_pass)
    found = {one.key: one for one in named.values()}
    return tuple(found[key] for key in sorted(found))


def named_by_line(
    chosen: Mapping[CutPlace, Form | None], *, by_pass: bool = False
) -> dict[CutPlace, SiteForm]:
    """The places that have lines and a form, as `with_forms` takes them.

    Args:
        chosen: The form of every place, None for as it is.
        by_pass: Whether no name may lead to two places or passes.

    Example:
        >>> named_by_line({CutPlace("all_gather", ("a.py:1",), ()): None})
        {}
    """
    found: dict[CutPlace, SiteForm] = {}
    for place, form in chosen.items():
        if form is not None and place.lines:
            line, when = _own_name(place, chosen, by_pass=by_pass)
            found[place] = SiteForm(line, place.kind, form, when)
    return found


def _own_name(
    place: CutPlace, chosen: Mapping[CutPlace, Form | None], *, by_pass: bool
) -> tuple[str, When]:
    """The innermost line that leads to no place with another form.

    Without one, that which does not in the place's pass, and the pass.
    """
    passes: tuple[When, ...] = (place.when,) if by_pass else ("", place.when)
    for when in passes:
        others = {
            line
            for other, theirs in chosen.items()
            if other.kind == place.kind and other != place
            if by_pass or theirs != chosen[place]
            if when in ("", other.when)
            for line in other.lines
        }
        for line in place.lines:
            if line not in others:
                return line, when
    return place.lines[0], place.when
