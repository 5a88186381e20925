"""The form of each place in a step that suits it best, by its program's prices."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from lagom_jax.hlo.collective import Collective
from lagom_jax.plan.form import Form
from lagom_jax.plan.rewrite import SiteForm

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
    """The collectives of one kind that the same lines lead to.

    One form holds for all of them: those of a loop and of its repetition, of a layer
    and of its second run for the gradients.

    Attributes:
        kind: jax's primitive.
        lines: The user's lines, the innermost first; none where the compiler dropped
            them.
        sites: The collectives.
    """

    kind: str
    lines: tuple[str, ...]
    sites: tuple[Collective, ...]


def places_of(sites: Iterable[Collective]) -> tuple[CutPlace, ...]:
    """The places of collectives; one without lines is a place by itself.

    Example:
        >>> places_of(())
        ()
    """
    found: dict[tuple[str, tuple[str, ...], str], list[Collective]] = {}
    for site in sites:
        lines = tuple(PurePath(one).name for one in (site.source, *site.callers) if one)
        alone = "" if lines else site.name
        found.setdefault((PRIMITIVES[site.kind], lines, alone), []).append(site)
    return tuple(CutPlace(*key[:2], tuple(sites)) for key, sites in found.items())


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
) -> tuple[SiteForm, ...]:
    """The form with the largest worth at each place, as far as it is worth anything.

    Args:
        savings: Of each collective.
        worth: Of the seconds that a form saves.
        allowed: Chooses among forms.

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
    named = named_by_line(chosen)
    found = {(one.line, one.kind): one for one in named.values()}
    return tuple(found[key] for key in sorted(found))


def named_by_line(chosen: Mapping[CutPlace, Form | None]) -> dict[CutPlace, SiteForm]:
    """The places that have lines and a form, as `with_forms` takes them.

    Args:
        chosen: The form of every place, None for as it is.

    Example:
        >>> named_by_line({CutPlace("all_gather", ("a.py:1",), ()): None})
        {}
    """
    return {
        place: SiteForm(_own_line(place, form, chosen), place.kind, form)
        for place, form in chosen.items()
        if form is not None and place.lines
    }


def _own_line(
    place: CutPlace, form: Form, chosen: Mapping[CutPlace, Form | None]
) -> str:
    """The innermost line that leads to no place with another form."""
    others = {
        line
        for other, theirs in chosen.items()
        if other.kind == place.kind and theirs != form
        for line in other.lines
    }
    return next((one for one in place.lines if one not in others), place.lines[0])
