"""The forms of places that each make a step shorter beside others that do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lagom_jax.plan.rewrite import SiteForm

Forms = tuple[SiteForm, ...]


def shorter_alone(
    forms: Sequence[SiteForm],
    base: Sequence[SiteForm],
    usual: float,
    seconds_of: Callable[[Forms], float],
) -> Forms:
    """Those of some forms that gain by themselves, and the base elsewhere.

    Args:
        forms: One for each place.
        base: What places have beside a form that is tried, and where theirs does not
            gain; nothing of it, where it does not gain itself.
        usual: Seconds of the step without any.
        seconds_of: Of the step with some.

    Example:
        >>> from lagom_jax.plan import Form
        >>> one, two = (SiteForm(f"a.py:{n}", "psum", Form("ring")) for n in (1, 2))
        >>> found = shorter_alone([one, two], [], 2.0, lambda some: 2.0 - (two in some))
        >>> found == (two,)
        True
    """
    begun = _by_place(base)
    shortest = usual
    if begun:
        seconds = seconds_of(_sorted(begun))
        begun, shortest = (begun, seconds) if seconds < usual else ({}, usual)
    kept = dict(begun)
    for form in forms:
        if begun.get(form.key) == form:
            continue
        if seconds_of(_sorted({**begun, form.key: form})) < shortest:
            kept[form.key] = form
    return _sorted(kept)


def _by_place(forms: Iterable[SiteForm]) -> dict[tuple[str, ...], SiteForm]:
    return {one.key: one for one in forms}


def _sorted(forms: dict[tuple[str, ...], SiteForm]) -> Forms:
    return tuple(forms[key] for key in sorted(forms))
