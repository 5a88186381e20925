"""The places whose forms put a step behind by some model, and are left as written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lagom_jax.plan.rewrite import SiteForm


def places_behind(
    losses: Sequence[float], saved: Mapping[SiteForm, Sequence[float]]
) -> tuple[SiteForm, ...]:
    """The fewest forms without which a step should be behind by no model, or nearly.

    The model that loses most says which form goes first, and so on, as if what each
    form costs were the same beside any others.

    Args:
        losses: By model, seconds by which a step with all forms is behind; negative
            where it is ahead.
        saved: Of each form, seconds by model that a step without it takes less.

    Example:
        >>> from lagom_jax.plan import Form
        >>> one, two = (SiteForm(f"a.py:{n}", "psum", Form("ring")) for n in (1, 2))
        >>> found = places_behind([-1.0, 2.0], {one: (-0.5, 3.0), two: (0.1, 0.2)})
        >>> found == (one,)
        True
        >>> places_behind([-1.0, -2.0], {one: (-0.5, 3.0)})
        ()
    """
    left: list[float] = [*losses]
    gone: list[SiteForm] = []
    while left and (most := max(left)) > 0.0:
        model = left.index(most)
        others = [form for form in saved if form not in gone]
        costly = max(others, key=lambda form: saved[form][model], default=None)
        if costly is None or saved[costly][model] <= 0.0:
            break
        gone.append(costly)
        left = [own - less for own, less in zip(left, saved[costly], strict=True)]
    return tuple(gone)
