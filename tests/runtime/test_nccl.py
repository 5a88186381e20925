"""What the wrapper tells NCCL, asked for as NCCL asks: through the plugin itself."""

import base64
import contextlib
import itertools
from concurrent.futures import Future

import jax
import pytest

import lagom_jax
from lagom_jax.errors import LagomError, RefusedError, TunerError
from lagom_jax.nccl_plugin import (
    Answer,
    InDoubtError,
    Place,
    Rule,
    Rules,
    Scope,
    built,
    pack,
    unpack,
)
from lagom_jax.nccl_plugin.installed import CHAIN, CONTROL, PLUGIN, RULES
from lagom_jax.nccl_plugin.library import Communicator, opened
from lagom_jax.online.turns import BASELINE, schedule
from lagom_jax.runtime import decision, nccl, place
from lagom_jax.runtime.coordination import ProcessGroup
from lagom_jax.runtime.nccl import Nccl, merged
from lagom_jax.runtime.say import LagomWarning


class Owner:
    """Whoever has rules; they go with him."""


ALONE = ProcessGroup(0, (0,)).begin("step", 60.0)


class Refusing:
    """Processes of which not all could."""

    def agree(self, word, decide):
        raise RefusedError("one could not")


def wants(channels, nbytes=4096, ranks=8):
    rule = Rule("all-gather", nbytes, nbytes, Answer(channels=channels))
    return Rules((Scope(ranks, rules=(rule,)),))


def channels(communicator, nbytes=4096):
    answer = communicator.ask("all-gather", nbytes)
    return answer and answer.channels


def test_rules_hold_once_they_are_told_and_go_again():
    environ = {}
    here = Nccl(environ)
    one, another = Owner(), Owner()
    here.tell(one, wants(3), ALONE)
    assert environ[PLUGIN] == str(built())
    with opened(built(), {CONTROL: environ[CONTROL]}) as tuner:
        communicator = Communicator(tuner, ranks=8, hosts=1, domains=1)
        assert channels(communicator) == 3
        here.tell(one, wants(5), ALONE)
        assert channels(communicator) == 5
        here.tell(another, wants(7, nbytes=8192), ALONE)
        assert (channels(communicator), channels(communicator, 8192)) == (5, 7)
        here.tell(another, wants(6), ALONE)
        assert channels(communicator) is None
        here.tell(another, None, ALONE)
        assert channels(communicator) == 5
        here.tell(one, None, ALONE)
        assert channels(communicator) is None


def test_rules_go_with_the_function_that_they_are_for():
    environ = {}
    here, other = Nccl(environ), Owner()
    here.tell(other, wants(3), ALONE)
    first, second = Owner(), Owner()
    here.tell(first, wants(4), ALONE)
    with opened(built(), {CONTROL: environ[CONTROL]}) as tuner:
        communicator = Communicator(tuner, ranks=8, hosts=1, domains=1)
        assert channels(communicator) is None
        # What ran for a first step only is withdrawn.
        here.tell(second, wants(4, nbytes=8192), ALONE, gone=[first])
        assert (channels(communicator), channels(communicator, 8192)) == (3, 4)
        del other
        here.tell(second, wants(5, nbytes=8192), ALONE)
        assert (channels(communicator), channels(communicator, 8192)) == (None, 5)


def test_arrays_that_another_thread_donates_meanwhile(monkeypatch):
    gone, real = jax.numpy.ones(3), jax.live_arrays
    gone.delete()
    monkeypatch.setattr(jax, "live_arrays", lambda: [*real(), gone])
    Nccl({}).tell(Owner(), wants(3), ALONE)


def test_what_not_all_have_never_holds():
    environ = {}
    here, one, other = Nccl(environ), Owner(), Owner()
    here.tell(one, wants(3), ALONE)
    for who, rules in ((one, wants(4)), (other, wants(5, nbytes=8192))):
        with pytest.raises(LagomError, match="not all processes"):
            here.tell(who, rules, Refusing())
    with opened(built(), {CONTROL: environ[CONTROL]}) as tuner:
        communicator = Communicator(tuner, ranks=8, hosts=1, domains=1)
        assert channels(communicator) == 3
        here.tell(one, wants(4), ALONE)
        assert (channels(communicator), channels(communicator, 8192)) == (4, None)


def test_another_tuner_is_asked_where_there_is_no_rule():
    environ = {PLUGIN: "site.so"}
    Nccl(environ).tell(Owner(), wants(3), ALONE)
    assert (environ[PLUGIN], environ[CHAIN]) == (str(built()), "site.so")


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({PLUGIN: "none"}, "forbids"),
        ({RULES: "rules"}, f"{RULES} is set"),
        ({CONTROL: "/dev/shm/page"}, f"{CONTROL} is set"),
    ],
)
def test_what_the_user_has_set_stays(environ, told):
    assert told in Nccl(dict(environ)).objection()


def test_an_nccl_that_is_not_there_or_too_old(monkeypatch):
    class Old:
        path, speaks = "libnccl.so.2", None

    def nowhere():
        raise TunerError("there is no NCCL")

    monkeypatch.setattr(nccl, "find_nccl", nowhere)
    assert Nccl({}).objection() == "there is no NCCL"
    monkeypatch.setattr(nccl, "find_nccl", lambda: "libnccl.so.2")
    monkeypatch.setattr(nccl, "read_nccl", lambda path: Old())
    assert "too old" in Nccl({}).objection()
    Old.speaks = 6
    assert Nccl({}).objection() == ""


