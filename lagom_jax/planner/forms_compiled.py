"""Forms that are compiled once each, in XLA's own order, to see what each does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from lagom_jax.errors import LagomError
from lagom_jax.plan.rewrite import NoFormError, SiteForm
from lagom_jax.planner.places_behind import places_behind
from lagom_jax.planner.request import Request
from lagom_jax.planner.rewrite_ways import RewriteWay, Rewritten, apart
from lagom_jax.planner.shorter_alone import shorter_alone

if TYPE_CHECKING:
    from lagom_jax.planner.run import Finished

BEHIND = ", less what puts it behind"
"""End of the name of a way that is tried once more."""


class CompiledForms:
    """Steps with some forms, each compiled once, with everything left to NCCL.

    Attributes:
        compiles: How many were.
    """

    def __init__(
        self,
        planner_of: Callable[[RewriteWay], Rewritten],
        request: Request,
        most: int,
    ) -> None:
        """Compiles nothing yet.

        Args:
            planner_of: What plans for the program rewritten in one way.
            request: Of plans for rewritten steps.
            most: Compiles that it may take. Where it would need more, it begins none.
        """
        self._planner_of, self._most = planner_of, most
        budget = dataclasses.replace(request.budget, compiles=1)
        self._request = dataclasses.replace(request, levers=("options",), budget=budget)
        self.compiles = 0

    def shorter(self, way: RewriteWay, usual: float) -> RewriteWay:
        """A way with those of its forms that gain by themselves.

        Args:
            way: Its forms, and those that places have beside them.
            usual: Seconds of the step as it is written, compiled likewise.

        Raises:
            NoFormError: None does, or there are too few compiles.
        """
        self._check(len(way.forms) + bool(way.base))

        def seconds_of(forms: tuple[SiteForm, ...]) -> float:
            found = self._compiled(way, forms)
            view = None if found is None else found.trials[0].view
            return math.inf if view is None else view.default_seconds

        kept = shorter_alone(way.forms, way.base, usual, seconds_of)
        if not kept:
            raise NoFormError("no form is shorter by itself", ())
        return way._replace(forms=kept, each_alone=False, base=())

    def less(self, way: RewriteWay) -> RewriteWay:
        """A way without the forms that put its plan behind by some model.

        A kernel that XLA makes for one form alone may take much longer by one model
        than by all others, and be what all the others lose by.

        Args:
            way: Its forms, and its losses.

        Raises:
            NoFormError: No form does, or all do, or there are too few compiles.
        """
        self._check(1 + len(way.forms))
        whole = self._by_model(way, way.forms)
        saved: dict[SiteForm, list[float]] = {}
        for form in way.forms:
            others = tuple(one for one in way.forms if one != form)
            without = self._by_model(way, others) if others else ()
            if whole and without:
                pairs = zip(whole, without, strict=True)
                saved[form] = [own - less for own, less in pairs]
        gone = places_behind(way.losses, saved)
        forms = tuple(form for form in way.forms if form not in gone)
        if not gone or not forms:
            raise NoFormError("no form by itself is what puts it behind", ())
        return way._replace(forms=forms, losses=())

    def _check(self, compiles: int) -> None:
        if compiles > self._most:
            why = f"out of compiles: this takes {compiles}, and {self._most} are left"
            raise NoFormError(why, ())

    def _by_model(
        self, way: RewriteWay, forms: tuple[SiteForm, ...]
    ) -> tuple[float, ...]:
        """Seconds of the step by each model; none where it cannot be compiled."""
        found = self._compiled(way, forms)
        return () if found is None else found.ways[0].scored.by_model

    def _compiled(
        self, way: RewriteWay, forms: tuple[SiteForm, ...]
    ) -> Finished | None:
        self.compiles += 1
        one = way._replace(forms=forms, base=(), losses=())
        begin = apart(one, deterministic=self._request.deterministic)
        once = dataclasses.replace(self._request, begin_with=(begin,))
        try:
            planner = self._planner_of(one).planner
            planner.plan(once)
        except LagomError:
            return None
        return planner.finished
