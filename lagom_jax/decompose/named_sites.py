"""Sites that are named by their lines, and what becomes of each name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lagom_jax.decompose.form import PLAIN, Form
from lagom_jax.decompose.sites import CommunicatedMatmul, LeftSite, kind_of
from lagom_jax.plan.rewrite import SiteRefusal, When

SiteKey = tuple[str, str, When] | tuple[str, str] | str
"""A line; with jax's primitive, and with the pass as well."""


class NamedLines:
    """Lines whose sites are cut.

    Example:
        >>> site = CommunicatedMatmul("psum", (2,), 8, "layout.py:9", ("mlp.py:3",))
        >>> NamedLines(["mlp.py:3"])(site), NamedLines(["a.py:1"])(site)
        (True, False)
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """Takes the lines, as `sliced` does."""
        self.lines = tuple(dict.fromkeys(lines))

    def __call__(self, site: CommunicatedMatmul) -> bool:
        """True for a site that one of the lines leads to."""
        return any(line in self.lines for line in site.lines)

    def refusals(
        self,
        form: Form,
        cut: Sequence[CommunicatedMatmul],
        seen: Sequence[CommunicatedMatmul],
    ) -> Iterator[SiteRefusal]:
        """Lines none of whose sites are cut.

        Args:
            form: The cut.
            cut: The sites that are.
            seen: All sites that were looked at.
        """
        had, there = (
            {line for one in sites for line in one.lines} for sites in (cut, seen)
        )
        for line in self.lines:
            if line not in had:
                why = "not along it" if line in there else "no site"
                yield SiteRefusal(line, "", form, why, "")


class NamedForms:
    """Forms by line, by line and primitive, or by these and the pass."""

    def __init__(self, forms: Mapping[SiteKey, Form]) -> None:
        """Takes the mapping, as `with_forms` does."""
        self.forms = forms

    def __call__(self, site: CommunicatedMatmul) -> Form | None:
        """The form of a site; None for as it is."""
        key = self._key(site)
        return None if key is None else self.forms[key]

    def refusals(
        self, cut: Sequence[CommunicatedMatmul], left: Sequence[LeftSite]
    ) -> Iterator[SiteRefusal]:
        """Names that cannot have their form, each once for each reason.

        Args:
            cut: The collectives that have theirs.
            left: Those that cannot.
        """
        had = {self._key(site) for site in cut}
        for key, form in self.forms.items():
            if form.kind == PLAIN.kind and form.slices == 1:
                continue
            line, kind, when = _parts(key)
            mine = [one for one in left if self._key(one.site) == key]
            partly = key in had
            for one in mine:
                kind = kind_of(one.site)
                yield SiteRefusal(line, kind, form, one.why, one.at, partly, when)
            if not mine and not partly:
                yield SiteRefusal(line, kind, form, "no collective", "", when=when)

    def _key(self, site: CommunicatedMatmul) -> SiteKey | None:
        """The name of the innermost line that is named."""
        for line in site.lines:
            kind = kind_of(site)
            keys: tuple[SiteKey, ...] = ((line, kind, site.when), (line, kind), line)
            for key in keys:
                if key in self.forms:
                    return key
        return None


def _parts(key: SiteKey) -> tuple[str, str, When]:
    match key:
        case str():
            return key, "", ""
        case line, kind:
            return line, kind, ""
        case line, kind, when:
            return line, kind, when
