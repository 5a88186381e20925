"""What users are told when a compile fails."""

import pytest

from lagom_jax.compile.child import WorkerAnswer
from lagom_jax.compile.failures import explain, reason
from lagom_jax.errors import CompileError, ToolchainError


def refused(message):
    answer = WorkerAnswer(
        {"ok": False, "type": "E", "message": message}, b"", 0, False, ()
    )
    return explain(answer, "step", "h100:1x8", 60)


def died(status, *printed):
    return explain(
        WorkerAnswer(None, b"", status, False, printed), "step", "h100:1x8", 60
    )


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "INVALID_ARGUMENT: No such compile option: 'xla_x'",
            "no compiler option xla_x: check its spelling",
        ),
        (
            "No such compile option: 'xla_gpu_enable_pipelined_all_gather'",
            "all_gather; newer versions call it xla_gpu_pipeline_all_gather. XLA",
        ),
        (
            "No such compile option: 'xla_gpu_dot_merger_treshold_mb'",
            "did you mean xla_gpu_dot_merger_threshold_mb? XLA says",
        ),
        (
            "RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 32",
            "more shared memory than the target GPU has",
        ),
        ("RESOURCE_EXHAUSTED: Out of memory", "shard it further"),
        ("INTERNAL: something new", "it refused the program"),
    ],
)
def test_a_refusal_names_the_remedy_and_the_reason(message, told):
    error = refused(message)
    assert isinstance(error, CompileError)
    assert told in str(error)
    assert message in str(error)


@pytest.mark.parametrize(
    "message",
    [
        "UNIMPLEMENTED: topology not implemented for platform 'cuda'.",
        "No PTX compilation provider is available. Neither ptxas/nvlink nor nvjtlink",
    ],
)
def test_a_broken_installation_is_not_the_programs_fault(message):
    error = refused(message)
    assert isinstance(error, ToolchainError)
    assert "lagom doctor" in str(error)


def test_a_wall_of_text_is_cut():
    lines = reason("INTERNAL: first\n" + "x" * 5000 + "\n" * 3 + "more\n" * 500)
    assert lines[0] == "INTERNAL: first"
    assert len(lines) < 10
    assert max(map(len, lines)) < 500


def test_a_signal_is_explained():
    assert "died of SIGKILL: something killed it, most likely" in str(died(-9))
    assert "died of SIGFPE: XLA divided by zero" in str(died(-8))
    assert "died of signal 200: a signal ended it" in str(died(-200))


def test_a_failed_check_is_found_among_the_last_words():
    message = str(
        died(
            -6,
            "I0000 long ago",
            "F0000 foo.cc:12] Check failed: size > 0",
            "*** Check failure stack trace: ***",
            "    @ 0x7f0000000000 (unknown)",
        )
    )
    assert "Check failed: size > 0" in message
    assert "0x7f" not in message
    assert "long ago" not in message
