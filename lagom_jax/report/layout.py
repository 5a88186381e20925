"""Layout of tables, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_Row = TypeVar("_Row")
WIDTH: Final = 140
"""Columns where there is no screen to ask."""
# Words that may take several lines.
_WORDS = ("changed", "candidate")
_LEAST_WORDS = 24
# Columns of words: to the left; where space is short it is taken from the first ones.
_SHRINK = ("collective", "where", "mesh", "loses by", *_WORDS)
_LEFT = (
    *(*_SHRINK, "kind", "hidden behind", "kernels", "policy", "NCCL's own", "chosen"),
    *("lever", "value", "status", "keeps rounding"),
)


def table(title: str, *columns: str) -> Table:
    """An empty table.

    Args:
        title: What stands above it.
        *columns: Their headings; what a column holds goes by its name.
    """
    made = Table(title=title, title_justify="left", title_style="bold", box=None)
    for column in columns:
        justify = "left" if column in _LEFT else "right"
        made.add_column(column, justify=justify, no_wrap=column not in _SHRINK)
    return made


def listing(
    title: str,
    columns: Mapping[str, Callable[[_Row], str | Text]],
    rows: Sequence[_Row],
    *,
    spare: Iterable[str],
    width: int,
) -> Table:
    """A table of rows, without the columns that a narrow screen has no place for.

    Args:
        title: What stands above it.
        columns: What each column says of a row, by heading.
        rows: What is listed.
        spare: Columns that may be left out, the least needed first.
        width: Columns of the screen.
    """
    kept = dict(columns)
    for name in spare:
        rigid = {name: says for name, says in kept.items() if name not in _WORDS}
        words = len(kept) - len(rigid)
        if fits(_filled(title, rigid, rows), width - words * _LEAST_WORDS):
            break
        del kept[name]
    return _filled(title, kept, rows)


def _filled(
    title: str,
    columns: Mapping[str, Callable[[_Row], str | Text]],
    rows: Sequence[_Row],
) -> Table:
    shown = table(title, *columns)
    for row in rows:
        # As a Text: of a plain string rich would read what stands in brackets.
        cells = (says(row) for says in columns.values())
        shown.add_row(*(Text(c) if isinstance(c, str) else c for c in cells))
    return shown


def fits(shown: Table, width: int) -> bool:
    """True if a table can be shown with nothing cut off."""
    return Console(width=10 * WIDTH).measure(shown).maximum <= width


def cut(words: str | Text) -> Text:
    """A cell that loses its end instead of growing a second line."""
    text = Text(words) if isinstance(words, str) else words
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def as_text(shown: RenderableType, width: int = WIDTH) -> str:
    """The text that a screen would show, without colours."""
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()
