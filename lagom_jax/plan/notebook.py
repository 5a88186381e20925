"""Plans in notebooks: a table that shows itself, dictionaries and data frames."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any, cast

from lagom_jax.markup import Html, tag
from lagom_jax.typed_json import plain
from lagom_jax.units import in_bytes, in_seconds, in_signed_seconds

if TYPE_CHECKING:
    from lagom_jax.plan.plan import Plan


class ShownPlan:
    """Forms in which a plan can be shown."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain dictionaries and lists."""
        return plain(self)

    def to_pandas(self) -> Any:
        """The candidates as a pandas DataFrame, in the order of trial."""
        pandas: Any = importlib.import_module("pandas")
        candidates = cast("Plan", self).evidence.candidates
        return pandas.DataFrame([dataclasses.asdict(one) for one in candidates])

    def _repr_html_(self) -> str:
        """The plan in a notebook's cell."""
        plan = cast("Plan", self)
        evidence = plan.evidence
        default, tuned = evidence.default, evidence.tuned
        rows = [
            _row(
                name, in_seconds(one), in_seconds(other), in_signed_seconds(other - one)
            )
            for name, one, other in (
                ("step", default.step_seconds, tuned.step_seconds),
                ("computation", default.compute_seconds, tuned.compute_seconds),
                ("exposed", default.exposed_seconds, tuned.exposed_seconds),
            )
        ]
        if evidence.default_peak is not None and evidence.tuned_peak is not None:
            peaks = in_bytes(evidence.default_peak), in_bytes(evidence.tuned_peak)
            rows.append(_row("peak memory", *peaks, ""))
        told = [one.name for one in plan.levers if one.accepted]
        told += [
            f"{one.kind} of {in_bytes(one.bytes)} over {one.ranks}: {one.setting}"
            for one in plan.settings
        ]
        return tag(
            "div",
            tag("b", f"Plan for {plan.holds_for.program} on {plan.holds_for.cluster}"),
            tag("table", tag("tbody", rows)),
            tag("ul", [tag("li", one) for one in told]),
            tag("small", "All times are predicted."),
        )


def _row(name: str, *cells: str) -> Html:
    return tag("tr", tag("th", name, scope="row"), [tag("td", cell) for cell in cells])
