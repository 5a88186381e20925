"""Carrier of messages between processes: callbacks of the step to an `Exchange`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from lagom_jax.regions import compression
from lagom_jax.regions.carriers import Held
from lagom_jax.regions.compression import Message
from lagom_jax.regions.exchange import Exchange, MessagePart

_WHOLE = jax.ShapeDtypeStruct((), jnp.int32)


@dataclasses.dataclass(frozen=True, slots=True)
class Callbacks:
    """The way through an exchange, for each device that holds a part of the region.

    Under `shard_map` every device of `within` hands over what it holds, and takes the
    mean of the same part of the other regions; without axes the message is whole.
    """

    exchange: Exchange
    within: tuple[str, ...] = ()

    def held(self, size: int, bits: int) -> Held:
        """The message, in case this process is not the one that sent it."""
        return Held((), (compression.shapes(size, bits), _WHOLE, _WHOLE))

    def send(
        self, number: jax.Array, message: Message, sound: jax.Array, bits: int
    ) -> Held:
        """Hands the message over."""
        part, parts = self._place()

        def launch(number: Any, part: Any, sound: Any, *arrays: Any) -> np.ndarray:
            place = MessagePart(int(part), parts)
            self.exchange.give(int(number), place, arrays, bits, sound=bool(sound))
            return np.array(1, np.int32)

        token = io_callback(launch, _WHOLE, number, part, sound, *message)
        return Held((), (message, sound.astype(jnp.int32), token))

    def receive(
        self, number: jax.Array, held: Held, size: int, bits: int
    ) -> tuple[jax.Array, jax.Array]:
        """Takes the mean, and waits for it only if it is late."""
        message, sound, token = held.own
        part, parts = self._place()

        def land(number: Any, part: Any, sound: Any, _: Any, *arrays: Any) -> Any:
            place = MessagePart(int(part), parts)
            return self.exchange.take(
                int(number), place, arrays, bits, sound=bool(sound)
            )

        shapes = (jax.ShapeDtypeStruct((size,), jnp.float32), _WHOLE)
        return io_callback(land, shapes, number, part, sound, token, *message)

    def first(self, params: Any) -> Any:
        """These very parameters: every region starts with the same."""
        return params

    def own(self, tree: Any) -> Any:
        """This very tree: other regions are other programs."""
        return tree

    def _place(self) -> tuple[jax.Array, int]:
        if not self.within:
            return jnp.zeros((), jnp.int32), 1
        parts = math.prod(lax.axis_size(axis) for axis in self.within)
        return lax.axis_index(self.within), parts
