"""What a run says about itself: a table for people, lines of JSON for programs."""

import json
import time
from pathlib import Path
from typing import Any

import jax

Metrics = dict[str, jax.Array]
_COLUMNS = "  step     loss  gradient      rate   tokens/s  seconds"


class Progress:
    """Prints and writes from the first process only.

    Args:
        file: Where the lines of JSON go, if anywhere.
        kept: Lines of an earlier run up to this step stay in the file; what it did
            after its last checkpoint is done again.
        tokens: In one step.
        speaks: Whether this one prints at all.
    """

    def __init__(
        self, file: Path | None, kept: int, tokens: int, *, speaks: bool = True
    ):
        self._first = jax.process_index() == 0 and speaks
        self._file = file if jax.process_index() == 0 else None
        self._tokens = tokens
        self._started = self._since = time.monotonic()
        self._after = kept
        if self._file is not None:
            _keep(self._file, kept)

    def say(self, words: str) -> None:
        """Prints a line for people."""
        if self._first:
            print(words, flush=True)

    def first(self, step: int, metrics: Metrics) -> None:
        """Waits for the first step, and leaves its compilation out of the rate."""
        jax.block_until_ready(metrics)
        self._since, self._after = time.monotonic(), step
        self.say(f"first step after {self._since - self._started:.1f} s, compiled")
        self.say(_COLUMNS)

    def step(self, step: int, metrics: Metrics, learning_rate: Any) -> None:
        """Reports a step."""
        row: dict[str, Any] = {"step": step}
        row |= {name: float(value) for name, value in metrics.items()}
        now = time.monotonic()
        steps = step - self._after
        rate = steps * self._tokens / (now - self._since) if steps else None
        row |= {
            "learning_rate": float(learning_rate),
            "tokens_per_second": rate,
            "seconds": now - self._started,
        }
        self._write(row)
        speed = "-" if rate is None else f"{rate:.0f}"
        self.say(
            f"{step:6d}  {row['loss']:7.4f}  {row['gradient_norm']:8.3f}  "
            f"{row['learning_rate']:8.2e}  {speed:>9}  {row['seconds']:7.1f}"
        )
        self._since, self._after = now, step

    def evaluation(self, step: int, loss: float) -> None:
        """Reports the loss on what was held out."""
        self._write({"step": step, "evaluation_loss": loss})
        self.say(f"loss on held-out text: {loss:.4f}")

    def _write(self, row: dict[str, Any]) -> None:
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(row) + "\n")


def _keep(file: Path, kept: int) -> None:
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    # A run that was killed may have left half a line.
    whole = [line for line in lines if line.endswith("\n")]
    file.write_text("".join(x for x in whole if json.loads(x)["step"] <= kept))
