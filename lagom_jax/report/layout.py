"""How tables look, whatever is in them."""

from __future__ import annotations

from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH: Final = 140
"""Columns where there is no screen to ask."""
# Columns of words: to the left; where space is short it is taken from the first two.
_SHRINK = ("collective", "where")
_LEFT = (*_SHRINK, "kind", "hidden behind", "kernels", "policy", "NCCL's own", "chosen")


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
