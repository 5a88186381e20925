"""The protocol itself, in every order in which things can happen to three processes.

A search through all states: at every point any process may make its next request, the
store may lose the request or the reply, or deliver the request much later, a process
may die, and one that died may start anew. What runs is decided by the machine that real
processes run, `lagom_jax.runtime.protocol`.
"""

import dataclasses
import functools
from typing import NamedTuple

import pytest
from bench_decision import MemoryTable, decided

from lagom_jax.runtime.protocol import (
    Decide,
    Entry,
    Member,
    Put,
    RoundStep,
    StoreAnswer,
    Verdict,
    Word,
    after,
    request,
)

COUNT, ROUNDS = 3, 2
# How many messages are lost or late, how many processes die, how many come back.
FAULTS = [
    (1, 1, 1),
    pytest.param((2, 1, 1), marks=pytest.mark.nightly),
    pytest.param((1, 2, 2), marks=pytest.mark.nightly),
]
MEMBERS = tuple(range(COUNT))
OLD, NEW, STOPPED, DEAD = "runs as it was", "runs the plan", "stopped", "dead"
LEAVES = "runs as it was, and says in the next round that it does not take part"
PROGRAM = Word("program")
READY = Word("ready")
UNABLE = Word("", "cannot build", refuses=True)


class Life(NamedTuple):
    """One process: a decision in two rounds, the offer of a plan and its use."""

    doing: Member | str
    round: int = 0


class State(NamedTuple):
    """All processes, and what is in the store or on its way; numbers stand for lives."""

    lives: tuple[int, ...]
    store: frozenset
    late: frozenset
    """Entries that arrive at some time, after whoever sent them has given them up."""
    faults: tuple[int, int, int]
    """How many messages may still be lost or late, processes die, and come back."""


# Comparing numbers takes less time than comparing processes.
LIVES, NUMBERS = [], {}


def number(life):
    if life not in NUMBERS:
        NUMBERS[life] = len(LIVES)
        LIVES.append(life)
    return NUMBERS[life]


def begin(me, word, round_):
    # The store is asked once: a message that is lost is one that was lost every time.
    return number(Life(Member(me, MEMBERS, word, binding=round_ > 0, tries=1), round_))


@functools.cache
def wish(one):
    """What a process asks for: what it does with an entry, and the entry's name."""
    life = LIVES[one]
    asked = request(life.doing)
    if isinstance(asked, Decide):
        return asked, (life.round, Entry.SIGN.value, 0)
    return asked, (life.round, asked.kind.value, asked.member)


@functools.cache
def following(one, reply):
    """What becomes of a process after a reply: one way, or more between the rounds."""
    life = LIVES[one]
    member = after(life.doing, reply)
    if not member.over:
        return [number(Life(lean(member), life.round))]
    if member.step is RoundStep.IN_DOUBT:
        return [number(Life(STOPPED))]
    if member.step is RoundStep.LEFT:
        return [number(Life(LEAVES))]
    if not member.verdict.accepted:
        return [number(Life(OLD))]
    if life.round == 1:
        # Who could not build it has nothing else to run.
        return [number(Life(OLD if member.word.refuses else NEW))]
    return [begin(member.me, word, 1) for word in (READY, UNABLE)]


def plain(value):
    """Without reasons, which are for people."""
    reasons = isinstance(value, Verdict)
    return dataclasses.replace(value, content="") if reasons else value


def lean(member):
    """A process without reasons and counts that it does not look at any more."""
    changes = {"returned": False, "failed": 0}
    if member.step not in (RoundStep.SAY, RoundStep.GATHER, RoundStep.DECIDE):
        changes |= {"heard": (), "missing": ()}
    if member.step not in (RoundStep.SAY, RoundStep.LISTEN, RoundStep.LOOK):
        changes["signs"] = 0
    if member.verdict is not None:
        changes["verdict"] = plain(member.verdict)
    return dataclasses.replace(member, **changes)


@functools.cache
def looks_at(one):
    """The entries that a process, unless it comes back, may still read or meet."""
    life = LIVES[one]
    if not isinstance(life.doing, Member):
        return frozenset()
    member, found = life.doing, set()
    for round_ in range(life.round, ROUNDS):
        step = member.step if round_ == life.round else RoundStep.SAY
        found.add((round_, Entry.VERDICT.value, 0))
        if step is RoundStep.SAY:
            found.add((round_, Entry.WORD.value, member.me))
        if member.leads and step in (RoundStep.SAY, RoundStep.GATHER):
            past = len(member.heard) + len(member.missing) if step.value else 0
            found |= {(round_, Entry.WORD.value, who) for who in MEMBERS[past:]}
        if not member.leads and step in (
            RoundStep.SAY,
            RoundStep.LISTEN,
            RoundStep.LOOK,
        ):
            found.add((round_, Entry.SIGN.value, 0))
    return frozenset(found)


@functools.cache
def seen_by(entries, keys):
    """Of entries those that somebody may still look at."""
    return frozenset(entry for entry in entries if entry[0] in keys)


@functools.cache
def keys_of(lives):
    return frozenset().union(*map(looks_at, lives))


