"""The frame of a page: head, policy, navigation and parts, whatever it is about.

A policy in the page forbids every request and every script but its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources

from lagom_jax.markup import Html, joined, tag
from lagom_jax.report.advice import Advice

Part = tuple[str, str, Html]
"""A part of a page: the anchor, the title, and what stands in it."""


def framed(
    kind: str,
    title: str,
    about: str,
    parts: Sequence[Part],
    *,
    scripts: Sequence[str],
    data: Html | None = None,
) -> str:
    """A page that needs nothing else.

    Args:
        kind: Of page, for the title of the window.
        title: Its heading.
        about: A line below the heading; empty if none.
        parts: Its parts, the first of which is where reading starts.
        scripts: Names of scripts in `assets`, which run as one.
        data: An element with the data of the scripts.

    Example:
        >>> page = framed("report", "A < B", "", [("short", "In short", Html("x"))],
        ...               scripts=("units", "page"))
        >>> "<h1>A &lt; B</h1>" in page
        True
    """
    script = _script(tuple(scripts))
    first = parts[0][0]
    body = joined(
        tag("a", "Skip to the report", href=f"#{first}", class_="skip"),
        _header(title, about, parts),
        tag("main", [_section(*part) for part in parts]),
        tag(
            "footer",
            tag(
                "p", "Made by lagom_jax. This file needs no network and sends nothing."
            ),
        ),
        tag("div", id="said", role="status", aria_live="polite", class_="unseen"),
        data,
        tag("script", Html(script)),
    )
    return "<!DOCTYPE html>\n" + tag(
        "html", _head(f"{title}: {kind}", script), tag("body", body), lang="en"
    )


def to_copy(items: Iterable[Advice]) -> Html:
    """Things to do, each with a button that copies its text."""
    return joined(
        [
            tag(
                "div",
                tag("h3", one.title),
                tag("p", one.why),
                tag(
                    "div",
                    tag(
                        "pre",
                        tag("code", one.text),
                        tabindex="0",
                        role="region",
                        aria_label=one.title,
                    ),
                    tag(
                        "button",
                        "Copy",
                        type="button",
                        class_="copy",
                        hidden=True,
                        aria_label=f"Copy: {one.title}",
                    ),
                    class_="code",
                ),
            )
            for one in items
        ]
    )


def _head(title: str, script: str) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'; "
            f"script-src '{_digest(script)}'",
        ),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Html(_asset("page.css"))),
    )


def _header(title: str, about: str, parts: Sequence[Part]) -> Html:
    links = [
        tag("li", tag("a", heading, href=f"#{name}")) for name, heading, _ in parts
    ]
    return tag(
        "header",
        tag("h1", title),
        tag("p", about, class_="about") if about else None,
        tag(
            "nav",
            tag("ul", links),
            tag("button", "Light or dark", type="button", id="theme", hidden=True),
            aria_label="Parts of the report",
        ),
    )


def _section(name: str, title: str, body: Html) -> Html:
    return tag(
        "section",
        tag("h2", title, id=f"{name}-title"),
        body,
        id=name,
        aria_labelledby=f"{name}-title",
    )


@functools.cache
def _asset(name: str) -> str:
    folder = resources.files(__name__.rpartition(".")[0]) / "assets"
    return (folder / name).read_text(encoding="utf-8")


@functools.cache
def _script(names: tuple[str, ...]) -> str:
    parts = "\n".join(_asset(f"{name}.js") for name in names)
    return f'(async () => {{\n"use strict";\n{parts}}})();\n'


def _digest(script: str) -> str:
    found = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(found).decode()}"
