"""Writes the catalogue of flags into docs/reference/flags.md.

python scripts/write_flags.py [--print]
"""

from __future__ import annotations

import sys
from pathlib import Path

from xla_flags.pages import GENERATED, markdown

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "flags.md"


def main() -> None:
    written, mark, _ = PAGE.read_text(encoding="utf-8").partition(GENERATED)
    text = f"{written}{mark}\n\n{markdown()}"
    if "--print" in sys.argv:
        sys.stdout.write(text)
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
