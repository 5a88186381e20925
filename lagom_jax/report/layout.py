"""How tables look, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_Row = TypeVar("_Row")
WIDTH: Final = 140
"""Columns where there is no screen to ask."""
# Sentences, which may take several lines.
_WORDS = ("changed", "reason")
_LEAST_WORDS = 24
# Columns of words: to the left; where space is short it is taken from the first ones.
_SHRINK = ("collective", "where", *_WORDS)
_LEFT = (
    *(*_SHRINK, "kind", "hidden behind", "kernels", "policy", "NCCL's own", "chosen"),
    *("lever", "value", "candidate", "status", "keeps rounding"),
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
    left_out: set[str] = set()
    words = [name for name in columns if name in _WORDS]
    place = width - _LEAST_WORDS * len(words)
    for name in spare:
        rest = {n: columns[n] for n in columns if n not in (*left_out, *words)}
        if fits(_filled(title, rest, rows), place):
            break
        left_out.add(name)
    kept = {name: columns[name] for name in columns if name not in left_out}
    return _filled(title, kept, rows)


def _filled(
    title: str,
    columns: Mapping[str, Callable[[_Row], str | Text]],
    rows: Sequence[_Row],
) -> Table:
    shown = table(title, *columns)
    for row in rows:
        shown.add_row(*(says(row) for says in columns.values()))
    return shown


def fits(shown: Table, width: int) -> bool:
    """Whether a table can be shown with nothing cut off."""
    return Console(width=10 * WIDTH).measure(shown).maximum <= width


def cut(words: str | Text) -> Text:
    """A cell that loses its end instead of growing a second line."""
    text = Text(words) if isinstance(words, str) else words
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def as_text(shown: RenderableType, width: int = WIDTH) -> str:
    """What would be seen on a screen, without colours."""
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()
