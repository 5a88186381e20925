"""Living with other tuners, with the user's own variables, and with damaged files."""

import os

import pytest

from lagom_jax.nccl_plugin.image import VERSION, pack, save
from lagom_jax.nccl_plugin.reference import Limits
from lagom_jax.nccl_plugin.rules import Answer, Rule, Rules, Scope

from .hosted import (
    ENTRIES,
    HERE,
    NCCLS_CHUNK,
    Answered,
    Call,
    Shape,
    ask,
    build,
    expected,
)

RULED, FREE = Call(0, "all-gather", 4096), Call(0, "all-reduce", 4096)
RULES = Rules(
    (
        Scope(
            8,
            rules=(
                Rule("all-gather", 1, 1 << 20, Answer("tree", "ll128", 7, 1 << 18)),
                Rule("reduce", 5, 5, Answer("tree", "ll")),
            ),
        ),
    )
)
SHAPES = [Shape(8, 1, 1)]
RING_LL, TREE_LL128 = ENTRIES.index(("ring", "ll")), ENTRIES.index(("tree", "ll128"))


@pytest.fixture
def asked(host, plugin, tmp_path):
    def run(calls, version=6, **environment):
        save(RULES, tmp_path / "rules")
        variables = {"LAGOM_TUNER_RULES": str(tmp_path / "rules"), **environment}
        return ask(host, plugin, version, 1, SHAPES, calls, variables)

    return run


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    def make(*versions):
        mask = sum(1 << version for version in versions)
        target = tmp_path_factory.mktemp("other") / f"other{mask}.so"
        return build(
            target, HERE / "other_tuner.c", "-shared", "-fPIC", f"-DVERSIONS={mask}"
        )

    return make


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"),
    [
        (6, (3, 4, 5, 6), 6),
        (6, (3,), 3),
        (6, (4,), 4),
        (5, (5, 6), 5),
        (5, (4, 6), 4),
        (4, (3, 6), 3),
        (3, (3, 4), 3),
    ],
)
def test_another_tuner_answers_where_no_rule_does(asked, other, ours, theirs, spoken):
    answers, log = asked([RULED, FREE], ours, LAGOM_TUNER_CHAIN=str(other(*theirs)))
    assert "is asked for calls without a rule" in log
    chunk = (261120,) * 3 if ours == 6 else (0,) * 3
    assert answers[0] == Answered(TREE_LL128, 1 << TREE_LL128, 7, chunk)
    theirs_chunk = {True: 666, False: NCCLS_CHUNK}[spoken == 6] if ours == 6 else 0
    assert answers[1] == Answered(
        RING_LL, 1 << RING_LL, 10 + spoken, (theirs_chunk,) * 3
    )


def test_a_rule_for_what_nccl_does_not_have_leaves_the_call_to_the_other(asked, other):
    call = Call(0, "all-gather", 4096, possible=frozenset({("ring", "ll")}))
    answers, _ = asked([call], LAGOM_TUNER_CHAIN=str(other(6)))
    assert answers[0].channels == 16
    answers, _ = asked([call])
    assert answers[0] == Answered(RING_LL, 0, 0, (NCCLS_CHUNK,) * 3)


def test_a_tuner_that_fails_leaves_nothing_behind(asked, other):
    answers, _ = asked([FREE], LAGOM_TUNER_CHAIN=str(other(6)), OTHER_FAILS="1")
    assert answers == asked([FREE])[0]
    assert answers[0].changed == 0


def test_a_tuner_that_is_newer_than_this_nccl_is_not_asked(asked, other):
    answers, log = asked([FREE], 4, LAGOM_TUNER_CHAIN=str(other(5, 6)))
    assert answers[0].changed == 0
    assert "did not start" in log


@pytest.mark.parametrize("name", ["/nowhere/other.so", "libm.so.6"])
def test_a_tuner_that_is_none_is_said_so(asked, name):
    answers, log = asked([FREE], LAGOM_TUNER_CHAIN=name)
    assert answers[0].changed == 0
    assert "WARN lagom tuner: " in log
    assert name in log


def test_it_does_not_ask_itself(asked, plugin):
    _, log = asked([FREE], LAGOM_TUNER_CHAIN=str(plugin))
    assert "is this plugin itself" in log


def test_a_tuner_that_nccl_would_have_loaded_is_mentioned(asked, other, tmp_path):
    (tmp_path / "libnccl-tuner.so").symlink_to(other(6))
    path = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert (
        "libnccl-tuner.so is installed too and is not asked" in asked([FREE], **path)[1]
    )
    assert "installed too" not in asked([FREE], LAGOM_TUNER_CHAIN="none", **path)[1]
    assert "installed too" not in asked([FREE])[1]


