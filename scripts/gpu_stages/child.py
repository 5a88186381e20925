"""One stage in a process of its own: `python -m gpu_stages.child STAGE FOLDER`.

What it is asked lies in the folder as `request.json`; what it found will lie there as
`outcome.json`. Progress goes to the standard error.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from pathlib import Path

from gpu_stages.registry import function_of
from gpu_stages.stage import CannotRunError, Request


def main() -> int:
    stage, folder = sys.argv[1], Path(sys.argv[2])
    asked = json.loads((folder / "request.json").read_text())
    request = Request(**{**asked, "folder": folder})
    try:
        found = {"status": "ran", **dataclasses.asdict(function_of(stage)(request))}
    except CannotRunError as error:
        found = {"status": "cannot run", "why": str(error)}
    except Exception as error:
        traceback.print_exc()
        found = {"status": "failed", "why": f"{type(error).__name__}: {error}"}
    (folder / "outcome.json").write_text(json.dumps(found))
    return 0 if found["status"] == "ran" else 1


if __name__ == "__main__":
    sys.exit(main())
