"""Corrections: laws of the fit, and the record they are kept in."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Price
from lagom_jax.errors import MeasurementError
from lagom_jax.measurements.calibration import Calibration, MeasurementFile
from lagom_jax.measurements.curve import LARGEST, STEEPEST, Curve, fit_curve
from lagom_jax.measurements.fit import fit_corrections
from lagom_jax.measurements.rows import CollectiveRow, collective_of
from lagom_jax.measurements.samples import Key, Sample, key_of, samples_of_collectives

from ..cost.programs import collective

H100 = Cluster.parse("h100:2x8")
GATHER = Key("collective", "all-gather", "inside", 2)
SIZES = [2.0**octave for octave in range(10, 31)]


@dataclasses.dataclass(frozen=True)
class Linear:
    """A latency and a rate."""

    def kernel(self, kernel):
        return Price(2e-6 + kernel.work.hbm_bytes / 1e12, "memory", 0.5)

    def collective(self, collective):
        return Price(10e-6 + collective.bytes / 1e11, "nvlink", 0.5)


def samples(ratio, sizes=SIZES, key=GATHER):
    """What would be measured if the model were off by `ratio(size)`."""
    alone = [10e-6 + size / 1e11 for size in sizes]
    return [
        Sample(key, size, seconds, seconds * ratio(size))
        for size, seconds in zip(sizes, alone, strict=True)
    ]


def fitted(found, cluster=H100):
    return Calibration.fit(found, cluster, model="linear", date="2026-01-31")


def price(calibration, nbytes, **more):
    prices = calibration.apply(Linear(), H100, "linear")
    return prices.collective(collective("c", nbytes=nbytes, **more)).seconds


def test_the_models_own_predictions_change_nothing():
    calibration = fitted(samples(lambda size: 1.0))
    (correction,) = calibration.corrections
    assert correction.before.median == correction.after.median == 0
    for size in SIZES:
        asked = collective("c", nbytes=int(size))
        assert price(calibration, int(size)) == Linear().collective(asked).seconds


@pytest.mark.parametrize("ratio", [0.7, 1.3, 2.0])
def test_a_constant_error_goes_away(ratio):
    (correction,) = fit_corrections(samples(lambda size: ratio))
    assert correction.before.median == pytest.approx(abs(1 / ratio - 1))
    assert correction.after.median < 0.02
    assert correction.kept_out.median < 0.02


def test_an_error_that_changes_with_the_size_goes_away():
    (correction,) = fit_corrections(samples(lambda size: size ** (1 / 40)))
    assert correction.before.median > 0.25
    assert correction.kept_out.median < 0.05


def test_outliers_do_not_matter():
    spoilt = samples(lambda size: 1.2)
    for place in (0, 7, 13):
        spoilt[place] = dataclasses.replace(spoilt[place], measured=1.0)
    (correction,) = fit_corrections(spoilt)
    for size in SIZES:
        assert correction.curve.factor(size) == pytest.approx(1.2, rel=0.15)


def test_a_single_measurement_is_not_quite_believed():
    curve = fit_curve([1 << 20], [2.0])
    assert 1.3 < curve.factor(1 << 20) < 2.0


def test_where_nothing_was_measured_nothing_is_corrected():
    calibration = fitted(samples(lambda size: 2.0, sizes=SIZES[8:12]))
    (correction,) = calibration.corrections
    for size in (1.0, 2.0**14 - 1, 2.0**30):
        assert correction.curve.factor(size) == 1.0
    assert price(calibration, 1 << 20) > 1.9 * 20e-6
    across = collective("c", nbytes=1 << 20, ranks=(0, 8))
    applied = calibration.apply(Linear(), H100, "linear")
    assert applied.collective(across) == Linear().collective(across)
    reduce = collective("c", nbytes=1 << 20, kind="all-reduce")
    assert applied.collective(reduce) == Linear().collective(reduce)


def test_groups_of_another_size_have_their_own_correction():
    other = dataclasses.replace(GATHER, ranks=8)
    calibration = fitted(
        [*samples(lambda size: 1.0), *samples(lambda size: 2.0, key=other)]
    )
    alone = Linear().collective(collective("c", nbytes=1 << 20)).seconds
    two, four, eight = (
        price(calibration, 1 << 20, ranks=tuple(range(ranks))) / alone
        for ranks in (2, 4, 8)
    )
    assert two == 1
    assert four == pytest.approx(2**0.5, rel=0.02)
    assert eight == pytest.approx(2, rel=0.02)


def test_a_correction_that_would_not_help_is_dropped():
    noise = np.random.default_rng(0).normal(0, 0.3, len(SIZES))
    found = [
        dataclasses.replace(s, measured=s.measured * math.exp(e - noise.mean()))
        for s, e in zip(samples(lambda size: 1.0), noise, strict=True)
    ]
    (correction,) = fit_corrections(found)
    assert correction.curve == Curve(()) or (
        correction.kept_out.median < correction.before.median
    )
    assert correction.kept_out.median <= correction.before.median


def test_one_shot_kernels_and_groups_of_one_are_not_nccls():
    assert key_of(collective("c", one_shot_kernel=True), H100) is None
    assert key_of(collective("c", ranks=(3,)), H100) is None
    assert key_of(collective("c", ranks=(3, 9)), H100).scope == "between"


def test_a_correction_that_is_worse_where_it_is_worst_is_dropped():
    def ratio(size):
        # Nearly every size is off by 10 %, one in seven by much, the other way.
        return 0.2 if math.log2(size) % 7 == 3 else 1.1

    (correction,) = fit_corrections(samples(ratio))
    assert correction.kept_out.worst_tenth <= 1.25 * correction.before.worst_tenth


RATIOS = st.lists(st.floats(0.01, 100), min_size=1, max_size=40)


@given(RATIOS, st.data())
def test_corrections_are_bounded_and_not_steep(ratios, data):
    octaves = data.draw(
        st.lists(st.floats(0, 40), min_size=len(ratios), max_size=len(ratios))
    )
    curve = fit_curve([2.0**octave for octave in octaves], ratios)
    logs = [math.log2(curve.factor(2.0**octave)) for octave in np.arange(0, 50, 0.25)]
    assert max(map(abs, logs)) <= LARGEST + 1e-6
    assert np.abs(np.diff(logs)).max() <= STEEPEST * 0.25 + 1e-4


@given(RATIOS, st.floats(0, 40), st.floats(0, 10), st.floats(STEEPEST, 2))
def test_times_stay_in_the_order_of_sizes(ratios, octave, more, slope):
    """As long as the model's time grows like the root of the size at least."""
    sizes = [2.0 ** (10 + place) for place in range(len(ratios))]
    curve = fit_curve(sizes, ratios)
    small, big = 2.0**octave, 2.0 ** (octave + more)
    # Heights of knots are rounded when they are kept.
    assert curve.factor(small) * small**slope <= 1.001 * curve.factor(big) * big**slope


