"""Calls told apart by their place in what a communicator repeats."""

import pytest

from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin.image import load, pack, save, unpack
from lagom_jax.nccl_plugin.library import Communicator, opened
from lagom_jax.nccl_plugin.rules import Answer, Place, Rule, Rules, Scope
from lagom_jax.nccl_plugin.windows import LONGEST_WINDOW

GATHER, REDUCE = ("all-gather", 1 << 20), ("reduce-scatter", 1 << 20)
BY_SIZE = Answer(channels=64)


def place(call, channels):
    return Place(*call, Answer(channels=channels) if channels else None)


def scope(*sequences):
    rules = (Rule("all-gather", 0, 1 << 40, BY_SIZE),)
    return Scope(8, rules=rules, sequences=sequences)


@pytest.fixture
def told(plugin, tmp_path):
    """What the plugin tells a communicator for calls, in channels."""

    def ask(sequences, calls):
        save(Rules((scope(*sequences),)), tmp_path / "rules")
        with opened(plugin, {"LAGOM_TUNER_RULES": str(tmp_path / "rules")}) as tuner:
            one = Communicator(tuner, ranks=8, hosts=1, domains=1)
            answers = [one.ask(*call) for call in calls]
            one.close()
        return [answer.channels if answer else None for answer in answers]

    return ask


LAYER = (place(GATHER, 1), place(GATHER, 2), place(REDUCE, 3))


def test_two_calls_of_one_size_differ(told):
    assert told([LAYER], [GATHER, GATHER, REDUCE] * 3) == [1, 2, 3] * 3


def test_a_stranger_costs_one_round_at_most(told):
    stranger = ("all-gather", 77)
    calls = [GATHER, stranger, GATHER, GATHER, REDUCE, GATHER, GATHER, REDUCE]
    # Lost by the stranger; the first reduce-scatter says where we are again.
    assert told([LAYER], calls) == [1, 64, 64, 64, 3, 1, 2, 3]


def test_a_question_about_kernels_of_symmetric_memory_is_no_call(told):
    asked_first = (*GATHER, 1, ())
    calls = [asked_first, GATHER, asked_first, GATHER, (*REDUCE, 1, ()), REDUCE]
    assert told([LAYER], calls * 2) == [None, 1, None, 2, None, 3] * 2


def test_a_question_about_kernels_of_symmetric_memory_leaves_the_chunk(
    plugin, tmp_path
):
    answer = Answer("ring", "simple", 4, 1 << 17)
    rules = Rules((Scope(8, rules=(Rule("all-gather", 0, 1 << 40, answer),)),))
    save(rules, tmp_path / "rules")
    with opened(plugin, {"LAGOM_TUNER_RULES": str(tmp_path / "rules")}) as tuner:
        one = Communicator(tuner, ranks=8, hosts=1, domains=1)
        for _ in range(2):
            assert one.ask(*GATHER, possible=()) is None
            assert one.ask(*GATHER) == answer
        one.close()


def test_a_missing_call_is_noticed(told):
    calls = [GATHER, GATHER, REDUCE, GATHER, REDUCE, GATHER, GATHER, REDUCE]
    assert told([LAYER], calls) == [1, 2, 3, 1, 3, 1, 2, 3]


def test_a_place_without_an_answer_has_that_of_its_size(told):
    sequence = (place(GATHER, 0), place(GATHER, 2), place(REDUCE, 0))
    assert told([sequence], [GATHER, GATHER, REDUCE]) == [64, 2, None]


def test_communicators_of_one_shape_may_repeat_different_things(told):
    other = (place(("all-reduce", 8), 5), place(GATHER, 6))
    calls = [REDUCE, GATHER, GATHER, REDUCE]
    assert told([LAYER, other], calls) == [3, 1, 2, 3]
    assert told([LAYER, other], [("all-reduce", 8), GATHER] * 2) == [5, 6, 5, 6]


def test_long_runs_are_counted(told):
    count = 3 * LONGEST_WINDOW
    run = (*tuple(place(GATHER, 1 + n % 60) for n in range(count)), place(REDUCE, 61))
    calls = [(p.function, p.nbytes) for p in run]
    wanted = [p.answer.channels for p in run]
    assert told([run], calls * 2) == wanted * 2
    # From the middle on nothing is known until the end of the run.
    assert told([run], [REDUCE, *calls]) == [61, *wanted]


def test_what_cannot_be_told_apart_is_refused():
    with pytest.raises(TunerError, match="give all calls of one size"):
        pack(Rules((scope((place(GATHER, 1), place(GATHER, 2))),)))


def test_a_repetition_is_the_same_as_what_it_repeats(told):
    assert pack(Rules((scope(LAYER * 4),))) == pack(Rules((scope(LAYER),)))


def test_sequences_are_read_back(tmp_path):
    other = (place(("all-reduce", 8), 5), place(GATHER, 0))
    rules = Rules((scope(LAYER), scope(), Scope(4, sequences=(LAYER, other))))
    assert unpack(pack(rules)) == rules
    save(rules, tmp_path / "rules")
    assert load(tmp_path / "rules") == rules
