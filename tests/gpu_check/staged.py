"""A stage as the command runs it, on stand-ins that a test has changed."""

from gpu_stages import running
from gpu_stages.stage import Request


def staged(name, folder, monkeypatch, *, seconds=120.0, **changes):
    """The result of a dry run; changes go to the stand-ins."""
    for what, value in changes.items():
        monkeypatch.setenv(f"STANDIN_{what.upper()}", str(value))
    request = Request("h100", True, seconds, str(folder / name))
    return running.run_stage(f"gpu_stages.{name}", request)
