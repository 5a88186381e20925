"""The form of each place in a step that suits it best, by its program's prices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
Savings = Mapping[Collective, Mapping[Form, tuple[float, ...]]]
"""By collective and form: seconds of a step less, by the likeliest model and others."""
Place = tuple[str, tuple[str, ...]]
"""A primitive, and the user's lines that lead to it, the innermost first."""


def likeliest(saved: Sequence[float]) -> float:
    """Seconds saved by the likeliest model."""
    return saved[0]


def by_all(saved: Sequence[float]) -> float:
    """Seconds saved on average, where by no model it takes more; 0 otherwise."""
    return sum(saved) / len(saved) if min(saved) > 0.0 else 0.0


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
    sums: dict[Place, dict[Form, list[float]]] = defaultdict(dict)
    for site, forms in savings.items():
        lines = tuple(PurePath(one).name for one in (site.source, *site.callers) if one)
        if not lines:
            continue
        of_place = sums[PRIMITIVES[site.kind], lines]
        for form, saved in forms.items():
            before = of_place.get(form, [0.0] * len(saved))
            of_place[form] = [a + b for a, b in zip(before, saved, strict=True)]
    chosen: dict[Place, Form | None] = {}
    for place, forms in sums.items():
        able = [form for form in forms if allowed(form)]
        best = max(able, key=lambda form: worth(forms[form]), default=None)
        pays = best is not None and worth(forms[best]) > 0.0
        chosen[place] = best if pays else None
    found: dict[tuple[str, str], SiteForm] = {}
    for (kind, lines), form in chosen.items():
        if form is not None:
            line = _own_line(kind, lines, form, chosen)
            found[line, kind] = SiteForm(line, kind, form)
    return tuple(found[key] for key in sorted(found))


def _own_line(
    kind: str, lines: Sequence[str], form: Form, chosen: Mapping[Place, Form | None]
) -> str:
    """The innermost line that leads to no place with another form."""
    others = {
        line
        for (of_kind, theirs), other in chosen.items()
        if of_kind == kind and other != form
        for line in theirs
    }
    return next((line for line in lines if line not in others), lines[0])
