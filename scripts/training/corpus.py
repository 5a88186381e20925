"""Text to train on: bytes of a file, or of a language whose entropy is known.

The language has made-up words. Each is followed by one of a few others, or ends a
sentence, after which any word may start the next. To predict it well, a model must
learn to spell, and then which words follow which; how well that can be done at all
can be computed.
"""

import bisect
import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.errors import TrainingError

_WORDS = 96
_FOLLOWERS = 6
_END = 0.1  # the chance that a sentence ends after a word
_BYTES = 1_500_000


@dataclass(frozen=True)
class Corpus:
    """A text as tokens, one for each byte.

    Attributes:
        name: A file, or what made the text.
        tokens: What a model is trained on.
        held_out: What it is evaluated on.
        unigram_entropy: Nats per token for those who know only how often each occurs.
        entropy: Nats per token for those who know how the text was made, if it was.
    """

    name: str
    tokens: np.ndarray
    held_out: np.ndarray
    unigram_entropy: float
    entropy: float | None

    def describe(self) -> str:
        """One line: how long it is, and how low a loss can be."""
        words = (
            f"{self.name}, {len(self.tokens) / 1e6:.3g} million bytes: to know how "
            f"often each occurs gives a loss of {self.unigram_entropy:.3f}"
        )
        if self.entropy is None:
            return words
        return f"{words}, to know everything {self.entropy:.3f}"


def read(path: str) -> Corpus:
    """Reads a text from a file.

    Raises:
        TrainingError: If there is no such file, or nothing in it.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise TrainingError(f"--text={path}: {error.strerror or error}") from error
    if not text:
        raise TrainingError(f"--text={path}: the file is empty")
    return _corpus(path, text, None)


def generate() -> Corpus:
    """Makes the same text every time, on every machine."""
    # Of Python's generator, only `random` promises the same numbers in every version.
    chance = random.Random(0).random
    words = _words(chance)
    weights = [1 / (rank + 1) for rank in range(_FOLLOWERS)]
    followers = [[int(chance() * _WORDS) for _ in weights] for _ in words]
    thresholds = list(itertools.accumulate(weight / sum(weights) for weight in weights))
    text = bytearray()
    word = 0
    while len(text) < _BYTES:
        text += words[word]
        if chance() < _END:
            text += b". "
            word = int(chance() * _WORDS)
        else:
            text += b" "
            rank = min(bisect.bisect(thresholds, chance()), _FOLLOWERS - 1)
            word = followers[word][rank]
    follows = np.zeros((_WORDS, _WORDS))
    for row, targets in zip(follows, followers, strict=True):
        np.add.at(row, targets, np.array(weights) / sum(weights))
    return _corpus("a generated text", bytes(text), _entropy(words, follows))


def _words(chance) -> list[bytes]:
    words: list[bytes] = []
    while len(words) < _WORDS:
        syllables = 1 + int(chance() * 3)
        word = "".join(
            "bdfgklmnprstvz"[int(chance() * 14)] + "aeiou"[int(chance() * 5)]
            for _ in range(syllables)
        ).encode()
        if word not in words:
            words.append(word)
    return words


def _entropy(words: list[bytes], follows: np.ndarray) -> float:
    """Nats per byte of the endless text: those of a word over its mean length.

    No two texts of different words look alike, so that nothing is added or lost by
    looking at bytes.
    """
    jump = np.full_like(follows, 1 / len(words))
    chain = (1 - _END) * follows + _END * jump
    share = np.linalg.matrix_power(chain, 1000)[0]
    known = np.where(follows > 0, follows, 1)
    choice = -(follows * np.log(known)).sum(1)
    end = -_END * math.log(_END) - (1 - _END) * math.log(1 - _END)
    nats = end + (1 - _END) * (share @ choice) + _END * math.log(len(words))
    length = share @ np.array([len(word) for word in words]) + 1 + _END
    return float(nats / length)


def _corpus(name: str, text: bytes, entropy: float | None) -> Corpus:
    tokens = np.frombuffer(text, np.uint8)
    counts = np.bincount(tokens)
    shares = counts[counts > 0] / len(tokens)
    kept = len(tokens) - len(tokens) // 20
    return Corpus(
        name,
        tokens[:kept],
        tokens[kept:],
        float(-(shares * np.log(shares)).sum()),
        entropy,
    )
