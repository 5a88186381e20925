"""Batches as a function of the step: nothing to save, nothing to replay on resuming."""

import functools
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import NamedSharding

from training.errors import TrainingError


@dataclass(frozen=True)
class Batches:
    """Sequences of a text, each once per epoch, in an order of its own in each.

    Attributes:
        tokens: The text.
        batch: Sequences in a batch, over all processes.
        sequence: Tokens that are predicted in each.
        seed: Decides the order.
        sharding: How a batch is cut over the devices.
    """

    tokens: np.ndarray
    batch: int
    sequence: int
    seed: int
    sharding: NamedSharding

    def __post_init__(self) -> None:
        if len(self) < 1:
            raise TrainingError(
                f"the text is too short: a batch needs {self.batch} sequences of "
                f"{self.sequence} tokens, and {len(self.tokens)} tokens are only "
                f"{self._sequences}; take a longer text, of which a twentieth is held "
                "out, or a smaller --batch or --sequence"
            )

    def __len__(self) -> int:
        """Whole batches in an epoch."""
        return self._sequences // self.batch

    @property
    def _sequences(self) -> int:
        return max(0, len(self.tokens) - 1) // self.sequence

    def at(self, step: int) -> jax.Array:
        """The batch of a step; each process reads only what its devices hold."""
        shape = (self.batch, self.sequence + 1)
        held = self.sharding.addressable_devices_indices_map(shape).values()
        rows = np.unique(
            np.concatenate([np.arange(self.batch)[part[0]] for part in held if part])
        )
        return jax.make_array_from_process_local_data(
            self.sharding,
            np.stack([self._row(step * self.batch + row) for row in rows]),
            shape,
        )

    def _row(self, number: int) -> np.ndarray:
        epoch, place = divmod(number, self._sequences)
        start = _order(self._sequences, self.seed, epoch)[place] * self.sequence
        return self.tokens[start : start + self.sequence + 1].astype(np.int32)


@functools.lru_cache(maxsize=4)
def _order(sequences: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(sequences)
