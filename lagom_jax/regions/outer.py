"""The outer optimiser: fragments sent, averaged, and taken in while training goes on.

docs/how-to/regions.md has the rules and their derivation. All arithmetic on parameters
is in float32; parameters keep their own type.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lagom_jax.regions import compression
from lagom_jax.regions.cadence import Cadence
from lagom_jax.regions.carriers import Carrier, Held
from lagom_jax.regions.choice import choose
from lagom_jax.regions.fragments import Fragments, LeafPart
from lagom_jax.regions.outer_state import (
    Common,
    OuterOptimizer,
    OuterState,
    Own,
    Strategy,
)

Tree = Any


def make_outer(strategy: Strategy, cadence: Cadence, carrier: Carrier) -> Any:
    """The optimiser of a strategy.

    Args:
        strategy: What is done with a fragment.
        cadence: When it is done.
        carrier: The way between the regions.

    Returns:
        An `OuterOptimizer`.
    """
    machine = _Machine(strategy, cadence, carrier)
    return OuterOptimizer(machine.init, machine.update, machine.join, cadence, strategy)


@dataclasses.dataclass(frozen=True, slots=True)
class _Machine:
    strategy: Strategy
    cadence: Cadence
    carrier: Carrier

    def init(self, params: Tree) -> OuterState:
        """A state before the first step; every region starts with the same."""
        _, size = self._fragments(params)
        count, slots = self.cadence.fragments, self.cadence.in_flight
        empty = self._empty(size)
        return OuterState(
            Common(
                step=jnp.zeros((), jnp.int32),
                # A copy, for whoever donates both.
                anchor=jax.tree.map(jnp.copy, self.carrier.first(params)),
                momentum=_zeros(params) if self.strategy.momentum else (),
                last=jnp.zeros(count, jnp.int32),
                rate=jnp.full(count, jnp.inf, jnp.float32),
                sent=jnp.zeros(count, jnp.int32),
                fragment=jnp.full(slots, -1, jnp.int32),
                gap=jnp.ones(slots, jnp.int32),
                held=empty.common,
            ),
            self._own(params),
        )

    def join(self, common: Common) -> tuple[Tree, OuterState]:
        """The global parameters, and a state that takes in what is under way."""
        params = jax.tree.map(jnp.copy, common.anchor)
        own = self._own(params)
        if self.strategy.compensation:
            fragments, size = self._fragments(params)
            leaves = jax.tree.leaves(params)

            def as_they_are(part: Sequence[LeafPart]) -> jax.Array:
                return _joined(_values(leaves, part), size)

            # It has not drifted from what it starts with.
            for slot in range(self.cadence.in_flight):
                chosen = jnp.maximum(common.fragment[slot], 0)
                now = _switch(chosen, as_they_are, fragments)
                own = own._replace(snapshot=own.snapshot.at[slot].set(now))
        return params, OuterState(common, own)

    def _empty(self, size: int) -> Held:
        slots = self.cadence.in_flight
        return jax.tree.map(
            lambda leaf: jnp.zeros((slots, *leaf.shape), leaf.dtype),
            self.carrier.held(size, self.strategy.bits),
        )

    def _own(self, params: Tree) -> Own:
        _, size = self._fragments(params)
        kept = size if self.strategy.compensation else 0
        return self.carrier.own(
            Own(
                residual=_zeros(params) if self.strategy.bits < 32 else (),
                snapshot=jnp.zeros((self.cadence.in_flight, kept), jnp.float32),
                refused=jnp.zeros((), jnp.int32),
                missed=jnp.zeros((), jnp.int32),
                held=self._empty(size).own,
            )
        )

    def update(self, params: Tree, state: OuterState) -> tuple[Tree, OuterState]:
        """Takes in what arrives after this inner step, and sends what is due."""
        cadence = self.cadence
        step = state.common.step + 1
        state = state._replace(common=state.common._replace(step=step))
        both = (self.carrier.own(params), state)
        if cadence.delay:
            sent = step - cadence.delay
            due = (sent > 0) & (sent % cadence.interval == 0)
            both = _if(due, self._arrive, both)
        return _if(step % cadence.interval == 0, self._send, both)

    def _fragments(self, params: Tree) -> tuple[Fragments, int]:
        strategy = self.strategy
        fragments = Fragments.of(
            params, self.cadence.fragments, strategy.pattern, strategy.rule
        )
        return fragments, compression.padded(max(fragments.sizes))

    def _send(self, params: Tree, state: OuterState) -> tuple[Tree, OuterState]:
        common, own, bits = state.common, state.own, self.strategy.bits
        fragments, size = self._fragments(params)
        sound = self._everywhere(_finite(params))
        # Whoever is lost goes on from the global parameters, all of them.
        params = jax.tree.map(
            lambda x, anchor: jnp.where(sound, x, anchor), params, common.anchor
        )
        flying = jnp.isin(jnp.arange(self.cadence.fragments), common.fragment)
        chosen = choose(self.cadence, common.step, common.last, common.rate, flying)
        here, there = jax.tree.leaves(params), jax.tree.leaves(common.anchor)
        unsent = jax.tree.leaves(own.residual)

        def gathered(part: Sequence[LeafPart]) -> jax.Array:
            return _joined(
                [
                    _float(piece.take(there[piece.leaf]))
                    - _float(piece.take(here[piece.leaf]))
                    + (piece.take(unsent[piece.leaf]) if unsent else 0.0)
                    for piece in part
                ],
                size,
            )

        change = _switch(chosen, gathered, fragments)
        message = compression.encode(change, bits)
        if unsent:
            left = change - compression.decode(message, bits)
            left = jnp.where(sound, left, 0.0)

            def kept(part: Sequence[LeafPart]) -> list[jax.Array]:
                return _with_parts(unsent, part, left)

            unsent = _switch(chosen, kept, fragments)
            own = own._replace(
                residual=jax.tree.unflatten(jax.tree.structure(params), unsent)
            )
        gap = common.step - jnp.take(common.last, chosen)
        number = common.step // self.cadence.interval
        held = self.carrier.send(number, message, sound, bits)
        common = common._replace(
            last=common.last.at[chosen].set(common.step),
            sent=common.sent.at[chosen].add(1),
        )
        own = own._replace(refused=own.refused + ~sound)
        if not self.cadence.delay:
            return self._take_in(
                params, OuterState(common, own), chosen, gap, number, held, None
            )
        slot = number % self.cadence.in_flight
        if self.strategy.compensation:

            def as_it_is(part: Sequence[LeafPart]) -> jax.Array:
                return _joined(_values(here, part), size)

            now = _switch(chosen, as_it_is, fragments)
            own = own._replace(snapshot=own.snapshot.at[slot].set(now))
        return params, OuterState(
            common._replace(
                fragment=common.fragment.at[slot].set(chosen),
                gap=common.gap.at[slot].set(gap),
                held=_into(common.held, slot, held.common),
            ),
            own._replace(held=_into(own.held, slot, held.own)),
        )

    def _arrive(self, params: Tree, state: OuterState) -> tuple[Tree, OuterState]:
        common, own = state.common, state.own
        number = (common.step - self.cadence.delay) // self.cadence.interval
        slot = number % self.cadence.in_flight
        chosen = jnp.take(common.fragment, slot)
        held = Held(_out_of(common.held, slot), _out_of(own.held, slot))
        snapshot = own.snapshot[slot] if self.strategy.compensation else None
        gap = jnp.take(common.gap, slot)
        state = OuterState(
            common._replace(fragment=common.fragment.at[slot].set(-1)), own
        )

        def land(both: tuple[Tree, OuterState]) -> tuple[Tree, OuterState]:
            return self._take_in(*both, chosen, gap, number, held, snapshot)

        # Nothing is under way in a state that was made for other regions.
        return lax.cond(chosen >= 0, land, lambda both: both, (params, state))

    def _take_in(
        self,
        params: Tree,
        state: OuterState,
        chosen: jax.Array,
        gap: jax.Array,
        number: jax.Array,
        held: Held,
        snapshot: jax.Array | None,
    ) -> tuple[Tree, OuterState]:
        common, own = state.common, state.own
        fragments, size = self._fragments(params)
        mean, members = self.carrier.receive(number, held, size, self.strategy.bits)
        counts = members > 0
        trees = (params, common.anchor, common.momentum)
        here, there, speed = map(jax.tree.leaves, trees)

        def land(part: Sequence[LeafPart]) -> tuple[Any, ...]:
            new = ([*here], [*there], [*speed])
            moved, start = jnp.zeros(()), 0
            for piece in part:
                end = start + piece.size
                change = mean[start:end].reshape(piece.shape)
                before = (
                    None
                    if snapshot is None
                    else snapshot[start:end].reshape(piece.shape)
                )
                start = end
                old = [
                    _float(piece.take(leaves[piece.leaf])) if leaves else change
                    for leaves in (here, there, speed)
                ]
                parts = self._rules(old[0], old[1], old[2], change, before)
                moved += jnp.sum(jnp.square(parts[1] - old[1]))
                for leaves, was, now in zip(new, old, parts, strict=True):
                    if leaves:
                        leaves[piece.leaf] = piece.put(
                            leaves[piece.leaf], jnp.where(counts, now, was)
                        )
            return (*new, moved)

        *leaves, moved = _switch(chosen, land, fragments)
        params, anchor, momentum = (
            jax.tree.unflatten(jax.tree.structure(tree), new)
            for tree, new in zip(trees, leaves, strict=True)
        )
        if self.strategy.within:
            moved = lax.psum(moved, self.strategy.within)
        rate = jnp.sqrt(moved) / gap
        known = jnp.where(counts, rate, jnp.take(common.rate, chosen))
        common = common._replace(
            anchor=anchor, momentum=momentum, rate=common.rate.at[chosen].set(known)
        )
        return params, OuterState(
            common, own._replace(missed=own.missed + (members == 0))
        )

    def _rules(
        self,
        local: jax.Array,
        anchor: jax.Array,
        momentum: jax.Array,
        change: jax.Array,
        before: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The new local and global value, and the new momentum."""
        rule = self.strategy
        momentum = rule.momentum * momentum + change if rule.momentum else change
        look = change + rule.momentum * momentum if rule.momentum else change
        anchor = anchor - rule.outer_learning_rate * look
        # A region that is lost between two sends takes the global value as it is.
        local = jnp.where(jnp.isfinite(local), local, anchor)
        target = anchor
        if before is not None:
            drift = local - before
            scale = rule.compensation / rule.inner_learning_rate / self.cadence.delay
            bend = jnp.clip(scale * drift * (anchor - before), -1.0, 1.0)
            target = anchor + drift * (1.0 - bend)
        if rule.mixing:
            target = rule.mixing * local + (1.0 - rule.mixing) * target
        return target, anchor, momentum

    def _everywhere(self, sound: jax.Array) -> jax.Array:
        if not self.strategy.within:
            return sound
        return lax.psum((~sound).astype(jnp.int32), self.strategy.within) == 0


