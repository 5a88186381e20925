"""Training in several processes: all run one program, whatever happens to one of them."""

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.runtime import jobs
from tests.runtime.jobs import PATIENCE

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("trainer.py")
# What trainer.py allows where somebody does not come.
LIMIT = 3.0
JOBS = {"trains": 2, "one_is_off": 2, "dies_before": 3, "dies_building": 3}
DYING = {"dies_before", "dies_building"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    found = jobs.run(SCRIPT, JOBS, tmp_path_factory.mktemp("job"), dying=DYING)
    return lambda name, job="trains": jobs.outcomes(found, name, job)


def each(outcomes, name):
    return [outcome[name] for outcome in outcomes]


@pytest.fixture
def trained(outcomes):
    """That all have trained as if nothing were tuned; what came of it."""

    def found(name, job="trains", processes=2):
        usual = outcomes("off", job)[0]["losses"]
        came = outcomes(name, job)
        assert len(came) == processes
        for outcome in came:
            assert "raised" not in outcome
            assert outcome["losses"] == usual[: len(outcome["losses"])]
            assert len(outcome["losses"]) >= 4
        return came

    return found


def planned(came):
    assert each(came, "plans") == [1] * len(came)
    assert each(came, "warned") == [[]] * len(came)


def left_alone(came, *told):
    """That nobody has a plan, and the first process says once why."""
    assert each(came, "plans") == [0] * len(came)
    (warning,), *others = each(came, "warned")
    assert warning.startswith("lagom_jax: the program as it was runs, since ")
    assert all(words in warning for words in told), warning
    assert others == [[]] * len(others)


def test_process_0_plans_and_keeps_and_tells(trained, outcomes):
    for name, made in (("planned", [1, 0]), ("kept", [0, 0]), ("from a file", [0, 0])):
        came = trained(name)
        planned(came)
        assert each(came, "made") == made
        (*planning, summary), others = each(came, "told")
        assert ["planning for h100:2x4" in line for line in planning] == made[
            :1
        ] * made[0]
        assert "predicted 100 ms -> 90.0 ms a step" in summary
        assert others == []
    assert each(outcomes("files"), "found") == [True, False]


def test_nothing_to_load(trained):
    left_alone(trained("nothing to load"), "process 0: PlanError: there is no plan to")


def test_a_slow_process_is_waited_for(trained):
    planned(trained("slow"))


def test_a_process_that_is_too_slow_costs_the_plan_and_never_again_time(trained):
    came = trained("too slow")
    left_alone(came, "not all 2 processes came; no word from process 1")
    planned(trained("after that"))


def test_one_process_without_tuning_costs_the_others_their_patience(trained):
    came = trained("one", "one_is_off")
    left_alone(came, "no word from process 1")
    assert max(each(came, "seconds")) < LIMIT + PATIENCE


@pytest.mark.parametrize(
    ("name", "of_first", "of_other"),
    [
        ("versions", f"jaxlib {version('jaxlib')}", "jaxlib 0.0.1"),
        ("flags", "pinned ", "double_buffering=true [XLA_FLAGS]"),
        ("levers", "levers options", "levers options, costs"),
        ("verify", "verify model", "verify measure"),
    ],
)
def test_processes_that_were_started_otherwise(trained, name, of_first, of_other):
    came = trained(name)
    left_alone(came, "process 0 has ")
    (warning,) = came[0]["warned"]
    first, _, other = warning.partition(", process 1 has ")
    assert of_first in first
    assert of_other in other
    assert each(came, "made") == [0, 0]


def test_what_does_not_arrive_as_it_was_sent(trained):
    left_alone(trained("changed"), "process 1: what was decided is not known here")


def test_process_0_cannot_plan(trained):
    left_alone(trained("not planned"), "process 0: PlanError: nothing can be planned")


def test_one_process_cannot_compile_the_plan(trained):
    came = trained("not built")
    left_alone(came, "process 1: PlanError: RESOURCE_EXHAUSTED: no room")
    assert each(came, "made") == [1, 0]


def test_other_collectives(trained):
    left_alone(trained("collectives"), "processes differ", "1 has collectives others")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("strict", "jaxlib 0.0.1"),
        ("not built strictly", "process 1: PlanError"),
        # Who has come to a collective would wait for those who run another program.
        ("not run", "JaxRuntimeError: RESOURCE_EXHAUSTED"),
    ],
)
def test_what_is_raised_is_raised_in_all(outcomes, name, told):
    came = outcomes(name)
    assert each(came, "losses") == [[], []]
    assert all(told in raised for raised in each(came, "raised"))


def test_the_clock_of_process_0_decides(trained):
    came = trained("faster")
    planned(came)
    assert "measured 1.00 s a step before and 500 ms" in came[0]["told"][-1]
    planned(trained("faster, kept"))
    came = trained("slower")
    assert each(came, "plans") == [0, 0]
    assert each(came, "warned") == [[], []]
    assert "measured 1.00 s a step before and 2.00 s" in came[0]["told"][-1]
    came = trained("slower, kept")
    assert each(came, "plans") == [0, 0]
    assert came[0]["told"][-1] == "the plan was measured before, and was not faster"


def test_failures_leave_the_next_decision_alone(trained):
    planned(trained("after all"))


@pytest.mark.parametrize("job", ["dies_before", "dies_building"])
def test_a_death_costs_the_plan_and_not_the_work(trained, job):
    came = trained("died", job)
    left_alone(came, "no word from process 2")
    assert max(each(came, "seconds")) < 2 * LIMIT + PATIENCE
