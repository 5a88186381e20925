"""The kit is run from its folder; so are its tests."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"

if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))
