"""Writes the scores into docs/explanation/validation.md.

python scripts/write_validation.py
"""

from __future__ import annotations

import re
from pathlib import Path

from lagom_jax.commands.validate import all_scores, markdown

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "validation.md"


def main() -> None:
    table = markdown(all_scores())
    text = re.sub(
        r"(<!-- scores -->\n).*?(<!-- /scores -->)",
        lambda match: f"{match[1]}{table}\n{match[2]}",
        PAGE.read_text(encoding="utf-8"),
        flags=re.S,
    )
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
