"""NCCL's rules in this process, through the tuner plugin's control page.

NCCL looks for a tuner when it makes its first communicator, which is when the first
collective runs, so that a plan that is made before that can still reach it. A
communicator that is older than the page never asks, and chooses as it always did.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

import jax

from lagom_jax.errors import TunerError
from lagom_jax.runtime.agreement import NoAgreementError, Peers
from lagom_jax.runtime.say import LOG
from lagom_jax.tuner import Control, Rule, Rules, Scope, built, exchange, pack
from lagom_jax.tuner.installed import (
    CHAIN,
    CONTROL,
    PLUGIN,
    RULES,
    is_ours,
    named_tuner,
)
from lagom_jax.tuner.nccl_library import find_nccl, read_nccl
from xla_flags import pinned_here


class Nccl:
    """The rules that one process gives NCCL.

    Example:
        >>> Nccl({"NCCL_TUNER_PLUGIN": "none"}).objection()
        'NCCL_TUNER_PLUGIN=none forbids a tuner'
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Takes the environment that NCCL will read; nothing is set yet."""
        self._environ = environ
        self._page: Control | None = None
        self._lock = threading.Lock()
        self._told: dict[object, Rules] = {}

    def objection(self) -> str:
        """The reason why NCCL can be given no rules here; empty where it can."""
        named = self._environ.get(PLUGIN) or named_tuner(pinned_here())
        if named.lower() == "none":
            return f"{PLUGIN}={named} forbids a tuner"
        for variable in (RULES, CONTROL):
            if self._page is None and self._environ.get(variable):
                return f"{variable} is set, and what it says holds"
        try:
            built()
            library = read_nccl(find_nccl())
        except TunerError as error:
            return str(error)
        if library.speaks is None:
            return f"the NCCL at {library.path} is too old for the tuner plugin"
        return ""

    def tell(self, who: object, rules: Rules | None, peers: Peers) -> bool:
        """Lets rules hold in all processes, or in none.

        Every process calls it at the same point of the job.

        Args:
            who: Whose rules they are; they take the place of earlier ones.
            rules: The rules; None for none.
            peers: The processes.

        Returns:
            Whether they hold now.

        Raises:
            InDoubtError: Nobody can say, so that this process must not go on.
        """
        with self._lock:
            wanted = {**self._told, who: rules or Rules(())}
            _drain()
            if not exchange(
                self._control(), pack(merged(wanted.values())), _Agreed(peers)
            ):
                return False
            self._told = wanted
            return True

    def _control(self) -> Control:
        if self._page is not None:
            return self._page
        plugin = built()
        page = Control()
        variables = {PLUGIN: str(plugin), **page.environment()}
        other = self._environ.get(PLUGIN) or named_tuner(pinned_here())
        if other and not is_ours(other, plugin):
            variables[CHAIN] = self._environ.get(CHAIN) or other
            LOG.info("%s is asked where there is no rule", variables[CHAIN])
        self._environ.update(variables)
        LOG.info("NCCL's tuner plugin is set in this process: %s", plugin)
        self._page = page
        return page


HERE: Final = Nccl()
"""The one of this process."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Agreed:
    """A check that all processes have the same word; false where it cannot be known."""

    peers: Peers
    seconds: float = 60.0

    def __call__(self, point: str, said: str) -> bool:
        topic = "the rules of NCCL's tuner"
        try:
            words = self.peers.gather(topic, f"{point}: {said}", seconds=self.seconds)
        except NoAgreementError as error:
            # It is raised in all of them, so that all keep what they have.
            LOG.warning("NCCL is told nothing new: %s", error)
            return False
        return len(set(words)) == 1


def merged(all_rules: Iterable[Rules]) -> Rules:
    """The union of several programs' rules, where they do not contradict each other.

    Calls that two of them want differently are left to NCCL, for it cannot know which
    program a call belongs to. Sequences are only followed where there is one program.

    Example:
        >>> from lagom_jax.tuner import Answer
        >>> def wants(channels):
        ...     rule = Rule("all-gather", 1, 1, Answer(channels=channels))
        ...     return Rules((Scope(8, rules=(rule,)),))
        >>> merged([wants(2), wants(2)]) == wants(2)
        True
        >>> merged([wants(2), wants(4)]).scopes
        ()
    """
    wanted = [rules for rules in all_rules if rules.scopes]
    if len(wanted) == 1:
        return wanted[0]
    found: dict[Any, dict[Any, set[Rule]]] = {}
    for scope in itertools.chain.from_iterable(rules.scopes for rules in wanted):
        shape = (scope.ranks, scope.hosts, scope.domains)
        for rule in scope.rules:
            call = (rule.function, rule.least, rule.most, rule.pipe_ops)
            found.setdefault(shape, {}).setdefault(call, set()).add(rule)
    scopes: list[Scope] = []
    for (ranks, hosts, domains), calls in found.items():
        agreed = [next(iter(rules)) for rules in calls.values() if len(rules) == 1]
        if agreed:
            scopes.append(Scope(ranks, hosts, domains, tuple(agreed)))
    return Rules(tuple(scopes))


def _drain() -> None:
    """Waits for all that was begun: its collectives were enqueued under older rules."""
    jax.block_until_ready(jax.live_arrays())
    jax.effects_barrier()
