"""The compiler is asked which options it knows."""

import importlib.metadata

import pytest

from lagom_jax.compile import child, known_options
from lagom_jax.errors import CompileError, ToolchainError
from xla_flags import FlagError, find, flags, known, parse_option

JAXLIB = importlib.metadata.version("jaxlib")


def test_the_catalogue_and_the_compiler_know_the_same():
    said = known_options.known_flags()
    assert len(said) == sum("compiler_options" in f.routes for f in flags())
    for name, answer in said.items():
        if {JAXLIB} & {*known()[name].seen, *known()[name].absent}:
            absent = JAXLIB in known()[name].absent
            assert answer.verdict == ("unknown" if absent else "known"), answer


FORMS = [
    ("xla_gpu_enable_pipelined_p2p", True),
    ("xla_gpu_enable_pipelined_p2p", "False"),
    ("xla_gpu_enable_pipelined_p2p", "true"),
    ("xla_gpu_enable_pipelined_p2p", 0),
    ("xla_gpu_autotune_level", "+1"),
    ("xla_gpu_autotune_level", " 1"),
    ("xla_gpu_autotune_level", "1.0"),
    ("xla_gpu_autotune_level", 1.0),
    ("xla_gpu_autotune_level", True),
    ("xla_gpu_autotune_level", 1 << 31),
    ("xla_gpu_all_gather_combine_threshold_bytes", 1 << 31),
    ("xla_gpu_pgle_accuracy_checker", "PGLE_STRICTNESS_LEVEL_OFF"),
    ("xla_gpu_pgle_accuracy_checker", "OFF"),
    ("xla_gpu_enable_while_loop_unrolling", "while_loop_unrolling_no_unroll"),
    ("xla_gpu_all_gather_mode", "SYMMETRIC"),
    ("xla_gpu_disable_async_collectives", "ALLREDUCE,ALLGATHER"),
    ("xla_gpu_disable_async_collectives", "ALLREDUCE, ALLGATHER"),
    ("xla_gpu_disable_async_collectives", "allreduce"),
    ("xla_gpu_disable_async_collectives", ""),
    ("xla_gpu_enable_command_buffer", "+COLLECTIVES"),
    ("xla_disable_hlo_passes", "no-such-pass,another"),
    ("xla_disable_hlo_passes", 1),
    ("xla_dump_latency_hiding_schedule", 1),
    ("optimization_level", 19),
    ("optimization_level", "EFFORT"),
    ("fdo_profile", "text"),
]


@pytest.fixture(scope="module")
def answers():
    """Every form, a different form of each option at a time."""
    found, left = [], list(FORMS)
    while left:
        now = dict(left)
        found += known_options.known_options(now).values()
        left = [(n, v) for n, v in left if (type(v), v) != (type(now[n]), now[n])]
    return {(a.name, repr(a.value)): a for a in found}


@pytest.mark.parametrize(("name", "value"), FORMS)
def test_the_compiler_takes_and_refuses_what_is_taken_and_refused_here(
    name, value, answers
):
    answer = answers[name, repr(value)]
    try:
        parse_option(find(name), value)
    except FlagError:
        assert answer.verdict in ("value refused", "failed")
        assert answer.says
    else:
        assert answer.usable, answer


def test_equal_values_of_different_types_are_different_questions():
    name = "xla_gpu_enable_pipelined_p2p"
    verdicts = [
        known_options.known_options({name: value})[name].verdict for value in (True, 1)
    ]
    assert verdicts == ["known", "value refused"]


def test_an_option_that_ends_the_process_takes_no_other_answer_with_it(monkeypatch):
    """A worker that dies at one option, as XLA does at a failed check."""
    asked = []

    def ask_once(header, payload, *, timeout_s):
        options = header["each_option"]
        asked.append(len(options))
        if any(name == "deadly" for name, _ in options):
            return child.WorkerAnswer(None, b"", -6, False, ("Check failed",))
        return child.WorkerAnswer(
            {"ok": True, "refusals": ["" for _ in options]}, b"", 0, False, ()
        )

    monkeypatch.setattr(child, "ask_once", ask_once)
    options = {f"tame_{n}": n for n in range(7)} | {"deadly": 1}
    said = known_options.known_options(options)
    assert list(said) == list(options)
    assert [a.name for a in said.values() if not a.usable] == ["deadly"]
    assert (said["deadly"].verdict, said["deadly"].says) == ("crashed", "Check failed")
    assert asked == [8, 4, 4, 2, 2, 1, 1]


def test_a_compiler_that_takes_nothing_is_told(monkeypatch):
    refused = child.WorkerAnswer({"ok": False, "message": "broken"}, b"", 0, False, ())
    monkeypatch.setattr(child, "ask_once", lambda *_, **__: refused)
    with pytest.raises((CompileError, ToolchainError), match="broken"):
        known_options.known_options({"xla_gpu_never_asked_before": 1})
