"""One stage in a process of its own: `python -m gpu_stages.child MODULE FOLDER`.

`request.json` in the folder holds the request; the process writes `outcome.json`.
Progress goes to the standard error.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from gpu_stages.stage import CannotRunError, Request
from lagom_jax.files import write_whole


def main() -> int:
    # So that context managers end what the stage has started.
    signal.signal(signal.SIGTERM, _leave)
    module, folder = sys.argv[1], Path(sys.argv[2])
    asked = json.loads((folder / "request.json").read_text())
    nccl = asked["nccl"] and Path(asked["nccl"])
    request = Request(**{**asked, "folder": folder, "nccl": nccl})
    found: dict[str, Any]
    try:
        outcome = importlib.import_module(module).run(request)
        found = {"status": "ran", **dataclasses.asdict(outcome)}
    except CannotRunError as error:
        found = {"status": "cannot run", "why": str(error)}
    except Exception as error:
        traceback.print_exc()
        found = {"status": "failed", "why": f"{type(error).__name__}: {error}"}
    written = json.dumps(found, default=_plain)
    write_whole(folder / "outcome.json", written.encode())
    return 0 if found["status"] == "ran" else 1


def _leave(*_: object) -> None:
    raise SystemExit(1)


def _plain(value: Any) -> Any:
    """A number of numpy's as one of Python's."""
    return value.item()


if __name__ == "__main__":
    sys.exit(main())