def test_its_own_name_is_no_other_tuner(asked, plugin, tmp_path):
    (tmp_path / "libnccl-tuner.so").symlink_to(plugin)
    log = asked([FREE], LD_LIBRARY_PATH=str(tmp_path))[1]
    assert "installed too" not in log


def test_a_group_with_and_without_a_rule_keeps_nccls_chunks(asked, other):
    both = [Call(0, "reduce", 5, ends_group=False), Call(0, "reduce", 6)]
    answers, _ = asked(both, LAGOM_TUNER_CHAIN=str(other(6)))
    assert [answer.chunks for answer in answers] == [(NCCLS_CHUNK,) * 3] * 2
    answers, _ = asked(both[1:], LAGOM_TUNER_CHAIN=str(other(6)))
    assert answers[0].chunks == (666,) * 3


@pytest.mark.parametrize(
    ("variables", "limits"),
    [
        ({"NCCL_MIN_NCHANNELS": "12"}, Limits(fewest=12)),
        ({"NCCL_MAX_CTAS": "0x4"}, Limits(most=4)),
        ({"NCCL_MIN_CTAS": "9", "NCCL_MIN_NCHANNELS": "3"}, Limits(fewest=9)),
        ({"NCCL_MAX_NCHANNELS": "5", "NCCL_MAX_CTAS": "6"}, Limits(most=5)),
        ({"NCCL_MIN_CTAS": "9", "NCCL_MAX_CTAS": "4"}, Limits(fewest=9, most=4)),
        ({"NCCL_MAX_NCHANNELS": "many"}, Limits()),
    ],
)
def test_the_users_channels_win(asked, variables, limits):
    answers, log = asked([RULED, FREE], **variables)
    assert answers == expected(RULES, 6, SHAPES, [RULED, FREE], limits=limits)
    for name, value in variables.items():
        assert (f"{name}={value} is set" in log) == (value != "many")


def test_the_users_algorithm_is_reported(asked):
    assert "NCCL_ALGO=ring is set" in asked([RULED], NCCL_ALGO="ring")[1]


def damaged():
    image = pack(RULES)
    yield "empty", b"", "cannot read"
    yield "other", b"# a text" * 20, "it is no rules file"
    yield "short header", image[:40], "it is cut short"
    yield "cut", image[:-1], "its size"
    yield "half written", image[:-64] + bytes(64), "its checksum"
    yield "newer", image[:8] + bytes([VERSION + 1]) + image[9:], "newer lagom_jax"
    yield "older", image[:8] + bytes([VERSION - 1]) + image[9:], "no longer read"
    for byte in (12, 20, 70, len(image) - 3):
        flipped = bytearray(image)
        flipped[byte] ^= 16
        yield f"byte {byte}", bytes(flipped), "ignoring the rules"


@pytest.mark.parametrize(
    ("image", "words"),
    [(i, w) for _, i, w in damaged()],
    ids=[n for n, _, _ in damaged()],
)
def test_a_damaged_file_is_ignored_as_a_whole_and_said_once(
    asked, tmp_path, image, words
):
    path = tmp_path / "damaged"
    path.write_bytes(image)
    answers, log = asked([RULED, FREE], LAGOM_TUNER_RULES=str(path))
    assert all(answer.changed == 0 and answer.channels == 0 for answer in answers)
    assert log.count("WARN") == 1
    assert words in log


@pytest.mark.parametrize("variable", ["LAGOM_TUNER_RULES", "LAGOM_TUNER_CONTROL"])
def test_a_pipe_is_no_file_and_is_not_waited_for(asked, tmp_path, variable):
    os.mkfifo(tmp_path / "pipe")
    answers, log = asked([RULED], **{variable: str(tmp_path / "pipe")})
    assert answers[0].changed == 0
    assert "NCCL's own choices stand" in log


def test_the_control_page_goes_before_the_file(asked, tmp_path):
    answers, log = asked([RULED], LAGOM_TUNER_CONTROL="/nowhere")
    assert answers[0].changed == 0
    assert "ignoring the control page /nowhere" in log
    assert "is not read" in log


def test_no_variable_means_no_answer(asked):
    answers, log = asked([RULED], LAGOM_TUNER_RULES="")
    assert answers[0].changed == 0
    assert "neither" in log
