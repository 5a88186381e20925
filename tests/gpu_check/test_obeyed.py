"""Obedience: every difference is seen, and what NCCL does not have is none."""

import dataclasses
import threading

import pytest

from gpu_stages.nccl_log import Clamped, Offer, Ran
from gpu_stages.obeyed_calls import (
    DONE,
    GENERATIONS,
    NOT_OFFERED,
    OTHERWISE,
    Asked,
    generation,
    judge,
    rules_of,
)
from gpu_stages.obeyed_rank import agree_in
from lagom_jax.tuner import Answer
from lagom_jax.tuner.reference import Communicator as Reference
from lagom_jax.tuner.rules import FUNCTIONS

from .staged import staged

CALL = Asked("all-gather", 1 << 22, Answer("ring", "simple", 8, 1 << 20))
RAN = Ran("all-gather", 1 << 21, "ring", "simple", 8)
CUT = Clamped("all-gather", 1 << 20, 1 << 19)
HERE = Offer(32, frozenset({("all-gather", "ring", "simple")}), True)


def judged(call=CALL, ran=(RAN,), clamped=(CUT, CUT), here=HERE, takes_chunks=True):
    return judge(call, 0, here, ran, clamped, ranks=2, takes_chunks=takes_chunks)


def test_what_was_asked_is_done():
    assert judged().outcome == DONE
    assert judged().channels == 8


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"protocol": "ll"}, "it runs as ring/ll"),
        ({"algorithm": "tree"}, "it runs as tree/simple"),
        ({"channels": 9}, "it takes 9 channels, not 8"),
        ({"channels": 7}, "it takes only 7 channels of 8"),
        ({"per_rank": 4}, "NCCL writes of another call: all-gather of 4 bytes"),
    ],
)
def test_what_is_done_otherwise_is_seen(change, why):
    found = judged(ran=[dataclasses.replace(RAN, **change)])
    assert (found.outcome, found.why) == (OTHERWISE, why)


def test_a_call_that_nothing_is_written_of_was_not_obeyed():
    assert judged(ran=()).outcome == OTHERWISE
    assert judged(ran=(RAN, RAN)).outcome == OTHERWISE


def test_other_chunks_are_seen():
    assert judged(clamped=()).outcome == OTHERWISE
    other = dataclasses.replace(CUT, chunk=1 << 21)
    assert judged(clamped=(other,)).outcome == OTHERWISE
    # An older NCCL does not ask for them.
    assert judged(clamped=(), takes_chunks=False).outcome == DONE
    # What the buffers hold is not written of.
    small = dataclasses.replace(
        CALL, answer=dataclasses.replace(CALL.answer, chunk_bytes=1 << 19)
    )
    assert judged(small, clamped=()).outcome == DONE
    assert judged(small).outcome == OTHERWISE


def test_what_nccl_does_not_have_is_no_disobedience():
    none = dataclasses.replace(HERE, offered=frozenset())
    other = dataclasses.replace(RAN, protocol="ll")
    assert judged(ran=(other,), here=none).outcome == NOT_OFFERED


def test_a_small_call_may_take_fewer_channels_but_not_more():
    call = dataclasses.replace(CALL, nbytes=1 << 16)
    few = dataclasses.replace(RAN, per_rank=1 << 15, channels=2)
    assert judged(call, ran=(few,)).outcome == DONE
    many = dataclasses.replace(few, channels=16)
    assert judged(call, ran=(many,)).outcome == OTHERWISE


def test_a_communicator_with_fewer_channels_takes_all_it_has():
    few = dataclasses.replace(HERE, channels=4)
    ran = dataclasses.replace(RAN, channels=4)
    assert judged(ran=(ran,), here=few).outcome == DONE


def test_each_generation_asks_something_else_of_every_function():
    met = {function: set() for function in FUNCTIONS}
    for number in range(GENERATIONS):
        calls = generation(number, 1 << 26)
        assert {call.function for call in calls} == set(FUNCTIONS)
        told = Reference(rules_of(calls, 2), ranks=2, hosts=1)
        for call in calls:
            assert told.asked(call.function, call.nbytes) == call.answer
            met[call.function].add((call.answer.algorithm, call.answer.protocol))
        assert calls != generation(number + 1, 1 << 26)
    assert {name: len(ways) for name, ways in met.items()} == {
        "broadcast": 3,
        "reduce": 3,
        "all-gather": 6,
        "reduce-scatter": 6,
        "all-reduce": 10,
    }


def test_processes_agree_only_on_the_same(tmp_path):
    answers = {}

    def say(rank, word):
        answers[rank] = agree_in(tmp_path, rank, 5.0)("after 3", word)

    threads = [
        threading.Thread(target=say, args=(rank, word))
        for rank, word in enumerate(("1:aa", "1:ab"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {0: False, 1: False}


def test_a_process_that_does_not_come_is_not_waited_for_for_ever(tmp_path):
    with pytest.raises(TimeoutError, match="no after-3-1 after 0 s"):
        agree_in(tmp_path, 0, 0.05)("after 3", "1:aa")


def test_a_dry_run_is_obeyed_in_both_ways(tmp_path, monkeypatch):
    found = staged("obeyed", tmp_path, monkeypatch)
    assert found.verdict == "holds", found
    assert [check.value for check in found.checks] == [1.0] * 4 + [0]
    assert not found.findings
    assert len(found.left_out) == 2
    for left_out in found.left_out:
        assert "does not offer here what was asked" in left_out
    apart = {row.details["asked"] for row in found.rows if "process for" in row.series}
    # Only hosts of one GPU each have this algorithm.
    assert any(asked.startswith("pat/simple") for asked in apart)


def test_one_function_that_disobeys_refutes_it(tmp_path, monkeypatch):
    found = staged("obeyed", tmp_path, monkeypatch, disobeys="reduce")
    assert found.verdict == "refuted", found
    assert all(" reduce" in finding for finding in found.findings)
    wrong = {row.what for row in found.rows if row.details["done"] != DONE}
    assert {what.split()[0] for what in wrong} == {"reduce"}


def test_an_old_nccl_is_asked_by_a_process_for_each_rank(tmp_path, monkeypatch):
    found = staged("obeyed", tmp_path, monkeypatch, nccl="2.28.9")
    assert found.status == "ran", found
    assert {row.series for row in found.rows} == {"calls, a process for each rank"}
    assert any("NCCL 2.28.9 has no ranks" in text for text in found.left_out)


def test_a_rank_that_hangs_refutes_it_and_is_explained(tmp_path, monkeypatch):
    found = staged("obeyed", tmp_path, monkeypatch, seconds=30.0, hangs=100)
    assert found.verdict == "refuted", found
    assert found.checks[-1].value == 2
    assert any("HungError" in finding for finding in found.findings)


def test_where_nothing_was_answered_the_reasons_are_given(tmp_path, monkeypatch):
    found = staged("obeyed", tmp_path, monkeypatch, fails="init")
    assert found.status == "failed"
    assert found.why.count("init was made to fail") >= 2
