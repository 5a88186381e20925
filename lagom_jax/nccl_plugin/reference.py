"""The plugin's rules in Python: the specification that it is tested with."""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Mapping
from typing import Final

from lagom_jax.nccl_plugin.rules import (
    IN_SLOTS,
    Answer,
    Place,
    Rule,
    Rules,
    possible_chunk,
)
from lagom_jax.nccl_plugin.windows import Call, different, unique_windows
from lagom_jax.plan.setting import MOST_CHANNELS

_COUNTS: Final = ("NCHANNELS", "CTAS")
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")


def _number(text: str) -> int | None:
    """As C reads it: with 0x to the base 16, with 0 to the base 8."""
    if _NUMBER.fullmatch(text) is None:
        return None
    octal = text.startswith("0") and text.isdigit()
    try:
        return min(int(text, 8 if octal else 0), MOST_CHANNELS)
    except ValueError:
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the user's own variables set on a number of channels.

    Example:
        >>> Limits(4, 16).channels(2), Limits().channels(2)
        (4, 2)
    """

    fewest: int = 1
    most: int = MOST_CHANNELS

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Limits:
        """The limits that variables set.

        Example:
            >>> Limits.of({"NCCL_MIN_CTAS": "2", "NCCL_MAX_NCHANNELS": "0x10"})
            Limits(fewest=2, most=16)
        """
        fewest = [_number(environment.get(f"NCCL_MIN_{name}", "")) for name in _COUNTS]
        most = [_number(environment.get(f"NCCL_MAX_{name}", "")) for name in _COUNTS]
        return cls(
            max((number for number in fewest if number), default=1),
            min((number for number in most if number), default=MOST_CHANNELS),
        )

    def channels(self, channels: int) -> int:
        """The nearest number that is allowed."""
        # Where the two contradict each other, NCCL takes the least.
        return max(min(channels, self.most), self.fewest)


@dataclasses.dataclass(slots=True)
class _Noted:
    """The answer to the calls of one function in one group."""

    answer: Answer | None
    clash: bool = False


class ReferenceCommunicator:
    """One communicator on one rank: the answers to its calls, one by one.

    Example:
        >>> from lagom_jax.nccl_plugin.rules import Scope
        >>> ring = Answer("ring", "simple", 4, 1 << 20)
        >>> rules = Rules((Scope(8, rules=(Rule("all-gather", 1, 99, ring),)),))
        >>> one = ReferenceCommunicator(rules, ranks=8, hosts=1, domains=1)
        >>> str(one.asked("all-gather", 50, possible={("ring", "simple")}))
        'ring/simple, 4 channels, chunk 1048576'
        >>> one.chunk("all-gather", "ring", "simple", 2097152)
        1048576
        >>> one.asked("all-gather", 50, possible=set()) is None
        True
    """

    def __init__(
        self,
        rules: Rules,
        *,
        ranks: int,
        hosts: int,
        domains: int | None = None,
        limits: Limits = Limits(),
    ) -> None:
        """Takes the rules that hold for it.

        Args:
            rules: All rules.
            ranks: Its ranks.
            hosts: NCCL's nodes.
            domains: NVLink domains; None for a version of NCCL that does not say.
            limits: What the user's variables leave of channels.
        """
        self._limits = limits
        self._scope = rules.scope_of(
            ranks, hosts, hosts if domains is None else domains
        )
        self._rules: dict[str, list[Rule]] = {}
        self._places = _Places(())
        if self._scope is not None:
            for rule in self._scope.rules:
                self._rules.setdefault(rule.function, []).append(rule)
            self._places = _Places(self._scope.sequences)
        self._noted: dict[str, _Noted] = {}
        self._scheduling = False

    def asked(
        self,
        function: str,
        nbytes: int,
        pipe_ops: int = 1,
        possible: set[tuple[str, str]] | None = None,
    ) -> Answer | None:
        """The answer to the next call; None where no rule answers.

        Args:
            function: One of `FUNCTIONS`.
            nbytes: As NCCL adds them up.
            pipe_ops: NCCL's number of operations.
            possible: The algorithms and protocols that NCCL has for the call; None
                where it has all. With none at all it asks for kernels of symmetric
                memory, as from 2.32 on, and again for the call itself.
        """
        if possible is not None and not possible:
            return None
        answer = self._places.step((function, nbytes))
        if answer is None:
            answer = self._by_size(function, nbytes, pipe_ops)
        if answer is not None and answer.algorithm is not None:
            assert answer.protocol is not None
            if possible is not None and (answer.algorithm, answer.protocol) not in (
                possible
            ):
                answer = None
        self._note(function, answer)
        if answer is None or answer.channels is None:
            return answer
        channels = self._limits.channels(answer.channels)
        return dataclasses.replace(answer, channels=channels)

    def told(self, function: str, nbytes: int, pipe_ops: int = 1) -> Answer | None:
        """The answer to a call by itself, its chunk included; None if there is none.

        Args:
            function: One of `FUNCTIONS`.
            nbytes: As NCCL adds them up.
            pipe_ops: NCCL's number of operations.
        """
        answer = self.asked(function, nbytes, pipe_ops)
        if answer is None or answer == Answer():
            return None
        # Without a choice NCCL might take anything; the plainest stands for it.
        taken = (answer.algorithm or "ring", answer.protocol or "simple")
        if answer.chunk_bytes is None:
            return answer
        chunk = self.chunk(function, *taken, answer.chunk_bytes)
        return dataclasses.replace(answer, chunk_bytes=chunk)

    def chunk(self, function: str, algorithm: str, protocol: str, usual: int) -> int:
        """The chunk for one part of a call of the group that was asked about last.

        Args:
            function: One of `FUNCTIONS`.
            algorithm: What NCCL chose.
            protocol: What NCCL chose.
            usual: The chunk that NCCL chose.
        """
        self._scheduling = True
        noted = self._noted.get(function)
        if noted is None or noted.clash or noted.answer is None:
            return usual
        answer = noted.answer
        if answer.chunk_bytes is None or (
            answer.algorithm is not None
            and (answer.algorithm, answer.protocol) != (algorithm, protocol)
        ):
            return usual
        wanted = possible_chunk(answer.chunk_bytes, algorithm, protocol)
        return min(wanted, usual) if algorithm in IN_SLOTS else wanted

    def _by_size(self, function: str, nbytes: int, pipe_ops: int) -> Answer | None:
        for rule in self._rules.get(function, ()):
            fits = rule.least <= nbytes <= rule.most
            if fits and rule.pipe_ops in (None, pipe_ops):
                return rule.answer
        return None

    def _note(self, function: str, answer: Answer | None) -> None:
        if self._scheduling:
            self._noted.clear()
            self._scheduling = False
        noted = self._noted.setdefault(function, _Noted(answer))
        noted.clash = noted.clash or _in_common(noted.answer) != _in_common(answer)
        noted.answer = answer


def _in_common(answer: Answer | None) -> tuple[object, ...] | None:
    """The parts in which answers must agree for any of their chunks to be given."""
    if answer is None:
        return None
    return (answer.algorithm, answer.protocol, answer.chunk_bytes)


class _Places:
    """A communicator's position in its repeated sequence."""

    def __init__(self, sequences: tuple[tuple[Place, ...], ...]) -> None:
        cut = different(sequences)
        self._window, self._unique = unique_windows(cut)
        self._places = [place for sequence in cut for place in sequence]
        self._after: list[int] = []
        for sequence in cut:
            first = len(self._after)
            self._after += [*range(first + 1, first + len(sequence)), first]
        self._expected = 0 if len(cut) == 1 else None
        self._last: deque[Call] = deque(maxlen=self._window)

    def step(self, call: Call) -> Answer | None:
        """The answer at the place of the next call."""
        if not self._places:
            return None
        self._last.append(call)
        here = self._expected
        if here is not None:
            place = self._places[here]
            if (place.function, place.nbytes) != call:
                here = None
        if here is None:
            here = self._unique.get(tuple(self._last))
        self._expected = None if here is None else self._after[here]
        return None if here is None else self._places[here].answer
