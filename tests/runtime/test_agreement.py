"""Processes of real jobs, on the CPU, agree or all say that they do not."""

from pathlib import Path

import pytest

from tests.runtime import jobs
from tests.runtime.jobs import PATIENCE
from tests.runtime.peer import LIMIT, PAYLOAD

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("peer.py")
JOBS = {"healthy": 3, "dies": 3, "frozen": 3, "alone": 1}


@pytest.fixture(scope="module")
def outcomes():
    found = jobs.run(SCRIPT, JOBS, dying={"dies"}, endless={("frozen", 0)})
    return lambda name, job="healthy": jobs.outcomes(found, name, job)


def answers(outcomes):
    return [outcome.get("answer", outcome.get("message")) for outcome in outcomes]


def test_each_knows_itself_and_no_backend_starts(outcomes):
    assert answers(outcomes("here")) == [[0, 3], [1, 3], [2, 3]]
    assert answers(outcomes("backends")) == [False] * 3


def test_all_get_what_process_0_makes_each_time_anew(outcomes):
    assert answers(outcomes("share")) == ["a plan of 0"] * 3
    assert answers(outcomes("share again")) == ["another"] * 3


def test_all_agree(outcomes):
    assert answers(outcomes("agree")) == ["mine"] * 3
    assert answers(outcomes("gather")) == [["I 0", "I 1", "I 2"]] * 3
    assert answers(outcomes("not unicode")) == ["\udcff"] * 3


def test_what_all_have_is_forgotten(outcomes):
    said = [f"lagom_jax/plan:3/said/{index}" for index in range(3)]
    assert answers(outcomes("kept")) == [said] * 3


def test_other_words_fail_alike_and_are_named(outcomes):
    (message,) = set(answers(outcomes("other words")))
    assert message == (
        "'flags': the processes do not say the same: "
        "processes 0-1 '…gpu_a=1 --xla_gpu_b=False --xla_gpu_c=1', "
        "process 2 '…gpu_a=1 --xla_gpu_b=True --xla_gpu_c=1'; "
        "start all of them with the same versions, flags and inputs"
    )


def test_nobody_waits_for_what_could_not_be_made(outcomes):
    own, *others = outcomes("failing")
    assert (own["raised"], own["message"]) == ("MakeError", "no such cluster")
    for other in others:
        assert other["raised"] == "NoAgreementError"
        assert "process 0 could not make it: MakeError: no such" in other["message"]
        assert other["seconds"] < PATIENCE


def test_32_megabytes(outcomes):
    assert answers(outcomes("large")) == [PAYLOAD] * 3


def test_a_slow_process_0_is_waited_for(outcomes):
    assert answers(outcomes("slow")) == ["slow"] * 3


def test_what_another_wrote_is_refused(outcomes):
    own, _, other = answers(outcomes("changed"))
    assert own == "right"
    assert "what process 0 sent was changed on the way: 5 bytes are too" in other

    own, *others = answers(outcomes("taken"))
    assert "refuses: ALREADY_EXISTS" in own
    assert all("changed on the way: 50 bytes came where" in other for other in others)


def test_too_late_is_too_late_for_all(outcomes):
    first, second, late = outcomes("late")
    for outcome in (first, second, late):
        assert outcome["raised"] == "TooLateError"
        assert outcome["seconds"] < LIMIT + PATIENCE
    assert "came within 2 s of the first; no word from process 2" in first["message"]
    assert answers(outcomes("after late")) == ["mine"] * 3


def test_nobody_waits_longer_than_the_limit(outcomes):
    own, *others = outcomes("missed")
    assert own["answer"] == "late"
    for other in others:
        assert "nothing came from process 0 within 2 s" in other["message"]
        assert other["seconds"] < LIMIT + PATIENCE


def test_a_death_ends_the_wait_and_not_the_work(outcomes):
    died = outcomes("died", "dies")
    assert len(died) == 2
    for outcome in died:
        assert "no word from process 2" in outcome["message"]
        assert outcome["seconds"] < LIMIT + PATIENCE
    assert answers(outcomes("work", "dies")) == [6, 6]


def test_a_service_that_stands_still_is_not_waited_for(outcomes):
    waiting, saying = outcomes("frozen", "frozen")
    assert "nothing came from process 0" in waiting["message"]
    assert "coordination service has not answered in time" in saying["message"]
    assert max(waiting["seconds"], saying["seconds"]) < LIMIT + PATIENCE


def test_without_jax_distributed(outcomes):
    assert answers(outcomes("here", "alone")) == [[0, 1]]
    assert answers(outcomes("share", "alone") + outcomes("agree", "alone")) == ["x"] * 2
    assert answers(outcomes("backends", "alone")) == [False]
