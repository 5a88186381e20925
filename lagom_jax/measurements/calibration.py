"""A calibration: a record of corrections to the model, for one system."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.prices import Price, Prices
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo.collective import Collective
from lagom_jax.measurements.curve import Curve, CurvesByRanks
from lagom_jax.measurements.fit import FittedCurve, fit_corrections
from lagom_jax.measurements.overlay import rescaled
from lagom_jax.measurements.samples import Key, Sample, key_of, size_of
from lagom_jax.program.program import Kernel, Task
from lagom_jax.typed_json import FormError, parse_object, plain, typed

FORMAT = "lagom calibration"
VERSION = 2
"""Raised when a record written before would be misread."""

_OLDER: Final[Mapping[object, str]] = {
    1: "which does not say which constants of the model it corrects"
}
_AGAIN = "write it again with `lagom calibrate`"


@dataclasses.dataclass(frozen=True, slots=True)
class MeasurementFile:
    """A file that a calibration was made from."""

    path: str
    kind: str
    """`nccl-tests`, `collectives`, `matmuls` or `profile`."""
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """Corrections to the model, fitted to measurements on one system.

    Example:
        >>> key = Key("kernel", "fusion")
        >>> samples = [Sample(key, 2.0**i, 1.0, 1.5) for i in range(10, 30)]
        >>> made = Calibration.fit(samples, Cluster.parse("h100:1x8"), model="by hand")
        >>> Calibration.from_json(made.to_json()) == made
        True
    """

    system: str
    """The system measured, as `lagom clusters` lists it."""
    cluster: str
    """The cluster measured; the corrections hold for others of its system too."""
    model: str
    """The digest of the constants that are corrected; a correction fits no others."""
    date: str
    """Date of the measurement, as the user said; may be empty."""
    sources: tuple[MeasurementFile, ...]
    corrections: tuple[FittedCurve, ...]

    @classmethod
    def fit(
        cls,
        samples: Iterable[Sample],
        cluster: Cluster,
        *,
        model: str,
        date: str = "",
        sources: Iterable[MeasurementFile] = (),
    ) -> Calibration:
        """Fits a calibration.

        Args:
            samples: Pairs of a measured and a predicted time.
            cluster: Where it was measured.
            model: The digest of the model's constants.
            date: When it was measured.
            sources: The files that the samples come from.

        Raises:
            MeasurementError: There are no samples.
        """
        corrections = fit_corrections(samples)
        if not corrections:
            raise MeasurementError(
                "nothing was measured that the model prices; give --nccl-tests, "
                f"--collectives, --matmuls or --profile with rows of {cluster.name}"
            )
        return cls(
            system=cluster.system.name,
            cluster=cluster.name,
            model=model,
            date=date,
            sources=tuple(sources),
            corrections=corrections,
        )

    @property
    def rows(self) -> int:
        """The number of measurements that it rests on."""
        return sum(correction.rows for correction in self.corrections)

    def words(self) -> str:
        """Its origin in words, for a report."""
        when = f" of {self.date}" if self.date else ""
        return f"{self.rows} measurements{when} on {self.cluster}"

    def factors_in_words(self, most: int = 4) -> str:
        """The factors by which the model was off, where most was measured first.

        Args:
            most: How many of them.
        """
        known = sorted(self.corrections, key=lambda one: -one.rows)
        told = [
            f"{one.key.kind} x{math.sqrt(math.prod(one.curve.range)):.2f}"
            for one in known
            if one.curve.knots
        ]
        return ", ".join(told[:most]) or "nothing that was measured is off"

    def pricing(self, source: str) -> str:
        """The origin of prices that it corrects, in words.

        Args:
            source: Where the model's own come from.
        """
        return f"calibrated: {self.words()}; for the rest {source}"

    def apply(self, prices: Prices, cluster: Cluster, model: str) -> Calibrated:
        """The model's prices, corrected.

        Args:
            prices: The model's.
            cluster: What they are for.
            model: The digest of the model's constants.

        Raises:
            MeasurementError: The calibration is for another system or another model.
        """
        if cluster.system.name != self.system:
            raise MeasurementError(
                f"this calibration was measured on {self.cluster} and says nothing "
                f"about {cluster.name}; use it for clusters of {self.system}"
            )
        if model != self.model:
            raise MeasurementError(
                "this calibration corrects a model with other constants "
                f"({_short(self.model)}) than this version has ({_short(model)}); "
                f"{_AGAIN}"
            )
        curves: defaultdict[Key, dict[int, Curve]] = defaultdict(dict)
        for correction in self.corrections:
            key = correction.key
            curves[dataclasses.replace(key, ranks=0)][key.ranks] = correction.curve
        surfaces = {
            key: CurvesByRanks(tuple(sorted(known.items(), key=lambda item: item[0])))
            for key, known in curves.items()
        }
        return Calibrated(prices, cluster, surfaces)

    def to_json(self) -> str:
        """The record as JSON text, the same text for the same calibration."""
        document = {"format": FORMAT, "version": VERSION, **plain(self)}
        return json.dumps(document, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, origin: str = "the text") -> Calibration:
        """Reads a record.

        Args:
            text: What `to_json` wrote.
            origin: The name of the file, for messages.

        Raises:
            MeasurementError: It is no calibration, a damaged one, or one of another
                version.
        """
        try:
            document = parse_object(text)
        except FormError as error:
            raise MeasurementError(
                f"{origin} is a damaged calibration ({error}); {_AGAIN}"
            ) from None
        if document is None or document.pop("format", None) != FORMAT:
            raise MeasurementError(
                f"{origin} is no calibration; `lagom calibrate --output FILE` writes "
                "one"
            )
        version = document.pop("version", None)
        if version != VERSION:
            raise MeasurementError(
                f"{origin} is a calibration of version {version}, "
                + _OLDER.get(version, f"this lagom_jax reads version {VERSION}")
                + f"; {_AGAIN}"
            )
        try:
            return typed(cls, document)
        except FormError as error:
            raise MeasurementError(
                f"{origin} is a damaged calibration ({error}); {_AGAIN}"
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Reads the record in a file; `from_json` says what can be wrong with it."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MeasurementError(
                f"cannot read the calibration {path}: {error}; `lagom calibrate "
                "--output FILE` writes one"
            ) from None
        return cls.from_json(text, str(path))


@dataclasses.dataclass(frozen=True, slots=True)
class Calibrated:
    """Prices with corrections.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> class OneSecond:
        ...     def kernel(self, kernel): return Price(1.0, "memory", 0.5)
        ...     def collective(self, collective): return Price(1.0, "nvlink")
        >>> curves = CurvesByRanks(((0, Curve(((20.0, 1.0),))),))
        >>> twice = {Key("kernel", "copy"): curves}
        >>> prices = Calibrated(OneSecond(), Cluster.parse("h100"), twice)
        >>> prices.kernel(Kernel("k", Work("copy", 0.0, 1 << 19, 1 << 19))).seconds
        2.0
    """

    base: Prices
    cluster: Cluster
    surfaces: Mapping[Key, CurvesByRanks]
    """By keys whose `ranks` is 0."""

    def kernel(self, kernel: Kernel) -> Price:
        """The price of a kernel alone."""
        return self._corrected(kernel, self.base.kernel(kernel))

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone."""
        return self._corrected(collective, self.base.collective(collective))

    def _corrected(self, task: Task, price: Price) -> Price:
        key = key_of(task, self.cluster)
        if key is None:
            return price
        surface = self.surfaces.get(dataclasses.replace(key, ranks=0))
        if surface is None:
            return price
        factor = surface.factor(size_of(task), key.ranks)
        return rescaled(price, price.seconds * factor)


def _short(digest: str) -> str:
    return f"digest {digest[:12] or 'unknown'}"
