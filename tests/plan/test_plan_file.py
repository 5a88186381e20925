"""Plans as files: nothing is lost, and nothing that is read is believed."""

import copy
import dataclasses
import json
import os
import re
import stat
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.errors import PlanError
from lagom_jax.plan import (
    Candidate,
    Evidence,
    HoldsFor,
    Lever,
    Measured,
    Plan,
    SiteSetting,
    from_json,
    load,
    save,
    to_json,
)
from lagom_jax.plan.plan_file import MIGRATIONS
from lagom_jax.search.tuning import StepParts
from xla_flags import find, flags

from .plans import made_by_hand

PLAN = made_by_hand()
ON_ONE_STREAM = dataclasses.replace(PLAN, order={**PLAN.order, "aside": {}})
TEXT = to_json(PLAN)
DOCUMENT = json.loads(TEXT)

numbers = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.integers(-(2**70), 2**70)
values = st.booleans() | counts | numbers | texts
anything = st.recursive(
    st.none() | values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner),
    max_leaves=6,
)
parts = st.builds(StepParts, *[numbers] * 6)
names = st.text(string.ascii_lowercase + "_", min_size=1, max_size=6)
OF_TYPE = {"bool": st.booleans(), "int": st.integers(-(2**31), 2**31 - 1)}
PLANNED = {
    flag.name: st.sampled_from(flag.choices) if flag.choices else OF_TYPE[flag.type]
    for flag in flags()
    if flag.planned and flag.name != "fdo_profile"
}
options = st.sampled_from(sorted(PLANNED)).flatmap(
    lambda name: st.tuples(st.just(name), PLANNED[name])
)
levers = st.lists(
    st.builds(
        lambda option, *more: Lever(*option, *more),
        options.filter(lambda option: "nchannels" not in option[0]),
        texts,
        st.booleans(),
        texts,
        st.none() | numbers,
        st.none() | counts,
        st.booleans(),
    ),
    max_size=3,
    unique_by=lambda lever: lever.name,
)
candidates = st.builds(
    Candidate,
    texts,
    st.lists(
        options | st.sampled_from([("fdo_profile", None), ("optimization_level", 19)]),
        max_size=2,
    ).map(tuple),
    st.sampled_from(["chosen", "ok", "failed", "timed out"]),
    texts,
    st.none() | numbers,
    st.none() | numbers,
    st.none() | counts,
    numbers,
)
settings = st.builds(
    SiteSetting,
    texts,
    counts,
    counts,
    counts,
    st.lists(texts, max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
    st.just("ring/simple/24/544/2097152"),
    st.sampled_from(["ring/ll/4/512/32768", "at most 2 channels"]),
    texts,
)
orders = st.builds(
    lambda sequences: {"fingerprint": "a", "sequences": sequences, "aside": {}},
    st.dictionaries(
        st.integers(0, 99).map(str),
        st.integers(0, 4).flatmap(lambda n: st.permutations(range(n))),
        max_size=3,
    ),
)
pairs = st.lists(st.tuples(texts, texts), max_size=2).map(tuple)


@st.composite
def plans(draw):
    costs = draw(st.none() | texts)
    order = draw(st.none() | orders)
    parts_of = {"fdo_profile": costs, "order": order}
    named = [
        Lever(name, None, "", True, "", None, None, True)
        for name, part in parts_of.items()
        if part is not None
    ]
    return Plan(
        HoldsFor(
            draw(texts), draw(texts), "a", draw(texts), draw(counts), *[draw(pairs)] * 2
        ),
        (*draw(levers), *named),
        costs,
        order,
        tuple(draw(st.lists(settings, max_size=2))),
        draw(texts),
        Evidence(
            draw(parts),
            draw(parts),
            draw(numbers),
            draw(texts),
            *[draw(st.none() | counts) for _ in range(3)],
            tuple(draw(st.lists(candidates, max_size=2))),
            draw(counts),
            draw(numbers),
        ),
        draw(texts),
        tuple(draw(st.lists(texts, max_size=2))),
    )


@given(plans())
def test_what_is_written_is_read_again(plan):
    text = to_json(plan)
    read = from_json(text)
    assert read == plan
    assert to_json(read) == text
    types = [type(lever.value) for lever in plan.levers]
    assert [type(lever.value) for lever in read.levers] == types


def test_the_text_is_json_and_sorted():
    assert to_json(from_json(TEXT)) == TEXT
    assert json.loads(TEXT)["lagom_plan"] is True
    assert json.loads(TEXT)["format_version"] == 3
    shuffled = json.dumps(dict(reversed(DOCUMENT.items())))
    assert to_json(from_json(shuffled)) == TEXT


def test_whole_seconds_are_written_like_any_others():
    whole = dataclasses.replace(PLAN.evidence, seconds=20, bound_seconds=0)
    plan = dataclasses.replace(PLAN, evidence=whole)
    assert '"seconds": 20.0' in to_json(plan)
    assert to_json(from_json(to_json(plan))) == to_json(plan)


def places(value, path=()):
    """Every place in a document."""
    yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from places(value[key], (*path, key))


PLACES = [path for path in places(DOCUMENT) if path]


def changed(path, value):
    document = copy.deepcopy(DOCUMENT)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(document)


@given(st.sampled_from(PLACES), anything)
def test_a_changed_value_is_refused_or_is_a_plan(path, value):
    try:
        plan = from_json(changed(path, value))
    except PlanError:
        return
    assert from_json(to_json(plan)) == plan


@given(st.integers(0, len(TEXT.rstrip()) - 1))
def test_a_file_that_was_cut_short_is_refused(length):
    with pytest.raises(PlanError, match=r"cut short|no plan"):
        from_json(TEXT[:length])


@given(st.text() | anything.map(json.dumps))
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(PlanError):
        from_json(text)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("levers", 2, "value"), 1, r"levers\[2\]: .* cannot be 1"),
        (("levers", 2, "value"), [], r"levers\[2\].value: \[\] is not true or false"),
        (("levers", 2, "value"), None, r"levers\[2\]: .* has no value"),
        (("levers", 0, "accepted"), 1, r"levers\[0\].accepted: 1 is not true or false"),
        (("levers", 0, "peak_change"), True, r"peak_change: True is not a whole"),
        (("levers", 0, "peak_change"), 1.0, r"peak_change: 1.0 is not a whole"),
        (("levers", 0, "more"), 1, r"levers\[0\].more: no such key"),
        (("evidence", "seconds"), "1", r"evidence.seconds: '1' is not a number"),
        (("evidence", "seconds"), 10**400, r"evidence.seconds: too large"),
        (
            ("evidence", "candidates", 1, "status"),
            "fine",
            r"evidence.candidates\[1\].status: 'fine' is none of 'ok', ",
        ),
        (
            ("evidence", "candidates", 1, "levers", 0),
            ["a"],
            r"candidates\[1\].levers\[0\]: has 1 parts, not 2",
        ),
        (("evidence", "default"), [], "evidence.default: .* is no object"),
        (("settings", 0, "sites"), "all", r"settings\[0\].sites: 'all' is no list"),
        (("settings", 0, "setting"), "fast", r"settings\[0\]: setting: 'fast'"),
        (("holds_for", "program"), "\ud800", "holds_for.program: .* half a character"),
        (("order", "sequences"), float("nan"), "NaN is not finite"),
        (("order",), [], "order: .* is no object"),
        (("costs",), None, "costs: missing"),
        (("format_version",), None, "format_version: None is no whole number"),
        (("format_version",), True, "format_version: True is no whole number"),
        (("lagom_plan",), 1, "lagom_plan: not true"),
    ],
)
def test_a_message_names_the_place(path, value, told):
    with pytest.raises(PlanError, match=told):
        from_json(changed(path, value))


