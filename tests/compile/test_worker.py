"""The process that compiles does not outlive the one that asked for it."""

import os
import select
import subprocess
import sys
import textwrap

import pytest

from lagom_jax.compile import child

WATCHED = textwrap.dedent(
    """
    import sys, time
    from lagom_jax.compile.worker import die_with
    die_with(int(sys.argv[1]))
    print("ready", flush=True)
    time.sleep(600)
    """
)
PARENT = textwrap.dedent(
    """
    import os, subprocess, sys
    subprocess.run([sys.executable, "-c", sys.argv[1], str(os.getpid())])
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can do this")
@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_a_worker_ends_with_the_process_that_started_it(end):
    paths = os.pathsep.join(path for path in sys.path if path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, WATCHED],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
    )
    with parent:
        assert parent.stdout.readline() == b"ready\n"
        getattr(parent, end)()
        # The pipe's other end is open for as long as the worker lives.
        readable, _, _ = select.select([parent.stdout], [], [], 10)
        assert readable
        assert parent.stdout.read() == b""


def test_the_worker_is_told_whose_it_is():
    assert child.command()[-1] == str(os.getpid())