def reduced(state):
    """A state without what can no longer matter, so that equal futures are one state."""
    lives, store, late, faults = state
    if faults[2]:
        return state
    keys = keys_of(lives)
    if not keys:
        faults = (0, 0, 0)
    return State(lives, seen_by(store, keys), seen_by(late, keys), faults)


@functools.cache
def read(store, key):
    return next((value for name, value in store if name == key), StoreAnswer.NOTHING)


@functools.cache
def written(store, key, value):
    if read(store, key) is not StoreAnswer.NOTHING:
        return store, StoreAnswer.TAKEN
    return store | {(key, value)}, StoreAnswer.DONE


@functools.cache
def effective(late, store):
    """Late entries that still find their place free."""
    return frozenset(e for e in late if read(store, e[0]) is StoreAnswer.NOTHING)


def replaced(lives, who, one):
    return (*lives[:who], one, *lives[who + 1 :])


def successors(state):
    """The states that come next."""
    return {reduced(one) for one in ways(state)}


def ways(state):
    lives, store, late, (messages, deaths, returns) = state
    for who, one in enumerate(lives):
        doing = LIVES[one].doing
        at_work = isinstance(doing, Member)
        if at_work:
            yield from steps(state, who, one)
        # The death of one that has come to its end matters only if it comes back.
        if deaths and (at_work or (returns and doing != DEAD)):
            fewer = (messages, deaths - 1, returns)
            yield State(replaced(lives, who, number(Life(DEAD))), store, late, fewer)
        if returns and doing in (DEAD, STOPPED):
            fewer = (messages, deaths, returns - 1)
            yield State(
                replaced(lives, who, begin(who, PROGRAM, 0)), store, late, fewer
            )
    for key, value in late:
        changed, _ = written(store, key, value)
        yield State(lives, changed, effective(late, changed), state.faults)


def steps(state, who, one):
    lives, store, late, (messages, deaths, returns) = state
    fewer, lost = (messages - 1, deaths, returns), StoreAnswer.LOST
    asked, key = wish(one)

    def replied(reply, store=store, late=late, faults=state.faults):
        late = effective(late, store)
        for next_one in following(one, reply):
            if LIVES[next_one].doing == LEAVES:
                next_one = number(Life(OLD))
                told, _ = written(store, (1, Entry.WORD.value, who), UNABLE)
                found = effective(late, told)
                yield State(replaced(lives, who, next_one), told, found, faults)
            yield State(replaced(lives, who, next_one), store, late, faults)

    if isinstance(asked, Decide):
        same = LIVES[one].doing.word.same
        yield from replied(Verdict(True, same))
        yield from replied(Verdict(False))
        if read(store, key) is StoreAnswer.NOTHING and (
            state.faults[2] or key in keys_of(lives)
        ):
            # It works for longer than others would wait, and says so to who listens.
            yield State(lives, store | {(key, 1)}, late, state.faults)
    elif isinstance(asked, Put):
        value = plain(asked.value)
        changed, reply = written(store, key, value)
        yield from replied(reply, changed)
        if messages:
            yield from replied(lost, faults=fewer)
            yield from replied(lost, changed, faults=fewer)
            yield from replied(lost, late=late | {(key, value)}, faults=fewer)
    else:
        # Where there is nothing, patience may end at any time.
        yield from replied(read(store, key))
        if messages:
            yield from replied(lost, faults=fewer)


def explored(faults):
    """All states that can be reached, with those that come next as numbers."""
    lives = tuple(begin(me, PROGRAM, 0) for me in MEMBERS)
    states = [reduced(State(lives, frozenset(), frozenset(), faults))]
    numbers, following_ones = {states[0]: 0}, []
    for state in states:
        found = successors(state)
        for one in found:
            if one not in numbers:
                numbers[one] = len(states)
                states.append(one)
        following_ones.append(tuple(numbers[one] for one in found))
    return states, following_ones


def doings(state):
    return {LIVES[one].doing for one in state.lives}


def at_end(state):
    return not any(isinstance(doing, Member) for doing in doings(state))


@pytest.fixture(scope="module", params=FAULTS, ids=str)
def reached(request):
    return explored(request.param)


def test_no_two_processes_run_different_programs(reached):
    states, _ = reached
    assert not [state for state in states if {OLD, NEW} <= doings(state)]


def test_nobody_waits_for_ever(reached):
    """Each step leads on, and none leads back: whoever goes on comes to an end."""
    states, following_ones = reached
    for state, found in zip(states, following_ones, strict=True):
        assert found or at_end(state)
    left = [0] * len(states)
    for found in following_ones:
        for one in found:
            left[one] += 1
    # Those that nobody leads to are taken away, one after the other; a circle stays.
    free = [one for one, count in enumerate(left) if not count]
    taken = 0
    while free:
        taken += 1
        for one in following_ones[free.pop()]:
            left[one] -= 1
            if not left[one]:
                free.append(one)
    assert taken == len(states)


def test_everything_can_happen(reached):
    states, _ = reached
    found = {frozenset(doings(state)) for state in states if at_end(state)}
    assert {frozenset([OLD]), frozenset([NEW]), frozenset([OLD, STOPPED])} <= found


def test_what_1024_processes_send_grows_with_their_number_only():
    few, many = decided(128, MemoryTable()), decided(1024, MemoryTable())
    assert 7.5 < many / few < 8.5