def _finite(params: Tree) -> jax.Array:
    sound = jnp.array(True)
    for leaf in jax.tree.leaves(params):
        sound &= jnp.isfinite(leaf).all()
    return sound


def _float(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)


def _zeros(params: Tree) -> Tree:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)


def _values(leaves: Sequence[jax.Array], part: Sequence[LeafPart]) -> list[jax.Array]:
    return [_float(piece.take(leaves[piece.leaf])) for piece in part]


def _joined(parts: Sequence[jax.Array], size: int) -> jax.Array:
    """Parts one after the other, and zeros up to a size."""
    flat = [part.reshape(-1) for part in parts]
    missing = size - sum(part.size for part in flat)
    return jnp.concatenate([*flat, jnp.zeros(missing, jnp.float32)])


def _with_parts(
    leaves: Sequence[jax.Array], part: Sequence[LeafPart], values: jax.Array
) -> list[jax.Array]:
    new, start = [*leaves], 0
    for piece in part:
        value = values[start : start + piece.size].reshape(piece.shape)
        new[piece.leaf] = piece.put(new[piece.leaf], value)
        start += piece.size
    return new


def _if(
    due: jax.Array,
    function: Callable[[Tree, OuterState], tuple[Tree, OuterState]],
    both: tuple[Tree, OuterState],
) -> tuple[Tree, OuterState]:
    """Parameters and state after a function, if it is due.

    A loop of one turn or none: XLA updates what a loop carries in place, and copies
    what goes through a conditional where a branch makes it anew.
    """
    turns = due.astype(jnp.int32)
    return lax.fori_loop(0, turns, lambda _, now: function(*now), both)


def _switch(
    chosen: jax.Array,
    function: Callable[[Sequence[LeafPart]], Any],
    fragments: Fragments,
) -> Any:
    """The function of the chosen fragment's pieces."""
    branches = [functools.partial(function, part) for part in fragments.parts]
    return branches[0]() if len(branches) == 1 else lax.switch(chosen, branches)


def _into(kept: Tree, slot: jax.Array, new: Tree) -> Tree:
    return jax.tree.map(lambda whole, part: whole.at[slot].set(part), kept, new)


def _out_of(kept: Tree, slot: jax.Array) -> Tree:
    return jax.tree.map(lambda whole: whole[slot], kept)