HARMFUL = (
    ("xla_dump_to", "/tmp"),
    ("xla_gpu_cuda_data_dir", "/tmp/evil"),
    ("xla_gpu_dump_llvmir", True),
    ("xla_disable_hlo_passes", "rematerialization"),
    ("optimization_level", 19),
    ("xla_gpu_unheard_of", 1),
    ("TF_CPP_MIN_LOG_LEVEL", "0"),
    ("NCCL_ALGO", "ring"),
)
of_another_type = st.sampled_from(sorted(PLANNED)).flatmap(
    lambda name: st.tuples(
        st.just(name),
        (st.booleans() | counts | numbers | texts).filter(
            lambda value: not is_of_type(find(name), value)
        ),
    )
)


def is_of_type(flag, value):
    if flag.type == "bool":
        return isinstance(value, bool)
    if flag.type == "int":
        limit = 1 << (flag.bits - 1)
        return type(value) is int and -limit <= value < limit
    return value in flag.choices


@given(
    st.sampled_from(HARMFUL)
    | of_another_type
    | st.tuples(names.map("xla_".__add__), values)
)
def test_a_plan_names_only_what_a_search_comes_up_with(option):
    name, value = option
    document = copy.deepcopy(DOCUMENT)
    document["levers"][0] |= {"name": name, "value": value}
    with pytest.raises(PlanError, match=re.escape(f"levers[0]: {name} is ")):
        from_json(json.dumps(document))
    with pytest.raises(PlanError, match=re.escape(f"{name} is ")):
        dataclasses.replace(PLAN.levers[0], name=name, value=value)


