"""The choice of a mesh as a page: one HTML file that needs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from lagom_jax.markup import LONGEST_NAME, Html, joined, printable, tag
from lagom_jax.mesh.choosing import MeshAdvice, MeshChoice
from lagom_jax.mesh.mesh_document import Offer, best_first
from lagom_jax.mesh.mesh_words import (
    COLUMNS,
    choice_cells,
    compiled_words,
    head_words,
    refusal_words,
    refused_lines,
    was_compiled,
)
from lagom_jax.mesh.pictures import axes_words, chart_svg, matrix_svg
from lagom_jax.report.advice import Advice
from lagom_jax.report.page_frame import Part, framed, to_copy
from lagom_jax.report.page_tables import bar, table
from lagom_jax.units import counted, in_bytes, in_percent, in_seconds

_MATRICES = 3
_LIMITS = {
    "batch": "sequences do not divide over replicas and micro batches",
    "model": "heads, layers, experts or widths do not divide",
    "host": "tensor parallelism would leave the host",
    "memory": "they need more memory than there is",
}


def mesh_page(offers: Sequence[Offer], command: str = "") -> str:
    """The page of one cluster's choices, or of several compared.

    Args:
        offers: At least one.
        command: The command that made it; empty where it was none.

    Example:
        >>> from lagom_jax.mesh.choosing import choose
        >>> found = choose("llama-3-8b", cluster="h100:2x8", tokens=65536,
        ...                sequence=2048)
        >>> "<h1>llama-3-8b on h100:2x8</h1>" in mesh_page([Offer(found)])
        True
    """
    ordered = best_first(offers)
    first = ordered[0].advice
    clusters = ", ".join(one.advice.cluster.name for one in ordered)
    name = printable(first.shape.name, LONGEST_NAME)
    return framed(
        "mesh",
        f"{name} on {clusters}",
        head_words(first) if len(ordered) == 1 else "",
        list(_parts(ordered, command)),
        scripts=("units", "page"),
    )


def _parts(offers: Sequence[Offer], command: str) -> Iterator[Part]:
    first = offers[0]
    yield "short", "In short", _short(first)
    if len(offers) > 1:
        yield "clusters", "Clusters", _clusters(offers)
    for number, offer in enumerate(offers):
        advice = offer.advice
        if not advice.choices:
            continue
        of = f": {advice.cluster.name}" if len(offers) > 1 else ""
        yield f"choices{number}", f"Choices{of}", _choices(advice)
        yield f"chart{number}", f"Step time of each choice{of}", _chart(advice)
        yield f"sent{number}", f"What is sent{of}", _sent(advice.best)
        yield f"matrix{number}", f"Who sends to whom{of}", _matrices(advice)
    dropped = _dropped(first.advice)
    if dropped is not None:
        yield "dropped", "Meshes that were dropped", dropped
    yield "todo", "What to do", to_copy(_todo(first.advice, command))
    yield "sources", "Where the figures come from", _sources(first.advice)


def _short(offer: Offer) -> Html:
    advice = offer.advice
    if offer.infeasible is not None or not advice.choices:
        words = refusal_words(offer.infeasible) if offer.infeasible else "None."
        return tag("dl", _line("Meshes that fit", words), class_="short")
    best, found = advice.best, advice.best.estimate
    lines = [
        _line("Take", tag("strong", axes_words(best.sizes))),
        _line(
            "A step takes",
            tag("strong", in_seconds(best.step_seconds)),
            f", with other constants that measurements allow "
            f"{in_seconds(best.step_low)} to {in_seconds(best.step_high)}: "
            f"{best.tokens_per_second:,.0f} tokens/s, MFU {in_percent(best.mfu, 1)}.",
        ),
        _line(
            "It waits",
            f"for communication {in_percent(found.communication_share, 1)} of "
            "the step"
            + (
                f", in bubbles {in_percent(found.bubble_seconds, best.step_seconds)}."
                if found.bubble_seconds
                else "."
            ),
        ),
        _line(
            "Memory",
            f"{in_bytes(found.memory.total)} of "
            f"{in_bytes(advice.cluster.gpu.memory_bytes)} on the fullest GPU.",
        ),
    ]
    if len(advice.choices) > 1:
        lines.append(_line("The next one", _runner_up(advice)))
    dollars = offer.dollars_per_million_tokens
    if dollars is not None:
        lines.append(_line("Price", f"{dollars:.3g} $ for a million tokens."))
    lines.append(_line("How sure", _trust(advice)))
    return tag("dl", lines, class_="short")


def _runner_up(advice: MeshAdvice) -> str:
    best, other = advice.choices[:2]
    more = in_percent(other.step_seconds - best.step_seconds, best.step_seconds)
    loss = other.loses_by
    by = f", by {loss.part} {in_seconds(loss.seconds)}" if loss else ""
    return f"{axes_words(other.sizes)}: {more} slower{by}."


def _trust(advice: MeshAdvice) -> str:
    if was_compiled(advice):
        return (
            "All times are predicted. The steps of the first choices were compiled "
            "without a GPU and replayed; nothing here has been run."
        )
    return (
        "All times are predicted from the model's dimensions; nothing was compiled or "
        "run. --verify 3 compiles the best three without a GPU."
    )


def _line(name: str, *words: object) -> Html:
    return tag("div", tag("dt", name), tag("dd", list(words)))


def _clusters(offers: Sequence[Offer]) -> Html:
    rows: list[tuple[object, ...]] = []
    for offer in offers:
        advice, dollars = offer.advice, offer.dollars_per_million_tokens
        if not advice.choices:
            why = refusal_words(offer.infeasible) if offer.infeasible else ""
            rows.append((advice.cluster.name, why, "", "", ""))
            continue
        rows.append(
            (
                advice.cluster.name,
                axes_words(advice.best.sizes),
                in_seconds(advice.best.step_seconds),
                f"{advice.best.tokens_per_second:,.0f}",
                "-" if dollars is None else f"{dollars:.3g}",
            )
        )
    heads = ("cluster", "mesh", "step", "tokens/s", "$ for a million tokens")
    return table("Clusters, each with its best mesh", heads, rows)


def _choices(advice: MeshAdvice) -> Html:
    compiled = was_compiled(advice)
    rows: list[tuple[object, ...]] = []
    for choice in advice.choices:
        mesh, *figures, loss = choice_cells(choice)
        last = (compiled_words(choice),) if compiled else ()
        rows.append((mesh, *map(_whole, figures), loss, *last))
    heads = [*COLUMNS, *(("compiled",) if compiled else ())]
    return joined(
        tag(
            "p",
            "Best first. An interval is where a step lies with other constants that "
            "measurements allow; a runner-up loses most by the part that is named.",
        ),
        table("Meshes, best first", heads, rows),
        _refused(advice),
    )


def _whole(cell: str) -> Html:
    return tag("span", cell, class_="whole")


def _refused(advice: MeshAdvice) -> Html | None:
    told = [tag("li", line) for line in refused_lines(advice)]
    return tag("ul", told) if told else None


def _chart(advice: MeshAdvice) -> Html:
    drawn = Html(chart_svg(advice, styled=False))
    return _picture(drawn, "Chart of the step of each choice")


def _picture(drawn: Html, name: str) -> Html:
    return tag(
        "div",
        drawn,
        class_="scroll chart",
        tabindex="0",
        role="region",
        aria_label=name,
    )


def _sent(best: MeshChoice) -> Html:
    found = best.estimate
    whole = best.step_seconds
    rows = [
        (
            reason,
            in_seconds(seconds),
            joined(
                f"{in_seconds(found.exposed.get(reason, 0.0))} ",
                bar(found.exposed.get(reason, 0.0), whole),
            ),
            in_percent(found.exposed.get(reason, 0.0), whole),
        )
        for reason, seconds in sorted(found.sent.items(), key=lambda item: -item[1])
        if seconds
    ]
    if not rows:
        return tag("p", "Nothing is sent.")
    heads = ("for", "communication", "that nothing hides", "of the step")
    return table("Communication of the best mesh", heads, rows)


def _matrices(advice: MeshAdvice) -> Html:
    first, *others = advice.choices[:_MATRICES]
    return joined(
        _picture(Html(matrix_svg(advice, first, styled=False)), "Communication matrix"),
        [
            tag(
                "details",
                tag("summary", axes_words(one.sizes)),
                _picture(
                    Html(matrix_svg(advice, one, styled=False)),
                    f"Communication matrix of {axes_words(one.sizes)}",
                ),
            )
            for one in others
        ],
    )


def _dropped(advice: MeshAdvice) -> Html | None:
    dropped = advice.candidates.dropped
    if not dropped:
        return None
    rows = [(_LIMITS[limit], str(count)) for limit, count in dropped.most_common()]
    return table("Meshes by the limit that dropped them", ("because", "meshes"), rows)


def _todo(advice: MeshAdvice, command: str) -> Iterator[Advice]:
    if command:
        title = "Compile the best ones" if advice.choices else "Look again"
        verify = " --verify 3" if advice.choices and "--verify" not in command else ""
        yield Advice(
            title,
            "Without a GPU, each replayed with its plan, and ranked anew: models of "
            "the zoo as they are, another step by --step."
            if verify
            else "The command that made this page.",
            command + verify,
        )
    if not advice.choices:
        return
    sizes = advice.best.sizes
    # The last axis of a mesh is the one whose devices are neighbours.
    there = sizes.real(tuple(reversed(sizes.order))) or ("data",)
    shape = tuple(sizes.of(axis) for axis in there)
    yield Advice(
        "The mesh in jax",
        f"Then {counted(sizes.micro_batch, 'sequence')} of a replica at a time, "
        f"{advice.batch.micro_batches(sizes)} times a step; remat {sizes.remat}.",
        f"mesh = jax.make_mesh({shape}, {there})",
    )
    where = shlex.quote(advice.cluster.name)
    yield Advice(
        "Tune the step on that mesh",
        "Chooses XLA's options and settings of NCCL for the compiled step.",
        f"lagom tune STEP --cluster {where} --output plan.json --html tuned.html",
    )


def _sources(advice: MeshAdvice) -> Html:
    framework = advice.framework
    level = (
        ""
        if framework.level == 1
        else f" Times are multiplied by {framework.level:g}, which sets the level of "
        "its published runs."
    )
    rows = [
        (
            "bytes, products and memory",
            _origin("estimated"),
            f"worked out from dimensions and sizes. {framework.title}.{level}",
        ),
        (
            "times of single kernels and collectives",
            _origin("predicted"),
            advice.cluster.gpu.name + ": the cost model; see `lagom clusters`",
        ),
        (
            "intervals",
            _origin("predicted"),
            "nine in ten models of an ensemble whose constants are as far off as "
            "measurements allow, and routing as uneven as its authors provided for",
        ),
    ]
    if was_compiled(advice):
        rows.append(
            (
                "steps in the column compiled",
                _origin("predicted"),
                "a replay of the program that XLA compiled for this cluster",
            )
        )
    return table("Sources of figures", ("figure", "origin", "source"), rows)


def _origin(name: str) -> Html:
    return tag("span", name, class_=f"origin {name}")
