"""Tables of a page: sizes, links, memory, kernels, and where figures come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lagom_jax.markup import LONGEST_NAME, Html, joined, printable, tag
from lagom_jax.plan import Plan
from lagom_jax.report.figures import Report
from lagom_jax.units import in_bytes, in_percent, in_seconds


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A table; the first cell of a row is its head.

    Args:
        caption: What it shows.
        heads: Heads of the columns.
        rows: Cells of each row.
    """
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="unseen"),
            tag("thead", tag("tr", [tag("th", head, scope="col") for head in heads])),
            tag(
                "tbody",
                [
                    tag(
                        "tr",
                        tag("th", row[0], scope="row"),
                        [tag("td", cell) for cell in row[1:]],
                    )
                    for row in rows
                ],
            ),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def bar(part: float, whole: float) -> Html:
    """A bar as long as a part of a whole."""
    share = min(1.0, part / whole) if whole else 0.0
    return tag(
        "span",
        tag("span", style=f"width:{100 * share:.1f}%"),
        class_="bar",
        aria_hidden="true",
    )


def sizes(report: Report | None) -> Html | None:
    """Collectives by kind and size."""
    if report is None or not report.sizes:
        return None
    most = max(band.executions for band in report.sizes)
    rows = [
        (
            band.kind,
            f"{in_bytes(band.least_bytes)} to {in_bytes(band.below_bytes)}",
            str(band.count),
            joined(f"{band.executions:g} ", bar(band.executions, most)),
            in_bytes(band.bytes),
            in_seconds(band.seconds),
            in_seconds(band.exposed_seconds),
        )
        for band in report.sizes
    ]
    heads = ("kind", "bytes", "sites", "runs/step", "data/step", "time", "exposed")
    return table("Collectives by kind and size", heads, rows)


def links(report: Report | None) -> Html | None:
    """Limits of the collectives, and how much of it they use."""
    if report is None or not report.links:
        return None
    rows = [
        (
            printable(link.link, LONGEST_NAME),
            str(link.count),
            f"{link.executions:g}",
            in_bytes(link.bytes),
            in_seconds(link.seconds),
            in_percent(link.seconds, report.step_seconds),
            "too small for any link"
            if link.link == "latency"
            else joined(f"{in_percent(link.use, 1)} ", bar(link.use, 1.0)),
        )
        for link in report.links
    ]
    heads = ("limited by", "sites", "runs/step", "data/step", "time", "of step", "use")
    return joined(
        tag(
            "p",
            "What sets the time of the collectives, and the part of its peak rate that "
            "they reach while they run. Each collective is counted once, under what "
            "limits it, though one between hosts uses the links inside them, too.",
        ),
        table("Use of links", heads, rows),
    )


def memory(report: Report | None) -> Html | None:
    """Holders of device memory at its fullest."""
    if report is None or report.memory is None:
        return None
    found = report.memory
    said = (
        f"XLA itself says {in_bytes(report.peak_memory_bytes)}, the gaps between "
        "arrays counted. "
        if report.peak_memory_bytes is not None
        else ""
    )
    rows: list[tuple[object, ...]] = [
        (
            printable(holder.name, LONGEST_NAME),
            holder.kind,
            printable(holder.shape, LONGEST_NAME),
            printable(holder.where, LONGEST_NAME),
            joined(
                f"{in_bytes(holder.bytes)} ",
                bar(holder.bytes, found.estimated_peak_bytes),
            ),
        )
        for holder in found.holders
        if holder.bytes
    ]
    if found.other_bytes:
        rows.append(("all others", "", "", "", in_bytes(found.other_bytes)))
    return joined(
        tag(
            "p",
            f"At its fullest, {in_seconds(found.peak_at_seconds)} into the step, the "
            f"schedule holds {in_bytes(found.estimated_peak_bytes)}: arguments "
            f"{in_bytes(found.argument_bytes)}, the rest temporary. {said}"
            "The timeline draws it over the step; that is estimated from the schedule.",
        ),
        table(
            "What holds memory at its fullest",
            ("array", "kind", "shape", "where", "bytes"),
            rows,
        ),
    )


def compute(before: Report | None, after: Report | None) -> Html | None:
    """Compute time by class of kernel."""
    if before is None:
        return None
    will = {one.kind: one.seconds for one in after.kernel_kinds} if after else {}
    whole = before.compute_seconds
    rows = [
        (
            one.kind,
            f"{one.executions:g}",
            joined(f"{in_seconds(one.seconds)} ", bar(one.seconds, whole)),
            in_percent(one.seconds, whole),
            *((in_seconds(will.get(one.kind, 0.0)),) if after else ()),
        )
        for one in before.kernel_kinds
    ]
    heads = ["kernels", "runs/step", "time", "of compute"]
    heads += ["with the plan"] if after else []
    return table("Compute time by class of kernel", heads, rows)


def sources(report: Report | None, plan: Plan | None) -> Html:
    """The origin of each kind of figure."""
    pricing = report.pricing if report is not None else plan.pricing if plan else ""
    parts = [tag("p", "Prices of single tasks: ", pricing, ".")]
    if report is not None and report.sources:
        rows = [
            (
                one.figure,
                tag("span", one.origin, class_=_origin(one.origin)),
                one.source,
            )
            for one in report.sources
        ]
        parts.append(table("Sources of figures", ("figure", "origin", "source"), rows))
    versions = dict(report.versions) if report is not None else {}
    if plan is not None:
        versions = dict(plan.holds_for.versions)
    if versions:
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        parts.append(tag("p", f"Compiled with {listed}."))
    return joined(parts)


def notes(report: Report | None, plan: Plan | None) -> Html | None:
    """Remarks that the reader must know to trust the figures."""
    found = dict.fromkeys(
        (*(report.notes if report else ()), *(plan.notes if plan else ()))
    )
    if not found:
        return None
    return tag("ul", [tag("li", printable(note, 2000)) for note in found])


def _origin(origin: str) -> str:
    return f"origin {origin.replace(' ', '-')}"
