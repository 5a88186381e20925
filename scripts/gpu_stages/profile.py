"""A calibration from the profile of one real step, and how well it predicts others.

A training step of one device runs and is profiled; the model is calibrated with that
profile as `lagom calibrate` does it; then steps that it has not seen are predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import jax

from gpu_stages.clusters import cluster_of
from gpu_stages.profiles.beside import Beside, median_error
from gpu_stages.profiles.recording import (
    Subject,
    contents,
    record,
)
from gpu_stages.profiling import WITHOUT_GRAPHS
from gpu_stages.stage import CannotRunError, Clock, Outcome, Request, Row, Score, say
from lagom_jax.errors import MeasurementError
from lagom_jax.measure.calibration import Calibration
from lagom_jax.measure.curve import LARGEST

# Below that much time no other step is begun: what it takes to compile one.
_LEAST_SECONDS: Final = 60.0
_LITTLE: Final = 0.02
_GRAPHS_OFF: Final = (
    "profiles for a calibration need XLA_FLAGS=--xla_gpu_enable_command_buffer="
)


class LeftOutError(Exception):
    """A step was not recorded; its text says why."""


def run(request: Request) -> Outcome:
    """Runs the stage."""
    recorder = _Recorder(request)
    first, *others = _subjects(request.dry)
    try:
        seen = recorder.read(first)
        calibration = seen.calibration()
    except (MeasurementError, LeftOutError) as error:
        raise CannotRunError(str(error)) from error
    (request.folder / "calibration.json").write_text(calibration.to_json())
    unseen: list[Beside] = []
    left_out: list[str] = []
    unread: list[str] = []
    for other in others:
        try:
            unseen.append(recorder.read(other))
        except LeftOutError as error:
            left_out.append(str(error))
        except MeasurementError as error:
            unread.append(f"{other.name}: {error}.")
    try:
        unread.append(with_graphs(recorder.read(first, graphs=True), seen))
    except LeftOutError as error:
        left_out.append(str(error))
    except MeasurementError as error:
        unread.append(f"With CUDA graphs, as jax compiles: {error}; {_GRAPHS_OFF}.")
    steps = [(seen, False), *((one, True) for one in unseen)]
    return Outcome(
        rows=[row for step in steps for row in rows(*step, calibration)],
        scores=[score for step in steps for score in scores(*step, calibration)],
        findings=[
            *(text for step, _ in steps for text in findings(step)),
            *of_calibration(calibration),
            *unread,
        ],
        left_out=left_out,
    )


def _subjects(dry: bool) -> Sequence[Subject]:
    """Steps of one device: the one to calibrate with, then others that differ from it.

    Args:
        dry: Sizes for a CPU instead of a GPU.
    """
    if dry:
        tiny = {"tiny": True, "layers": 2, "sequence": 32}
        return [Subject("phi-2", {**tiny, "batch": batch}) for batch in (2, 4)]
    return (
        Subject("llama-3-8b", {"layers": 2, "batch": 1, "sequence": 2048}),
        Subject("llama-3-8b", {"layers": 2, "batch": 2, "sequence": 2048}),
        Subject("phi-2", {"layers": 6, "batch": 2, "sequence": 2048}),
        Subject("llama-3-8b", {"layers": 4, "batch": 1, "sequence": 2048}),
    )


class _Recorder:
    """Records steps while there is time for them."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._clock = Clock.of(request)
        self._cluster = cluster_of(request.gpu)

    def read(self, subject: Subject, *, graphs: bool = False) -> Beside:
        """A step, run and read.

        Args:
            subject: The step.
            graphs: Compiled as jax does it, with CUDA graphs.

        Raises:
            LeftOutError: There is no time or no memory for it.
            MeasurementError: Its profile cannot be used.
        """
        name = subject.name + ", with CUDA graphs" * graphs
        if self._clock.left() < _LEAST_SECONDS:
            raise LeftOutError(f"{name}: {self._clock.left():.0f} s were left.")
        say(f"{name} ...")
        folder = self._request.folder / name.replace(", ", "-").replace(" ", "-")
        try:
            found = record(subject, folder, {} if graphs else WITHOUT_GRAPHS)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise LeftOutError(
                f"{name}: the GPU's memory does not suffice for it; end what else uses "
                "the GPU, see nvidia-smi."
            ) from error
        try:
            return Beside.read(found, self._cluster)
        except MeasurementError as error:
            (folder / "contents.txt").write_text(contents(found.trace))
            raise MeasurementError(
                f"{error} ({folder.name}/contents.txt in the folder that --keep names "
                "says what it holds; without planes of a GPU, CUPTI is missing: "
                "install the nvidia-cuda-cupti of jax's CUDA)"
            ) from error


