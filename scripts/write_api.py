"""Writes the pages of the Python API from the docstrings of all public names.

python scripts/write_api.py [--check]

One page for each room that exports names, and an index. `--check` writes nothing and
exits with 1 if a page is missing or stale.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "reference" / "api"
PACKAGE = Path(__file__).parent.parent / "lagom_jax"
_SECTION = re.compile(
    r"^(Args|Returns|Yields|Raises|Attributes|Examples?):\n((?:[ \t]+.*\n?|\n)+)", re.M
)
_ENTRY = re.compile(r"^(\*{0,2}\w[\w. ,*]*):[ \n]", re.M)


def public_names(module: ModuleType) -> list[str]:
    """Names that a room exports: its `__all__`, or all that it imports."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and not inspect.ismodule(value)
        ]
    return sorted(name for name in listed if hasattr(module, name))


def rooms() -> list[ModuleType]:
    """The package and its rooms that export something, the package first."""
    names = sorted(
        path.parent.name
        for path in PACKAGE.glob("*/__init__.py")
        if path.parent.name != "commands"
    )
    modules = [importlib.import_module("lagom_jax")]
    modules += [importlib.import_module(f"lagom_jax.{name}") for name in names]
    return [module for module in modules if public_names(module)]


def _entries(body: str) -> Iterator[str]:
    """`Args` and the like as a list, one entry a line."""
    starts = [match.start() for match in _ENTRY.finditer(body)]
    if not starts or starts[0] != 0:
        yield body.strip()
        return
    for begin, end in zip(starts, [*starts[1:], len(body)], strict=True):
        name, _, text = body[begin:end].partition(":")
        yield f"- `{name}`: {' '.join(text.split())}"


def markdown_of(docstring: str) -> str:
    """A Google-style docstring as Markdown."""

    def section(match: re.Match[str]) -> str:
        title, body = match[1], textwrap.dedent(match[2]).strip("\n")
        if title.startswith("Example"):
            return f"```pycon\n{body}\n```\n\n"
        rows = body if title in ("Returns", "Yields") else "\n".join(_entries(body))
        return f"**{title}**\n\n{rows}\n\n"

    return _SECTION.sub(section, f"{docstring.strip()}\n").strip()


@dataclasses.dataclass(frozen=True, slots=True)
class _Shown:
    """Stands in a signature for what it shows."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _default(value: Any) -> _Shown:
    """A default as it is written; what has an address or is long is left out."""
    text = repr(value)
    unfit = " at 0x" in text or text == "<factory>" or len(text) > 60
    return _Shown("..." if unfit else text)


def _annotation(value: Any) -> Any:
    return _Shown(value) if isinstance(value, str) else value


def _signature(thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    nothing = inspect.Parameter.empty
    parameters = [
        one.replace(
            annotation=_annotation(one.annotation),
            default=nothing if one.default is nothing else _default(one.default),
        )
        for one in found.parameters.values()
    ]
    returned = _annotation(found.return_annotation)
    return str(found.replace(parameters=parameters, return_annotation=returned))


def _fields(kind: type) -> Iterator[str]:
    """Fields of a dataclass with the text that stands below each in the source."""
    source = textwrap.dedent(inspect.getsource(kind))
    for field in dataclasses.fields(kind):
        if field.name.startswith("_"):
            continue
        found = re.search(
            rf'^    {field.name}: [^\n]*\n(?:    \)[^\n]*\n)?    r?"""(.*?)"""',
            source,
            re.M | re.S,
        )
        text = f": {' '.join(found[1].split())}" if found else ""
        yield f"- `{field.name}`{text}"


def _members(kind: type) -> Iterator[str]:
    """Methods and properties that a class defines itself and documents."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        thing = (
            member.__func__
            if isinstance(member, classmethod | staticmethod)
            else member
        )
        if isinstance(thing, property):
            head, text = name, inspect.getdoc(thing)
        elif inspect.isfunction(thing):
            head, text = f"{name}{_signature(thing)}", inspect.getdoc(thing)
        else:
            continue
        if text:
            yield f"### `{kind.__name__}.{head}`\n\n{markdown_of(text)}\n"


def entry(name: str, thing: Any) -> str:
    """What a page says of one public name."""
    if inspect.ismodule(thing):
        first = (thing.__doc__ or "").partition("\n")[0]
        return f"## `{name}`\n\nThe module `{thing.__name__}`: {first}\n"
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        shown = re.sub(r"\s+", " ", repr(thing))
        return f"## `{name}`\n\n`{shown}`\n"
    parts = [f"## `{name}`\n"]
    is_error = inspect.isclass(thing) and issubclass(thing, Exception)
    signature = "" if is_error else _signature(thing)
    if signature:
        parts.append(f"```text\n{name}{signature}\n```\n")
    text = thing.__doc__ or ""
    # A dataclass without a docstring is given its signature as one.
    if text and not text.startswith(f"{name}("):
        parts.append(f"{markdown_of(inspect.cleandoc(text))}\n")
    if inspect.isclass(thing):
        if dataclasses.is_dataclass(thing) and (fields := list(_fields(thing))):
            parts.append("**Fields**\n\n" + "\n".join(fields) + "\n")
        parts += _members(thing)
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """All pages by file name."""
    index = [
        "# Python\n",
        "Made from docstrings by `python scripts/write_api.py`. What `lagom_jax` or a",
        "room exports is public; modules inside of rooms are not.\n",
    ]
    written: dict[str, str] = {}
    for module in rooms():
        title = module.__name__
        file = f"{title.removeprefix('lagom_jax.')}.md"
        names = public_names(module)
        about = markdown_of(inspect.getdoc(module) or "")
        body = [entry(name, getattr(module, name)) for name in names]
        text = "\n".join([f"# `{title}`\n", f"{about}\n", *body])
        written[file] = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
        links = ", ".join(f"`{name}`" for name in names)
        index.append(f"- [`{title}`]({file}): {links}")
    written["README.md"] = "\n".join(index) + "\n"
    return written


def main(words: list[str]) -> int:
    wanted = pages()
    there = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.md")}
    stale = sorted(n for n in {*wanted, *there} if wanted.get(n) != there.get(n))
    if "--check" in words:
        print(*stale, sep="\n", end="\n" if stale else "")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
