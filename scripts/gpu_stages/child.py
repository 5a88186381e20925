"""One stage in a process of its own: `python -m gpu_stages.child MODULE FOLDER`.

What it is asked lies in the folder as `request.json`; what it found will lie there as
`outcome.json`. Progress goes to the standard error.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import traceback
from pathlib import Path

from gpu_stages.stage import CannotRunError, Request


def main() -> int:
    name, folder = sys.argv[1], Path(sys.argv[2])
    asked = json.loads((folder / "request.json").read_text())
    request = Request(**{**asked, "folder": folder})
    try:
        outcome = importlib.import_module(name).run(request)
        found = {"status": "ran", **dataclasses.asdict(outcome)}
    except CannotRunError as error:
        found = {"status": "cannot run", "why": str(error)}
    except Exception as error:
        traceback.print_exc()
        found = {"status": "failed", "why": f"{type(error).__name__}: {error}"}
    (folder / "outcome.json").write_text(json.dumps(found))
    return 0 if found["status"] == "ran" else 1


if __name__ == "__main__":
    sys.exit(main())
