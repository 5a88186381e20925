"""State machine of a round, in which the processes of a step come to one verdict.

Each process writes its word, the first process (the leader) reads the words, decides,
and writes one verdict into a register that can be written once. Everybody goes by what
that register holds, and by nothing else. A process that has waited in vain writes a
refusal into the same register: either it comes first, and everybody is refused, or it
finds the verdict there. So nobody waits for ever, and there is nothing to be guessed;
only a process that can no longer reach the store is in doubt, and must stop.

Nothing here knows a network, a clock or jax: `request` is what a process asks for next,
`after` its state when the reply is there. `coordination` asks a real store, the tests
ask one that loses and delays what it is sent, in every possible order.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final, TypeAlias

TRIES: Final = 3
"""Interval at which a process asks a store that does not answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """One process's part in a round."""

    same: str
    """All have to say the same, or the round is refused."""
    own: str = ""
    """Anything else that the leader is to know."""
    refuses: bool = False
    """True if this process cannot take part; `own` says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a round, the same for all."""

    accepted: bool
    same: str = ""
    """The word that all have said, where it was accepted."""
    content: str = ""
    """The leader's result, or the reason of a refusal."""


class Entry(enum.Enum):
    """A kind of entry in the store."""

    WORD = "word"
    VERDICT = "verdict"
    SIGN = "sign"
    """The number of times that the leader has said that it still works."""


@dataclasses.dataclass(frozen=True, slots=True)
class Put:
    """Writes an entry, unless it is there already."""

    kind: Entry
    member: int
    value: Word | Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Get:
    """Reads an entry; where it may be waited for, for as long as patience lasts."""

    kind: Entry
    member: int
    waits: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Decide:
    """Has the leader make its verdict of all words, which may take long."""

    words: tuple[Word, ...]


Request: TypeAlias = Put | Get | Decide


class StoreAnswer(enum.Enum):
    """The way in which a store answers, if not with a value."""

    DONE = "written"
    TAKEN = "there is one already"
    NOTHING = "there is none"
    LOST = "no answer: it may have been written or not"


Reply: TypeAlias = StoreAnswer | Word | Verdict | int


class RoundStep(enum.Enum):
    """A place in a round."""

    SAY = 0
    GATHER = 1
    DECIDE = 2
    PUBLISH = 3
    LISTEN = 4
    LOOK = 5
    GIVE_UP = 6
    CONFIRM = 7
    SETTLED = 8
    IN_DOUBT = 9
    """The verdict cannot be known, and others may go by it."""
    LEFT = 10
    """The verdict is not known, and nobody can have accepted anything without this."""


