"""Carriers of messages between regions: along a mesh axis, or nowhere.

A carrier is asked to send one region's message and, `delay` steps later, for the mean
of all. What it must remember in between is part of the optimiser's state. Processes
with programs of their own have a carrier in `lagom_jax.regions.callbacks`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from lagom_jax.errors import RegionError
from lagom_jax.regions import compression
from lagom_jax.regions.compression import Message


class Held(NamedTuple):
    """State of an exchange that is under way."""

    common: Any
    """The same in all regions."""
    own: Any


class Carrier(Protocol):
    """The way from region to region."""

    def held(self, size: int, bits: int) -> Held:
        """Shapes of what is kept of one exchange of so many numbers."""
        ...

    def send(
        self, number: jax.Array, message: Message, sound: jax.Array, bits: int
    ) -> Held:
        """Sends this region's message.

        Args:
            number: Counts the exchanges.
            message: An encoded outer gradient.
            sound: Whether it is finite; if not it does not count.
            bits: Of each number in it.
        """
        ...

    def receive(
        self, number: jax.Array, held: Held, size: int, bits: int
    ) -> tuple[jax.Array, jax.Array]:
        """The mean over the regions whose messages counted, and how many they were."""
        ...

    def first(self, params: Any) -> Any:
        """The parameters of the first region."""
        ...

    def own(self, tree: Any) -> Any:
        """The same tree, of a type that may differ from region to region."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class OneRegion:
    """One region without others."""

    def held(self, size: int, bits: int) -> Held:
        """The numbers, and whether they count."""
        values = jax.ShapeDtypeStruct((size,), jnp.float32)
        return Held((values, jax.ShapeDtypeStruct((), jnp.int32)), ())

    def send(
        self, number: jax.Array, message: Message, sound: jax.Array, bits: int
    ) -> Held:
        """Keeps the message."""
        del number
        values = jnp.where(sound, compression.decode(message, bits), 0.0)
        return Held((values, sound.astype(jnp.int32)), ())

    def receive(
        self, number: jax.Array, held: Held, size: int, bits: int
    ) -> tuple[jax.Array, jax.Array]:
        """Gives back what was kept."""
        del number, size, bits
        return held.common

    def first(self, params: Any) -> Any:
        """These very parameters."""
        return params

    def own(self, tree: Any) -> Any:
        """This very tree."""
        return tree


@dataclasses.dataclass(frozen=True, slots=True)
class AlongAxis:
    """Regions along an axis of a mesh under `shard_map`, or of `vmap`.

    In 32 bits an all-reduce; with fewer an all-gather of the messages, which each
    region adds up in float32 for itself. Both run in the step that sends.
    """

    axis: str

    def held(self, size: int, bits: int) -> Held:
        """The mean, and how many regions it is of."""
        return OneRegion().held(size, bits)

    def send(
        self, number: jax.Array, message: Message, sound: jax.Array, bits: int
    ) -> Held:
        """Adds up the messages of all regions."""
        del number
        count = lax.psum(sound.astype(jnp.int32), self.axis)
        if bits == 32:
            total = lax.psum(jnp.where(sound, message[0], 0.0), self.axis)
        else:
            gathered = tuple(self._gather(part) for part in message)
            values = compression.decode(gathered, bits)
            counts = self._gather(sound)[:, None]
            total = jnp.where(counts, values, 0.0).sum(axis=0)
        return Held((total / jnp.maximum(count, 1), count), ())

    def receive(
        self, number: jax.Array, held: Held, size: int, bits: int
    ) -> tuple[jax.Array, jax.Array]:
        """Gives back the mean."""
        del number, size, bits
        return held.common

    def first(self, params: Any) -> Any:
        """Value of the region with index 0."""
        try:
            chosen = lax.axis_index(self.axis) == 0
        except NameError as error:
            raise RegionError(
                f"there is no axis {self.axis!r} here: call this under jax.shard_map "
                "over a mesh that has it, or take regions.stacked(outer, mesh)"
            ) from error
        return jax.tree.map(
            lambda x: lax.psum(jnp.where(chosen, x, jnp.zeros_like(x)), self.axis),
            params,
        )

    def own(self, tree: Any) -> Any:
        """The same values, which `shard_map` is told to take for different ones."""
        if self.axis not in jax.sharding.get_abstract_mesh().manual_axes:
            return tree  # Under vmap, which does not tell them apart.
        return jax.tree.map(self._varying, tree)

    def _varying(self, leaf: jax.Array) -> jax.Array:
        if self.axis in jax.typeof(leaf).manual_axis_type.varying:
            return leaf
        return lax.pcast(leaf, self.axis, to="varying")

    def _gather(self, part: jax.Array) -> jax.Array:
        # Under vmap the type says nothing of the axis.
        cut = self.axis in jax.typeof(part).manual_axis_type.varying
        return lax.all_gather(part, self.axis, to="invarying" if cut else "varying")