def rows(one: Beside, kept_out: bool, calibration: Calibration) -> Iterator[Row]:
    """The step, and what its kinds of kernels take, before and after."""
    name = one.recording.name
    yield Row(
        "steps",
        name,
        one.recording.milliseconds,
        one.predicted(None),
        "ms",
        kept_out,
        one.predicted(calibration),
        {"kernels, ms": one.busy(), "matched": one.match.words()},
    )
    calibrated = one.kinds(calibration)
    for kind, found in one.kinds(None).items():
        yield Row(
            "kernels of a step",
            f"{kind}: {name}",
            found.measured,
            found.predicted,
            "ms",
            kept_out,
            calibrated[kind].predicted,
            {"instructions": found.instructions},
        )


def scores(one: Beside, kept_out: bool, calibration: Calibration) -> Iterator[Score]:
    """How far predictions are off; calibrated ones should not be further off."""
    measured = one.recording.milliseconds.median
    for what, error in (
        ("error of the step", lambda used: abs(one.predicted(used) / measured - 1)),
        ("kinds of kernels, median error", lambda used: median_error(one.kinds(used))),
    ):
        named = f"{one.recording.name}: {what}"
        before, after = error(None), error(calibration)
        yield Score(f"{named}, by the model", before, unit="%", kept_out=kept_out)
        yield Score(f"{named}, calibrated", after, before, unit="%", kept_out=kept_out)


def findings(one: Beside) -> Iterator[str]:
    """What the model does not know of a step."""
    name, step, busy = one.recording.name, one.recording.milliseconds.median, one.busy()
    if 1 - one.matched_share() > _LITTLE:
        yield (
            f"{name}: {1 - one.matched_share():.1%} of the kernels' time in the "
            f"profile is of no instruction of the program: {one.unmatched()}."
        )
    if 1 - busy / step > _LITTLE:
        yield (
            f"{name}: of a step of {step:.3g} ms kernels take {busy:.3g} ms; for the "
            f"other {1 - busy / step:.1%} the device is idle, of which the model knows "
            "nothing."
        )
    if one.profile.other_modules:
        others = ", ".join(one.profile.other_modules)
        yield f"{name}: the profile has other programs, too: {others}."


def of_calibration(calibration: Calibration) -> Iterator[str]:
    """Where the model is further off than a calibration may go."""
    for correction in calibration.corrections:
        low, high = correction.curve.range
        if max(high, 1 / low) >= 2**LARGEST:
            yield (
                f"The model is off by more than a calibration may correct for "
                f"{correction.key.kind}: its factors are {low:.2f} to {high:.2f}."
            )


def with_graphs(graphs: Beside, without: Beside) -> str:
    """What CUDA graphs change, which XLA uses if nothing is said."""
    before, after = without.recording.milliseconds, graphs.recording.milliseconds
    hidden = graphs.matched_share() < without.matched_share() - _LITTLE
    return (
        f"{graphs.recording.name}: with CUDA graphs, as jax compiles, a step takes "
        f"{after.median:.3g} ms instead of {before.median:.3g} ms, and "
        f"{graphs.matched_share():.1%} of the kernels' time in its profile is of an "
        f"instruction, instead of {without.matched_share():.1%}"
        + (f"; {_GRAPHS_OFF}." if hidden else ".")
    )