def test_the_record_says_what_was_fitted():
    made = Calibration.fit(
        samples(lambda size: 1.3),
        H100,
        model="linear",
        date="2026-01-31",
        sources=[MeasurementFile("all_gather_perf.txt", "nccl-tests", 21)],
    )
    assert Calibration.from_json(made.to_json()) == made
    document = json.loads(made.to_json())
    assert (document["version"], document["system"]) == (2, "h100")
    assert document["sources"][0]["rows"] == 21
    assert made.words() == "21 measurements of 2026-01-31 on h100:2x8"


def test_a_calibration_is_for_one_system_and_one_model():
    made = fitted(samples(lambda size: 1.3))
    made.apply(Linear(), Cluster.parse("h100:64"), "linear")
    with pytest.raises(MeasurementError, match=r"says nothing about b200:1x8"):
        made.apply(Linear(), Cluster.parse("b200:1x8"), "linear")
    with pytest.raises(MeasurementError, match="other constants"):
        made.apply(Linear(), H100, "newer")


def test_nothing_measured_is_refused():
    with pytest.raises(MeasurementError, match="--nccl-tests"):
        fitted([])


def damaged(change):
    document = json.loads(fitted(samples(lambda size: 1.3)).to_json())
    change(document)
    return json.dumps(document)


