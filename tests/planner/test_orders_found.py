"""Of one module an order is looked for once, and what was found is kept."""

import dataclasses
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import lagom_jax.planner.judge as judges
import lagom_jax.planner.kept_orders as kept_orders
from lagom_jax.cluster import Cluster
from lagom_jax.compile import Store
from lagom_jax.cost.model import CostModel
from lagom_jax.hlo import read_module
from lagom_jax.measurements import Calibration
from lagom_jax.measurements.samples import Key, Sample
from lagom_jax.planner.regret import Scored
from lagom_jax.settings.controls import named

from .fakes import KINDS, Remembering

COUNTED = b"\x28\x07"
"""The number that XLA counts a module with."""


@pytest.fixture
def searches(monkeypatch):
    """What is looked for, as it goes on."""
    found, real = [], judges.find_order

    def find(module, *args, **more):
        found.append(module)
        return real(module, *args, **more)

    monkeypatch.setattr(judges, "find_order", find)
    return found


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def asked(judge, data, spare=1 << 40, evaluations=200, **more):
    module = read_module(data)
    return judge.order(module, spare_bytes=spare, evaluations=evaluations, **more)


def test_the_same_module_is_searched_once_whatever_xla_counts_it_as(searches):
    judge = Remembering(policies=("default", "zero"))
    first = asked(judge, KINDS["usual"])
    # Without symmetric memory no collective is carried otherwise under the policy.
    again = asked(judge, KINDS["usual"] + COUNTED, spare=1 << 39, policy="zero")
    assert again is first
    assert len(searches) == 1


@pytest.mark.parametrize(
    "other",
    [{"spare": 1 << 41}, {"spare": None}, {"spare": -1}, {"evaluations": 201}],
    ids=str,
)
def test_another_question_is_looked_for(searches, other):
    judge = Remembering()
    first = asked(judge, KINDS["usual"])
    assert first.sequences
    asked(judge, KINDS["usual"], **other)
    assert len(searches) == 2


@pytest.mark.parametrize("kept", [False, True])
def test_another_module_is_looked_for(searches, store, kept):
    judge = Remembering(store=store if kept else None)
    asked(judge, KINDS["usual"])
    asked(judge, KINDS["slow"])
    assert len(searches) == 2


def test_what_was_found_stays_for_the_next_plan(searches, store):
    first = asked(Remembering(store=store), KINDS["usual"])
    assert first.sequences
    assert first.displacements
    again = asked(Remembering(store=store), KINDS["usual"] + COUNTED)
    assert again == first
    assert len(searches) == 1
    (kept,) = store.entries()
    assert kept[0].suffix == ".order"


def calibrated():
    cluster = Cluster.parse("h100:1x8")
    samples = [Sample(Key("kernel", "matmul"), 2.0**i, 1.0, 1.5) for i in range(9, 40)]
    return Calibration.fit(samples, cluster, model=CostModel.of(cluster).digest)


def test_a_comment_above_a_step_is_no_other_question(searches, store):
    """Instructions name frames by number, and a table beside them says what these are."""
    module = read_module(KINDS["usual"])
    moved = read_module(KINDS["usual"])
    moved.proto.stack_frame_index.file_names.append("train.py")
    spare = {"spare_bytes": 1 << 40, "evaluations": 200}
    for one in (module, moved):
        Remembering(store=store).order(one, **spare)
    assert len(searches) == 1


@pytest.mark.parametrize(
    ("judge", "question"),
    [
        ({"calibration": calibrated()}, {}),
        ({"streams": True}, {}),
        ({"controls": "caps"}, {}),
        ({"policies": ("default", "zero")}, {"policy": "zero"}),
        ({}, {"spare": None}),
        ({}, {"spare": 1 << 39}),
        ({}, {"evaluations": 201}),
    ],
    ids=[
        "calibration",
        "streams",
        "controls",
        "policy",
        "any",
        "less",
        "more",
    ],
)
def test_what_was_found_under_other_circumstances_is_not_taken(
    searches, store, judge, question
):
    asked(Remembering(store=store), KINDS["usual"])
    asked(Remembering(store=store, **judge), KINDS["usual"], **question)
    assert len(searches) == 2


BESIDE = Scored(1.0, (1.0,) * 20, 1)


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 1),
        ({"members": (1, 3)}, 2),
        ({"beside": dataclasses.replace(BESIDE, seconds=2.0)}, 2),
        ({"spare_bytes": None}, 2),
        ({"evaluations": 41}, 2),
        ({"begin": True}, 2),
    ],
)
def test_orders_by_several_models_stay_too(monkeypatch, store, more, count):
    found, real = [], judges.robust_order

    def find(*args, **more):
        found.append(args)
        return real(*args, **more)

    monkeypatch.setattr(judges, "robust_order", find)
    module = read_module(KINDS["usual"])
    known = asked(Remembering(store=store), KINDS["usual"])
    begin = dataclasses.replace(known, sequences={})
    asked_for = {
        "beside": BESIDE,
        "members": (1, 2),
        "spare_bytes": 1 << 40,
        "evaluations": 40,
    }
    for other in ({}, more):
        question = {"begin": begin, **asked_for, **other}
        if question["begin"] is True:
            question["begin"] = known
        Remembering(store=store).robust_order(module, **question)
    assert len(found) == count


def test_what_other_code_found_is_not_taken(searches, store, monkeypatch):
    asked(Remembering(store=store), KINDS["usual"])
    monkeypatch.setattr(kept_orders, "digest_of_code", lambda *paths: "another")
    asked(Remembering(store=store), KINDS["usual"])
    assert len(searches) == 2


def test_what_was_found_on_another_cluster_is_not_taken(searches, store):
    for name in ("h100:1x8", "h100:2x4"):
        judge = judges.Judge(Cluster.parse(name), named("tuner"), store=store)
        asked(judge, KINDS["usual"])
    assert len(searches) == 2


def test_an_entry_of_another_form_is_a_miss_and_is_said(searches, store, caplog):
    first = asked(Remembering(store=store), KINDS["usual"])
    ((file, _),) = store.entries()
    store.keep(file.stem, {"sequences": {}}, kind="order")
    with caplog.at_level(logging.WARNING, "lagom_jax"):
        assert asked(Remembering(store=store), KINDS["usual"]) == first
    assert caplog.text.count("a kept order is not used") == 1
    assert len(searches) == 2
    asked(Remembering(store=store), KINDS["usual"])
    assert len(searches) == 2


def test_all_code_that_has_a_say_in_an_order_is_part_of_its_key():
    """Rooms that the search loads, and the one that corrects its prices."""
    loaded = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import sys, lagom_jax.order.find, lagom_jax.measurements.anchored\n"
            "print(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    rooms = {name.split(".")[1] for name in loaded if name.startswith("lagom_jax.")}
    package = Path(kept_orders.__file__).parents[1]
    assert all((package / name).exists() for name in kept_orders.DECIDED_BY)
    assert rooms == {Path(name).stem for name in kept_orders.DECIDED_BY}
