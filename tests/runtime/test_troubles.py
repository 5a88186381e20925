"""Real processes in trouble: all run one program, or the one in doubt stops."""

from pathlib import Path

import pytest

from tests.runtime import jobs
from tests.runtime.jobs import PATIENCE
from tests.runtime.troubles import LIMIT, SLOW

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("troubles.py")
JOBS = {"lives": 2, "doubts": 2, "elastic": 3}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    found = jobs.run(SCRIPT, JOBS, tmp_path_factory.mktemp("job"))
    return lambda name, job="lives": jobs.outcomes(found, name, job)


def each(outcomes, name):
    return [outcome.get(name) for outcome in outcomes]


def planned(came, value):
    assert each(came, "raised") == [None] * len(came)
    assert each(came, "plans") == [1] * len(came)
    assert each(came, "value") == [value] * len(came)
    assert each(came, "warned") == [[]] * len(came)


def left_alone(came, told, value):
    assert each(came, "raised") == [None] * len(came)
    assert each(came, "plans") == [0] * len(came)
    assert each(came, "value") == [value] * len(came)
    assert told in came[0]["warned"][0]


def test_network_cards_and_dump_folders_of_one_host_forbid_nothing(outcomes):
    planned(outcomes("hosts"), 2.0)


def test_a_step_on_one_process_s_own_devices_concerns_nobody_else(outcomes):
    (local,) = outcomes("local")
    assert (local["plans"], local["value"]) == (1, 4.0)
    assert local["seconds"] < LIMIT + PATIENCE
    planned(outcomes("after local"), 5.0)


def test_processes_that_meet_arguments_in_another_order(outcomes):
    for name in ("committed", "committed again", "committed at last"):
        came = outcomes(name)
        planned(came, 2.0)
        assert each(came, "made") == ([1, 0] if name == "committed" else [0, 0])


def test_a_counter_that_comes_back_as_an_array_is_the_same_step(outcomes):
    for name in ("counter", "counter again", "counter at last"):
        came = outcomes(name)
        assert each(came, "plans") == [1, 1]
        assert each(came, "made") == ([1, 0] if name == "counter" else [0, 0])
        assert each(came, "warned") == [[], []]


def test_threads_that_begin_in_another_order(outcomes):
    planned(outcomes("one thread"), 10.0)
    planned(outcomes("another"), 64.0)


def test_a_wrong_call_in_one_process_does_not_change_whose_turn_it_is(outcomes):
    came = outcomes("measured")
    assert each(came, "raised") == [None, None]
    assert each(came, "value") == [11.0, 11.0]
    assert len(set(each(came, "plans"))) == 1


def test_planning_that_takes_longer_than_others_would_wait(outcomes):
    came = outcomes("slow")
    planned(came, 6.0)
    assert min(each(came, "seconds")) >= SLOW
    planned(outcomes("after slow"), 7.0)


def test_an_error_of_the_user_s_own_reaches_the_user_at_once(outcomes):
    first, second = outcomes("watchdog")
    assert (first["plans"], first["value"]) == (1, 8.0)
    assert second["raised"] == "WatchdogError: nothing happens"
    assert second["seconds"] < LIMIT
    planned(outcomes("after watchdog"), 8.0)


def test_an_error_of_the_user_s_own_as_the_talk_begins_changes_nothing(outcomes):
    first, second = outcomes("at once")
    assert "the user's own" in second["raised"]
    assert (first["plans"], first["value"]) == (1, 11.0)
    planned(outcomes("after at once"), 11.0)


def test_a_process_that_plans_can_be_called_away(outcomes):
    first, second = outcomes("preempted")
    assert first["raised"] == "WatchdogError: nothing happens"
    assert first["seconds"] < LIMIT
    assert (second["plans"], second["value"]) == (0, 9.0)
    assert each(outcomes("after preempted"), "plans") == [0, 0]


def test_an_offer_that_one_has_not_heard_is_refused_by_all(outcomes):
    came = outcomes("no offer", "doubts")
    left_alone(came, "process 1: what was decided is not known here", 2.0)
    # The one that has not heard it says so, and is not waited for.
    assert came[0]["seconds"] < LIMIT


def stops(came):
    first, second = came
    assert (first["plans"], first.get("raised")) == (1, None)
    assert second["raised"].startswith("InDoubtError: ")
    assert "must stop" in second["raised"] or "start the job again" in second["raised"]
    assert "value" not in second


@pytest.mark.parametrize(
    "name",
    [
        "no verdict",
        "not heard what was measured",
        "not built again",
        "rules not heard",
    ],
)
def test_a_process_in_doubt_stops(outcomes, name):
    stops(outcomes(name, "doubts"))


def test_cleared_caches_change_nothing(outcomes):
    planned(outcomes("built", "doubts"), 4.0)
    planned(outcomes("caches cleared", "doubts"), 4.0)
    planned(outcomes("rules", "doubts"), 5.0)


def test_a_job_that_starts_again_in_the_same_process_begins_anew(outcomes):
    planned(outcomes("before", "elastic"), 2.0)
    came = outcomes("after", "elastic")
    planned(came, 2.0)
    assert each(came, "made") == [1, 0]
    planned(outcomes("another", "elastic"), 3.0)