DAMAGED = {
    "not JSON": ("{", "no whole JSON text"),
    "a list": ("[]", "is no calibration"),
    "a report": ('{"format_version": 1}', "is no calibration"),
    "older": (damaged(lambda d: d.update(version=1)), "version 1, which does not say"),
    "newer": (damaged(lambda d: d.update(version=3)), "version 3.*reads version 2"),
    "nameless": (damaged(lambda d: d.pop("system")), "damaged.*system"),
    "text": (damaged(lambda d: d.update(corrections="all")), "damaged"),
    "no curve": (damaged(lambda d: d["corrections"][0].pop("curve")), "damaged.*curve"),
    "far off": (
        damaged(lambda d: d["corrections"][0]["curve"].update(knots=[[20, 9]])),
        "damaged.*beyond 4",
    ),
    "disorder": (
        damaged(
            lambda d: d["corrections"][0]["curve"].update(knots=[[20, 0], [10, 0]])
        ),
        "damaged.*order",
    ),
    "infinite": (
        damaged(lambda d: d["corrections"][0].update(spread=float("inf"))),
        "damaged.*finite",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_records_are_refused(name, tmp_path):
    text, message = DAMAGED[name]
    path = tmp_path / "my.json"
    path.write_text(text)
    with pytest.raises(
        MeasurementError, match=rf"my\.json.*{message}.*lagom calibrate"
    ):
        Calibration.load(path)


def test_a_record_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(MeasurementError, match="cannot read the calibration"):
        Calibration.load(tmp_path / "none.json")
    with pytest.raises(MeasurementError, match="cannot read the calibration"):
        Calibration.load(tmp_path)


def test_rows_that_the_cluster_is_too_small_for_are_counted():
    rows = [
        CollectiveRow("", "all-gather", ranks, 1, ranks, 1 << 20, 30.0)
        for ranks in (8, 16, 32)
    ]
    found, left_out = samples_of_collectives(rows, H100, Linear())
    assert [s.key.scope for s in found] == ["inside", "between"]
    assert left_out == 1


def test_measurements_that_are_the_models_need_no_correction():
    """All the way from rows: what the model says of each is what was measured."""
    prices = CostModel.of(H100)
    rows = [
        CollectiveRow("", op, ranks, 1, ranks, 1 << octave, 1.0)
        for op in ("all-gather", "all-reduce")
        for ranks in (8, 16)
        for octave in range(10, 30, 2)
    ]
    truths = [
        dataclasses.replace(
            row,
            microseconds=prices.collective(collective_of(row, H100)).seconds * 1e6,
        )
        for row in rows
    ]
    found, _ = samples_of_collectives(truths, H100, prices)
    corrections = fit_corrections(found)
    assert len(corrections) == 4
    for correction in corrections:
        assert correction.before.median < 1e-9
        assert correction.curve.range == pytest.approx((1, 1), abs=1e-6)


RECORD = fitted(samples(lambda size: 1.3)).to_json()
WORDS = re.findall(r'"[^"]*"|[-\d.]+|null', RECORD)


@given(
    st.integers(0, len(WORDS) - 1),
    st.sampled_from([*"[]{}:,", "Infinity", "null", "-1", '"x"']),
)
def test_any_damage_is_told_or_harmless(place, instead):
    pieces = re.split(r'("[^"]*"|[-\d.]+|null)', RECORD)
    pieces[2 * place + 1] = instead
    try:
        read = Calibration.from_json("".join(pieces))
    except MeasurementError:
        return
    for correction in read.corrections:
        assert 0.25 <= correction.curve.factor(1 << 20) <= 4
