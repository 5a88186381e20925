"""HTML from Python values: what is given as text stays text.

Names in a program are data. Every text and every attribute is escaped here and nowhere
else, so that no caller can forget it.
"""

from __future__ import annotations

import html
import json
import unicodedata
from typing import Any, Final

LONGEST_NAME: Final = 160
"""Characters of a name that are shown."""
_VOID: Final = frozenset({"br", "col", "input", "meta"})
_ESCAPES: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class Html(str):
    """Text that is HTML already.

    Example:
        >>> tag("b", Html("<i>a</i>"), "<i>")
        '<b><i>a</i>&lt;i&gt;</b>'
    """

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        name: Its name.
        *children: What is in it; text is escaped, None is left out, lists are taken
            apart.
        **attributes: Its attributes; `_` stands for `-`, one at the end is dropped.
            True is an attribute without a value, None and False are none.

    Example:
        >>> tag("a", "x < y", href='"', class_="wide", hidden=False)
        '<a href="&quot;" class="wide">x &lt; y</a>'
    """
    opened = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written = key.rstrip("_").replace("_", "-")
        if value is not True:
            written += f'="{html.escape(printable(str(value)))}"'
        opened.append(written)
    start = f"<{' '.join(opened)}>"
    if name in _VOID:
        return Html(start)
    return Html(f"{start}{joined(*children)}</{name}>")


def joined(*parts: object) -> Html:
    """Several pieces of HTML or text one after another.

    Example:
        >>> joined("a < b", None, [tag("br"), 3])
        'a &lt; b<br>3'
    """
    return Html("".join(map(_piece, parts)))


def _piece(part: object) -> str:
    if part is None:
        return ""
    if isinstance(part, Html):
        return str(part)
    if isinstance(part, list | tuple):
        items: Any = part
        return joined(*items)
    return html.escape(printable(str(part), keep="\n"))


def printable(text: str, most: int | None = None, *, keep: str = "") -> str:
    r"""Text that moves no cursor, rings no bell and turns no direction.

    Args:
        text: The text.
        most: The number of characters from which on the end is left out.
        keep: Control characters that may stay.

    Example:
        >>> printable("a\x1b[31mb\u202ec")
        'a�[31mb�c'
        >>> printable("abcdef", 4)
        'abc…'
    """
    if most is not None and len(text) > most:
        text = text[: most - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c
        if c in keep or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn")
        else "�"
        for c in text
    )


def script_data(value: object) -> Html:
    r"""A value as JSON that can stand in a `script` element.

    Example:
        >>> print(script_data({"name": "</script>"}))
        {"name":"\u003c/script\u003e"}
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Html(text.translate(_ESCAPES))