_LAST: Final = (RoundStep.SETTLED, RoundStep.IN_DOUBT, RoundStep.LEFT)


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One process in a round.

    Example:
        >>> member = Member(0, (0,), Word("the program"))
        >>> member = after(member, StoreAnswer.DONE)
        >>> member.step, request(member)
        (<RoundStep.GATHER: 1>, Get(kind=<Entry.WORD: 'word'>, member=0, waits=True))
    """

    me: int
    members: tuple[int, ...]
    """The processes that take part; the first is the leader."""
    word: Word
    binding: bool = True
    """True if an accepted verdict is acted on, and not only talked about further: who
    has said its word can then no longer leave."""
    tries: int = TRIES
    step: RoundStep = RoundStep.SAY
    failed: int = 0
    """Requests in a row that the store did not answer."""
    heard: tuple[Word, ...] = ()
    missing: tuple[int, ...] = ()
    signs: int = 0
    """The last sign of the leader that it has seen."""
    insisted: bool = False
    """True if it has given up, has not found that it has, and gives up again."""
    first: bool = False
    """True if this process knows that no earlier life of it has said a word."""
    returned: bool = False
    """True if an earlier life of it, or an interrupted call, has said its word."""
    verdict: Verdict | None = None

    @property
    def leads(self) -> bool:
        """True for the process that decides."""
        return self.me == self.members[0]

    @property
    def over(self) -> bool:
        """True if nothing more is asked for."""
        return self.step in _LAST

    def to(self, step: RoundStep, **changes: object) -> Member:
        """This process at another place."""
        changed = {"failed": 0, **changes}
        return dataclasses.replace(self, step=step, **changed)  # pyright: ignore


def request(member: Member) -> Request:
    """The request that a process makes next."""
    match member.step:
        case RoundStep.SAY:
            return Put(Entry.WORD, member.me, member.word)
        case RoundStep.GATHER:
            place = len(member.heard) + len(member.missing)
            # Who has missed one has no patience left for others.
            return Get(Entry.WORD, member.members[place], waits=not member.missing)
        case RoundStep.DECIDE:
            return Decide(member.heard)
        case RoundStep.PUBLISH:
            assert member.verdict is not None
            return Put(Entry.VERDICT, 0, member.verdict)
        case RoundStep.LISTEN:
            return Get(Entry.VERDICT, 0, waits=True)
        case RoundStep.LOOK:
            return Get(Entry.SIGN, 0)
        case RoundStep.GIVE_UP:
            return Put(Entry.VERDICT, 0, _refusal(member))
        case _:
            return Get(Entry.VERDICT, 0)


def after(member: Member, reply: Reply) -> Member:
    """A process's state after the reply to its request.

    Args:
        member: The process.
        reply: What the store said, or for `Decide` the leader's verdict.
    """
    if reply is StoreAnswer.LOST and member.failed + 1 < member.tries:
        return dataclasses.replace(member, failed=member.failed + 1)
    match member.step:
        case RoundStep.SAY:
            return _said(member, reply)
        case RoundStep.GATHER:
            return _gathered(member, reply)
        case RoundStep.DECIDE:
            assert isinstance(reply, Verdict)
            return member.to(RoundStep.PUBLISH, verdict=reply)
        case RoundStep.PUBLISH | RoundStep.GIVE_UP:
            if reply is StoreAnswer.DONE:
                publishes = member.step is RoundStep.PUBLISH
                written = member.verdict if publishes else _refusal(member)
                assert written is not None
                return _settled(member, written)
            # It may be there all the same, or another's.
            return member.to(RoundStep.CONFIRM)
        case RoundStep.LISTEN:
            if isinstance(reply, Verdict):
                return _settled(member, reply)
            absent = reply is StoreAnswer.NOTHING
            return member.to(RoundStep.LOOK if absent else RoundStep.GIVE_UP)
        case RoundStep.LOOK:
            if isinstance(reply, int) and reply > member.signs:
                return member.to(RoundStep.LISTEN, signs=reply)
            return member.to(RoundStep.GIVE_UP)
        case _:
            return _confirmed(member, reply)


def _said(member: Member, reply: Reply) -> Member:
    # Where it was sent again it may have met itself; that is taken for a return, too.
    if reply is StoreAnswer.LOST:
        return member.to(RoundStep.GIVE_UP)
    step, written = (
        RoundStep.GATHER if member.leads else RoundStep.LISTEN,
        StoreAnswer.DONE,
    )
    return member.to(step, first=reply is written, returned=reply is not written)


def _gathered(member: Member, reply: Reply) -> Member:
    if isinstance(reply, Word):
        member = member.to(RoundStep.GATHER, heard=(*member.heard, reply))
    else:
        place = len(member.heard) + len(member.missing)
        missing = (*member.missing, member.members[place])
        member = member.to(RoundStep.GATHER, missing=missing)
    ours = member.word
    odd = [word for word in member.heard if word.refuses or word.same != ours.same]
    rest = len(member.members) - len(member.heard) - len(member.missing)
    if odd or (not rest and member.missing):
        return member.to(RoundStep.PUBLISH, verdict=_refusal(member))
    return member if rest else member.to(RoundStep.DECIDE)


def _confirmed(member: Member, reply: Reply) -> Member:
    if isinstance(reply, Verdict):
        return _settled(member, reply)
    if reply is StoreAnswer.NOTHING and not member.insisted:
        # It has not come, or not yet. Once more, and then no more.
        return member.to(RoundStep.GIVE_UP, insisted=True)
    may_leave = member.first and not member.binding
    return member.to(RoundStep.LEFT if may_leave else RoundStep.IN_DOUBT)


def _settled(member: Member, verdict: Verdict) -> Member:
    # An earlier life has said what this one cannot do: the others do it.
    foreign = verdict.accepted and verdict.same != member.word.same
    if foreign or (verdict.accepted and member.word.refuses):
        return member.to(RoundStep.IN_DOUBT, verdict=verdict)
    return member.to(RoundStep.SETTLED, verdict=verdict)


def _refusal(member: Member) -> Verdict:
    """A refusal with the reason that this process knows."""
    if member.verdict is not None and not member.verdict.accepted:
        return member.verdict
    for who, word in zip(member.members, member.heard, strict=False):
        if word.refuses:
            return Verdict(False, content=f"process {who}: {word.own}")
        if word.same != member.word.same:
            told = difference(member.word.same, word.same, member.me, who)
            return Verdict(False, content=told)
    if member.missing:
        count = len(member.members)
        told = f"not all {count} processes came; no word from {named(member.missing)}"
        return Verdict(False, content=told)
    if member.step is RoundStep.GIVE_UP and member.word.refuses:
        return Verdict(False, content=f"process {member.me}: {member.word.own}")
    why = f"process {member.me} has waited for process {member.members[0]} in vain"
    return Verdict(False, content=why)


def difference(one: str, other: str, who: int, whom: int, most: int = 200) -> str:
    r"""A message about two words, of which only the lines that differ are shown.

    Example:
        >>> difference("a 1\nb 2", "a 1\nb 3", 0, 4)
        'processes differ: process 0 has b 2, process 4 has b 3'
    """
    lines = [text.split("\n") for text in (one, other)]
    shown: list[str] = []
    for own, others in (lines, lines[::-1]):
        text = "; ".join(line for line in own if line not in others) or "nothing more"
        shown.append(text if len(text) <= most else f"{text[:most]} ...")
    first, second = shown
    return f"processes differ: process {who} has {first}, process {whom} has {second}"


def named(members: tuple[int, ...]) -> str:
    """Processes as people write them.

    Example:
        >>> named((1, 2, 3, 7)), named((4,))
        ('processes 1-3, 7', 'process 4')
    """
    runs: list[list[int]] = []
    for member in members:
        if runs and runs[-1][-1] == member - 1:
            runs[-1].append(member)
        else:
            runs.append([member])
    text = ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs)
    return f"process{'es' if members[1:] else ''} {text}"
