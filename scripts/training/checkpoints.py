"""Checkpoints of a run: weights, moments, and what they belong to."""

import os
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from training.errors import TrainingError

Record = dict[str, Any]
# Weights of one model make no sense in another; everything else may change.
_MODEL = ("model", "tiny")
_KEPT = 3


class Checkpoints:
    """The checkpoints in a folder that all processes see.

    Args:
        folder: Where they are, or are to be.
        record: What the run is, in names and numbers; kept beside each checkpoint.
    """

    def __init__(self, folder: Path, record: Record):
        self._record = record
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingError(f"--out={folder}: {error.strerror or error}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise TrainingError(f"--out={folder}: no files can be written there")
        self._manager = ocp.CheckpointManager(
            folder.resolve() / "checkpoints",
            options=ocp.CheckpointManagerOptions(max_to_keep=_KEPT),
            item_names=("state", "run"),
        )

    @property
    def latest(self) -> int | None:
        """The step after which the newest checkpoint was made."""
        return self._manager.latest_step()

    def restore(self, shapes: Any) -> tuple[Any, list[str]]:
        """The newest state, cut as `shapes` are, and what else is not as it was.

        Raises:
            TrainingError: If the checkpoint is of another model.
        """
        step = self.latest
        run = ocp.args.Composite(run=ocp.args.JsonRestore())
        record = self._manager.restore(step, args=run)["run"]
        changes = {
            name: (record.get(name), value)
            for name, value in self._record.items()
            if record.get(name) != value
        }
        words = [f"{name} {old}, now {new}" for name, (old, new) in changes.items()]
        if changes.keys() & set(_MODEL):
            raise TrainingError(
                f"the checkpoint of step {step} in --out is of another model "
                f"({'; '.join(words)}): take another --out"
            )
        state = ocp.args.Composite(state=ocp.args.StandardRestore(shapes))
        return self._manager.restore(step, args=state)["state"], words

    def save(self, step: int, state: Any) -> None:
        """Saves while training goes on."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                run=ocp.args.JsonSave(self._record),
            ),
        )

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()