@pytest.mark.parametrize(
    "option", [("xla_dump_to", "/tmp"), ("optimization_level", 39)]
)
def test_candidates_name_only_what_can_be_tried(option):
    document = copy.deepcopy(DOCUMENT)
    document["evidence"]["candidates"][1]["levers"] = [list(option)]
    with pytest.raises(PlanError, match=rf"candidates\[1\]: {option[0]} is"):
        from_json(json.dumps(document))


def test_a_missing_key_is_named():
    document = copy.deepcopy(DOCUMENT)
    del document["evidence"]["tuned"]["step_seconds"]
    with pytest.raises(PlanError, match=r"evidence.tuned.step_seconds: missing"):
        from_json(json.dumps(document))


def test_a_key_that_is_given_twice_is_named():
    with pytest.raises(PlanError, match="costs: given twice"):
        from_json(TEXT.replace('"costs"', '"costs": null, "costs"'))


def test_depth_is_no_defect_of_ours():
    with pytest.raises(PlanError, match="nested too deep"):
        from_json('{"lagom_plan": ' + "[" * 100_000)


def test_a_newer_plan_says_what_to_do():
    with pytest.raises(PlanError, match=r"mine.json is a plan of format 4.*install"):
        from_json(changed(("format_version",), 4), "mine.json")


def test_an_older_plan_is_brought_up_to_date():
    older = copy.deepcopy(DOCUMENT) | {"format_version": 0}
    del older["notes"]
    text = json.dumps(older)
    with pytest.raises(PlanError, match=r"format 0.*make the plan again"):
        from_json(text)
    added = {0: lambda found: {**found, "notes": ["old"]}, **MIGRATIONS}
    plan = from_json(text, migrations=added)
    assert plan == dataclasses.replace(ON_ONE_STREAM, notes=("old",))


def test_a_plan_that_could_not_say_what_was_measured():
    older = copy.deepcopy(DOCUMENT) | {"format_version": 1}
    del older["evidence"]["measured"]
    del older["order"]["aside"]
    assert from_json(json.dumps(older)) == ON_ONE_STREAM
    with pytest.raises(PlanError, match="evidence"):
        from_json(json.dumps(older | {"evidence": 3}))


def test_a_plan_whose_collectives_all_had_one_stream():
    older = copy.deepcopy(DOCUMENT) | {"format_version": 2}
    del older["order"]["aside"]
    assert from_json(json.dumps(older)) == ON_ONE_STREAM
    levers = [lever for lever in older["levers"] if lever["name"] != "order"]
    older |= {"order": None, "levers": levers}
    assert from_json(json.dumps(older)).order is None


def test_what_was_measured_comes_back():
    measured = Measured(0.1, 0.09, 0.001, 12, True)
    plan = dataclasses.replace(
        PLAN, evidence=dataclasses.replace(PLAN.evidence, measured=measured)
    )
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "soon", None])
def test_what_json_cannot_say_is_not_written(value):
    evidence = dataclasses.replace(PLAN.evidence, seconds=value)
    with pytest.raises(PlanError, match=r"cannot be written: evidence.seconds: "):
        to_json(dataclasses.replace(PLAN, evidence=evidence))


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ({"sequences": {}}, "order: the order has no fingerprint"),
        ({"fingerprint": "a1" * 32}, "order: the order has no sequences"),
        (
            {"fingerprint": "a1" * 32, "sequences": {2: [0]}, "aside": {}},
            "order: sequences of the order has 2, not a number",
        ),
        (
            {"fingerprint": "a1" * 32, "sequences": {"2": [0, 2]}, "aside": {}},
            "order: sequence 2 of the order is no permutation",
        ),
        (
            {"fingerprint": "b2" * 32, "sequences": {}, "aside": {}},
            "holds_for.schedule: not the schedule that the order is for",
        ),
    ],
)
def test_an_order_must_be_one(order, told):
    with pytest.raises(PlanError, match=told):
        dataclasses.replace(PLAN, order=order)


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    save(PLAN, path)
    assert load(path) == PLAN
    assert path.read_text() == TEXT
    changed = dataclasses.replace(PLAN, pricing="another")

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(PlanError, match="No space"):
            save(changed, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert load(path) == PLAN
    save(changed, path)
    assert load(path) == changed
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_others_may_read_it_as_they_may_read_other_files(tmp_path):
    (tmp_path / "other").touch()
    save(PLAN, tmp_path / "plan.json")
    modes = {stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()}
    assert len(modes) == 1


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "plan.json")
    save(PLAN, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load(tmp_path / "plan.json") == PLAN


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(PlanError, match=r"cannot read the plan .*none\.json"):
        load(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="cannot read the plan"):
        load(tmp_path / "bytes.json")
    with pytest.raises(PlanError, match="cannot write the plan"):
        save(PLAN, tmp_path / "none" / "plan.json")
