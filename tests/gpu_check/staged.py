"""A stage as the command runs it, with the stand-ins told what to do."""

from gpu_stages import running
from gpu_stages.registry import module_of
from gpu_stages.result import StageResult
from gpu_stages.stage import Request


def staged(name, folder, monkeypatch, *, seconds=120.0, **told):
    """The result of a dry run; what is told goes to the stand-ins."""
    for what, value in told.items():
        monkeypatch.setenv(f"STANDIN_{what.upper()}", str(value))
    request = Request("h100", True, seconds, folder / name)
    return StageResult.read(running.run_stage(module_of(name), request, print))