def test_our_own_page_is_no_objection(monkeypatch):
    class New:
        path, speaks = "libnccl.so.2", 6

    monkeypatch.setattr(nccl, "find_nccl", lambda: "libnccl.so.2")
    monkeypatch.setattr(nccl, "read_nccl", lambda path: New())
    here = Nccl({})
    here.tell(Owner(), wants(1), ALONE)
    assert here.objection() == ""


def test_programs_that_contradict_each_other_leave_it_to_nccl():
    both = merged([wants(2), wants(4), wants(3, nbytes=10)])
    (scope,) = both.scopes
    assert [(rule.least, rule.answer.channels) for rule in scope.rules] == [(10, 3)]
    assert {scope.ranks for scope in merged([wants(2), wants(4, ranks=4)]).scopes} == {
        4,
        8,
    }


def test_sequences_are_followed_for_one_program_only():
    places = (Place("all-gather", 1, Answer(channels=1)), Place("reduce", 2, None))
    alone = Rules((Scope(8, sequences=(places,)),))
    assert merged([alone]) == alone
    assert not any(scope.sequences for scope in merged([alone, wants(2)]).scopes)


class Listening(Nccl):
    """Hears which rules are to hold, and answers as it was told to."""

    def __init__(self, answer):
        super().__init__({})
        self.heard, self.answer = [], answer

    def objection(self):
        return ""

    def exchange(self, control, image, agree):
        rules = unpack(image, "what is told")
        self.heard.append(rules if rules.scopes else None)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def tuned(monkeypatch, plans):
    """A step that takes itself to be on GPUs, with a plan that has rules."""

    def make(answer, **options):
        here = Listening(answer)
        monkeypatch.setattr(nccl, "HERE", here)
        monkeypatch.setattr(nccl, "exchange", here.exchange)
        monkeypatch.setattr(place, "on_gpus", lambda devices: True)
        image = base64.b64encode(pack(wants(3))).decode()
        monkeypatch.setattr(decision, "rules_image", lambda case, plan: image)
        step = jax.jit(lambda x: x + 1)
        return lagom_jax.tune(step, cluster="h100:1x1", **options), here

    return make


def test_a_step_tells_nccl_before_it_runs(tuned):
    step, here = tuned(True)
    assert [step(1.0) for _ in range(3)] == [2.0] * 3
    assert here.heard == [wants(3)]
    assert len(step.plans) == 1


def test_a_step_whose_rules_not_all_have_runs_as_it_was(tuned):
    step, here = tuned(False)
    with pytest.warns(LagomWarning, match="could tell NCCL"):
        assert step(1.0) == 2.0
    assert [step(1.0) for _ in range(3)] == [2.0] * 3
    assert here.heard == [wants(3)]
    assert not step.plans


def test_a_step_in_doubt_does_not_run(tuned):
    step, _ = tuned(InDoubtError("nobody can say"))
    with pytest.raises(InDoubtError):
        step(1.0)


def test_rules_go_with_the_program_that_is_measured(tuned):
    step, here = tuned(True, verify="measure")
    sides = schedule()
    # One more, before which what came of it is decided.
    for _ in range(len(sides) + 1):
        assert step(1.0) == 2.0
    told = [wants(3), *(None if side == BASELINE else wants(3) for side in sides)]
    told.append(wants(3) if step.plans else None)
    changes = [new for old, new in itertools.pairwise(told) if old != new]
    assert here.heard == told[:1] + changes


def test_who_is_called_away_while_nccl_is_told(tuned, monkeypatch):
    """All are told all the same, and this process makes the step when it comes back."""
    step, here = tuned(True, verify="measure")
    result, away = Future.exception, []

    class AwayError(Exception):
        pass

    def late(self, *given):
        found = result(self, *given)
        if len(here.heard) > len(away) + 1:
            away.append(1)
            raise AwayError
        return found

    monkeypatch.setattr(Future, "exception", late)
    sides, made = schedule(), 0
    for _ in range(3 * len(sides)):
        if made == len(sides):
            break
        with contextlib.suppress(AwayError):
            assert step(1.0) == 2.0
            made += 1
    told = [wants(3), *(None if side == BASELINE else wants(3) for side in sides)]
    changes = [new for old, new in itertools.pairwise(told) if old != new]
    assert here.heard == told[:1] + changes
    assert len(away) == len(changes)


def test_what_was_taken_for_a_first_step_and_runs_again_is_told_again(tuned):
    step, here = tuned(True)
    step(1.0)
    step(jax.numpy.ones(3))
    assert here.heard == [wants(3)] * 2, "one program has rules at a time"
    step(1.0)
    assert here.heard == [wants(3)] * 3
    assert len(here._told) == 2


def test_what_can_no_longer_be_told_while_it_is_measured(tuned):
    step, here = tuned(True, verify="measure")
    assert step(1.0) == 2.0
    here.answer = False
    with pytest.warns(LagomWarning, match="could tell NCCL"):
        assert step(1.0) == 2.0
    assert [step(1.0) for _ in range(3)] == [2.0] * 3
    assert not step.plans
