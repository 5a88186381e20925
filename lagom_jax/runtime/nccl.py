"""NCCL's rules in this process, through the tuner plugin's control page.

NCCL looks for a tuner when it makes its first communicator, which is when the first
collective runs, so that a plan that is made before that can still reach it. A
communicator that is older than the page never asks, and chooses as it always did.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

import jax

from lagom_jax.errors import LagomError, RefusedError, TunerError
from lagom_jax.nccl_plugin import Control, Rule, Rules, Scope, built, exchange, pack
from lagom_jax.nccl_plugin.installed import (
    CHAIN,
    CONTROL,
    PLUGIN,
    RULES,
    is_ours,
    named_tuner,
)
from lagom_jax.nccl_plugin.nccl_library import find_nccl, read_nccl
from lagom_jax.runtime.coordination import Talk
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from xla_flags import pinned_here

_PAGE: Final = "lagom-tuner"


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
        # Rules go with whose they are.
        self._told: weakref.WeakKeyDictionary[object, Rules] = (
            weakref.WeakKeyDictionary()
        )

    def objection(self) -> str:
        """The reason why NCCL can be given no rules here; empty where it can."""
        named = self._environ.get(PLUGIN) or named_tuner(pinned_here())
        if named.lower() == "none":
            return f"{PLUGIN}={named} forbids a tuner"
        for variable in (RULES, CONTROL):
            if variable == CONTROL and _inherited(self._environ.get(variable, "")):
                continue
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

    def told(self, who: object) -> Rules | None:
        """The rules of somebody that hold; None for none."""
        return self._told.get(who)

    def tell(
        self,
        who: object,
        rules: Rules | None,
        talk: Talk,
        gone: Iterable[object] = (),
    ) -> None:
        """Lets rules hold in all processes, or in none.

        Every process calls it at the same point of the job.

        Args:
            who: Whose rules they are; they take the place of earlier ones.
            rules: The rules; None for none.
            talk: The processes that have them.
            gone: Others, whose rules no longer count.

        Raises:
            LagomError: All processes go on with what they have told before.
            InDoubtError: Nobody can say what others have told.
        """
        if rules is self.told(who):
            return

        def agrees(point: str, said: str) -> bool:
            try:
                talk.agree(Word(f"rules {point} {said}"), lambda words: "")
            except RefusedError as error:
                LOG.warning("NCCL is told nothing new: %s", error)
                return False
            return True

        with self._lock:
            left = {*gone, who}
            wanted = [one for key, one in self._told.items() if key not in left]
            _drain()
            image = pack(merged([*wanted, rules or Rules(())]))
            if not exchange(self._control(), image, agrees):
                raise LagomError("not all processes could tell NCCL what the plan says")
            for key in left:
                self._told.pop(key, None)
            if rules is not None:
                self._told[who] = rules

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


def merged(all_rules: Iterable[Rules]) -> Rules:
    """The union of several programs' rules, where they do not contradict each other.

    Calls that two of them want differently are left to NCCL, for it cannot know which
    program a call belongs to. Sequences are only followed where there is one program.

    Example:
        >>> from lagom_jax.nccl_plugin import Answer
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


def _inherited(control: str) -> bool:
    """True if this is the page of a parent process, which is not here."""
    try:
        return control.startswith("/proc/self/fd/") and _PAGE not in os.readlink(
            control
        )
    except OSError:
        return True


def _drain() -> None:
    """Waits for all that was begun: its collectives were enqueued under older rules."""
    for array in jax.live_arrays():
        # Another thread may donate it meanwhile, and an error of the step that makes it
        # reaches whoever looks at it.
        with contextlib.suppress(RuntimeError, ValueError):
            array.block_until_ready()
    jax.effects_barrier()
