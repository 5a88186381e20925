"""The process in which foreign text meets the compiler's parser.

Run as a script, by path, so that it imports nothing but the parser: HLO text on
stdin; on stdout one byte, `+` and the serialised module or `-` and what the parser
said. Text that contradicts itself makes the parser abort; that ends this process.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def main() -> None:
    """Parses stdin once."""
    answers = os.fdopen(os.dup(1), "wb")
    # Whatever native code prints must not end up inside the answer.
    os.dup2(2, 1)
    text = sys.stdin.buffer.read().decode()
    parser: Any = importlib.import_module("jaxlib._hlo")
    try:
        module = parser.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    except Exception as error:
        answers.write(b"-" + str(error).encode(errors="replace"))
    else:
        answers.write(b"+")
        answers.write(module)
    answers.flush()


if __name__ == "__main__":
    main()
