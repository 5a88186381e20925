"""The training binary, each process of which keeps its programs: jax lets only the first.

`keeping.py WORDS...` is `train.py WORDS...`. Programs of processes differ in their keys,
so none of them writes what another one does.
"""

import runpy
import sys
from pathlib import Path
from unittest import mock

from jax._src import compiler, distributed

TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"
write = compiler._cache_write


def written_by_all(*arguments):
    with mock.patch.object(distributed.global_state, "process_id", 0):
        write(*arguments)


if __name__ == "__main__":
    compiler._cache_write = written_by_all
    sys.argv[0] = str(TRAIN)
    sys.path.insert(0, str(TRAIN.parent))
    runpy.run_path(str(TRAIN), run_name="__main__")
