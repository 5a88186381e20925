"""A report as a page: one HTML file that needs nothing else.

What is read stands in the page as HTML, written here; the timeline and the table of
collectives are drawn by the scripts in `assets` from data in the page.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lagom_jax.files import write_whole
from lagom_jax.markup import Html, joined, printable, script_data, tag
from lagom_jax.report.advice import advice
from lagom_jax.report.figures import Report
from lagom_jax.report.page_data import page_data
from lagom_jax.report.page_frame import framed, to_copy
from lagom_jax.report.page_summary import headline, short
from lagom_jax.report.page_tables import compute, links, memory, notes, sizes, sources
from lagom_jax.report.page_tried import tried
from lagom_jax.report.story import PageError, Story

_LARGEST_PLAIN: Final = 500_000
_SCRIPTS: Final = ("units", "timeline", "controls", "table", "data", "page")


def write_page(story: Story, path: str | Path) -> None:
    """Writes a page.

    Args:
        story: What it is about.
        path: The file.

    Raises:
        PageError: It cannot be written.
    """
    try:
        write_whole(Path(path), to_html(story).encode())
    except OSError as error:
        raise PageError(
            f"cannot write {path}: {error.strerror or error}; name another place"
        ) from None


def to_html(story: Story) -> str:
    """The page of a story.

    Args:
        story: What it is about.
    """
    last = story.after or story.before
    data = page_data(story.before, story.after)
    todo = advice(story.plan, (story.subject, *story.options), story.cluster)
    # Of two steps these parts show the last.
    which = " with the plan" if story.before and story.after else ""
    parts: list[tuple[str, str, Html | None]] = [
        ("short", "In short", short(story.before, story.after, story.plan)),
        ("figures", *_figures(story)),
        ("timeline", "Timeline", _timeline(data["steps"], story)),
        ("collectives", "Collectives", _collectives(last)),
        ("sizes", f"Count by size{which}", sizes(last)),
        ("links", f"Use of links{which}", links(last)),
        ("memory", f"Memory{which}", memory(last)),
        ("compute", "Where compute time went", compute(story.before, story.after)),
        ("tried", "What was tried", tried(story.plan)),
        ("todo", "What to do", to_copy(todo)),
        ("sources", "Where the figures come from", sources(last, story.plan)),
        ("notes", "Notes", notes(last, story.plan)),
    ]
    about = printable(story.before.description, 1000) if story.before else ""
    return framed(
        "overlap report",
        story.title,
        about,
        [(name, title, body) for name, title, body in parts if body is not None],
        scripts=_SCRIPTS,
        data=_data(data),
    )


def _data(data: object) -> Html:
    """The data of the script; packed where they are large."""
    text = script_data(data)
    if len(text) <= _LARGEST_PLAIN:
        return tag("script", text, type="application/json", id="data")
    packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
    return tag("script", Html(packed), type="application/gzip+base64", id="data")


def _figures(story: Story) -> tuple[str, Html]:
    title = "Before and after" if story.plan else "Time and memory"
    return title, headline(story.before, story.after, story.plan)


def _timeline(steps: Iterable[object], story: Story) -> Html | None:
    there = [
        (one, name)
        for one, name in ((story.before, "before"), (story.after, "after"))
        if one is not None and one.tracks is not None
    ]
    if not there:
        if story.plan is None:
            return None
        return tag(
            "p",
            "A plan has no timeline of its own. ",
            tag("code", "lagom report STEP --plan FILE --html report.html"),
            " compiles the step without and with the plan, and shows both.",
        )
    return joined(
        tag(
            "p",
            "One step of one device, as the model replays it. Loops are folded: select "
            "one and press Enter, or click it, to see its iterations. Drag or use ← → "
            "to move, + and − or Ctrl and the wheel to zoom, 0 to see all.",
        ),
        tag("noscript", tag("p", "The timeline needs JavaScript.")),
        tag("div", id="tools", class_="tools", role="group", aria_label="View"),
        [
            tag(
                "figure",
                tag("figcaption", "With the plan" if name == "after" else "As it is")
                if len(there) > 1
                else None,
                tag("div", class_="canvas", data_step=str(number)),
            )
            for number, (_, name) in enumerate(there)
        ],
        tag("div", id="detail", class_="detail", aria_live="polite"),
        tag("div", id="legend", class_="legend", aria_hidden="true"),
    )


def _collectives(report: Report | None) -> Html | None:
    if report is None:
        return None
    if not report.collectives:
        return tag("p", "There are none: nothing is communicated.")
    return joined(
        tag(
            "noscript",
            tag("p", "The table needs JavaScript; lagom report --rows all prints it."),
        ),
        tag(
            "p",
            "Independent work is told for each collective by itself: work that could "
            "hide either of two hides only one of them.",
        ),
        tag("div", id="table"),
    )
