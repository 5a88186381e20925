"""The command line, in this process and in one of its own, and a program to give it."""

import re
import subprocess
import sys
from pathlib import Path

from lagom_jax import cli


def lagom(capsys, *words):
    """Exit code, what it printed, and what it complained about."""
    try:
        code = cli.main([str(word) for word in words])
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def lagom_alone(*words, **options):
    """A command in a process of its own, ended, with what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "lagom_jax", *map(str, words)],
        **{"capture_output": True, "text": True, "check": False, **options},
    )


def without_progress(complaint: str) -> str:
    """What is left of stderr without the lines that a slow machine has to see."""
    return re.sub(r"^lagom: \d+ s: .*\n", "", complaint, flags=re.MULTILINE)


def write_dump(folder: Path, devices: int) -> Path:
    """A step with one all-gather beside a fusion, named as XLA names its dumps."""
    path = folder / "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt"
    part = f"f32[{1 << 22}]"
    whole = f"f32[{devices << 22}]"
    group = ",".join(map(str, range(devices)))
    path.write_text(f"""\
HloModule jit_step, is_scheduled=true, num_partitions={devices}

ENTRY main {{
  x = {part} parameter(0)
  start = ({part}, {whole}) all-gather-start(x), channel_id=1, \
replica_groups={{{{{group}}}}}, dimensions={{0}}, use_global_device_ids=true
  work = {part} multiply(x, x)
  done = {whole} all-gather-done(start)
  loop_add_fusion.1 = {part} add(work, work)
  last = {part} tanh(loop_add_fusion.1)
  ROOT out = ({whole}, {part}) tuple(done, last)
}}
""")
    return path
