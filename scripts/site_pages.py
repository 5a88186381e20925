"""Pages of the site that do not lie in `docs`: a hook of mkdocs.

CONTRIBUTING.md and CHANGELOG.md stand in the root, where people look for them; in the
site they stand beside the index, and links to them lead there. The navigation lists
every page of the folders that it names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
ADDED = ("CONTRIBUTING.md", "CHANGELOG.md")
_OUTSIDE = re.compile(rf"\]\(((?:\.\./)*)\.\./({'|'.join(map(re.escape, ADDED))})")
_SOURCE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:lagom_jax|scripts|tests|models)/[^)]*\)"
)
_INSIDE = re.compile(r"\]\(docs/")


def on_config(config: Any) -> Any:
    """Fills folders of the navigation with their pages."""
    docs = Path(config["docs_dir"])
    config["nav"] = [_filled(entry, docs) for entry in config["nav"]]
    config["nav"].append({"Project": list(ADDED)})
    return config


def _filled(entry: Any, docs: Path) -> Any:
    if isinstance(entry, dict):
        ((title, inside),) = entry.items()
        if isinstance(inside, str) and (docs / inside).is_dir():
            return {title: _markdown(docs / inside, docs)}
    return entry


def _markdown(folder: Path, docs: Path) -> list[str]:
    found = sorted(folder.rglob("*.md"), key=lambda path: (path.parent != folder, path))
    return [path.relative_to(docs).as_posix() for path in found]


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of the root."""
    for name in ADDED:
        text = (ROOT / name).read_text(encoding="utf-8")
        inside = _INSIDE.sub("](", text)
        files.append(File.generated(config, name, content=inside))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leads links to pages of the root to where they stand in the site.

    Sources are not part of the site: what links to one keeps its words.
    """
    return _SOURCE.sub(r"\1", _OUTSIDE.sub(r"](\1\2", markdown))
