"""Plans as files: nothing is lost, and nothing that is read is believed."""

import copy
import dataclasses
import json
import os
import re
import stat
import string
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.errors import PlanError
from lagom_jax.plan import (
    Call,
    Cap,
    CollectiveCut,
    Evidence,
    Form,
    HoldsFor,
    Lever,
    MeasuredSteps,
    Pinned,
    Plan,
    PlanCandidate,
    PlanControls,
    ProcessVariable,
    Refusal,
    Rewrite,
    ScheduleEdit,
    Setting,
    SiteForm,
    SiteRefusal,
    SiteSetting,
    StepParts,
    When,
    Why,
    from_json,
    load,
    save,
    to_json,
)
from lagom_jax.plan.plan import COLLECTIVE_CAP, POINT_TO_POINT_CAP
from lagom_jax.typed_json import plain
from xla_flags import find, flags

from .plans import made_by_hand

PLAN = made_by_hand()
CAPS = (COLLECTIVE_CAP, POINT_TO_POINT_CAP)
OLD = Path(__file__).parent / "old"
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
SITE_FORM = {
    "line": "a.py:3",
    "kind": "psum",
    "form": plain(Form("chunks", slices=2)),
    "when": "backward",
}
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
forms = st.builds(
    Form,
    st.sampled_from(["ring", "direct", "chunks"]),
    st.integers(1, 9),
    wide_sums=st.booleans(),
    whole_weights=st.booleans(),
)
whys = st.sampled_from(get_args(Why))
whens = st.sampled_from(get_args(When))
candidates = st.builds(
    PlanCandidate,
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
    st.just(())
    | st.tuples(
        st.builds(SiteRefusal, texts, texts, forms, whys, texts, st.booleans(), whens)
    ),
)
settings = st.builds(
    SiteSetting,
    texts,
    counts,
    counts,
    counts,
    st.lists(
        st.builds(Call, texts, counts, counts, counts, st.none() | counts), max_size=2
    ).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
    st.just(Setting("ring", "simple", 24, 544, 2097152)),
    st.sampled_from([Setting("ring", "ll", 4, 512, 32768), Cap(2)]),
    texts,
)
orders = st.builds(
    lambda sequences: ScheduleEdit("a", sequences),
    st.dictionaries(
        st.integers(0, 99),
        st.integers(0, 4).flatmap(lambda n: st.permutations(range(n)).map(tuple)),
        max_size=3,
    ),
)
pairs = st.lists(st.tuples(texts, texts), max_size=2).map(tuple)
pins = st.lists(st.builds(Pinned, texts, texts, texts), max_size=2).map(tuple)
controls = st.builds(
    PlanControls, texts, st.sampled_from(["nothing", "sizes", "places"]), texts
)


in_slices = (
    st.just("sliced"),
    st.integers(2, 9),
    st.just(()),
    st.just(()) | st.tuples(texts),
)
with_forms = (
    st.just("with_forms"),
    st.just(1),
    st.tuples(st.builds(SiteForm, texts, texts, forms, whens)),
    st.just(()),
)
rewrites = st.one_of(
    *(
        st.builds(
            Rewrite,
            transformation,
            slices,
            st.booleans(),
            st.tuples(texts),
            texts,
            numbers,
            st.none() | counts,
            given,
            only,
        )
        for transformation, slices, given, only in (in_slices, with_forms)
    )
)


cuts = st.builds(
    CollectiveCut,
    *(texts, counts, texts, texts, texts, forms, texts, whens, numbers, counts),
)
variables = st.just(()) | st.tuples(
    st.builds(ProcessVariable, st.just("NCCL_CTA_POLICY"), st.just("2"), texts, numbers)
)
refusals = st.just(()) | st.tuples(
    st.builds(Refusal, st.just("copy engines"), st.just("one domain"), texts)
)


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
            draw(texts),
            draw(texts),
            "a",
            draw(texts),
            draw(counts),
            draw(pairs),
            draw(pins),
        ),
        (*draw(levers), *named),
        costs,
        order,
        tuple(draw(st.lists(settings, max_size=2))),
        draw(controls),
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
        variables=draw(variables),
        refusals=draw(refusals),
        rewrite=draw(st.none() | rewrites),
        cuts=tuple(draw(st.lists(cuts, max_size=2))),
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
    assert json.loads(TEXT)["format_version"] == 9
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
        (("settings", 0, "setting"), "fast", r"settings\[0\].setting: 'fast' is no"),
        (
            ("settings", 0, "setting", "protocol"),
            "x",
            r"settings\[0\].setting: no prot",
        ),
        (
            ("settings", 0, "setting"),
            {"channels": 65},
            r"setting: 65 channels: NCCL has",
        ),
        (("settings", 0, "calls", 0, "bytes"), "1", r"calls\[0\].bytes: '1' is not a"),
        (("holds_for", "pinned", 0), "x", r"holds_for.pinned\[0\]: 'x' is no object"),
        (("controls", "tells_apart"), "all", "controls.tells_apart: 'all' is none of"),
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
    # XLA would take it for the number.
    ("xla_gpu_all_gather_combine_threshold_bytes", "5"),
)
of_another_type = st.sampled_from(sorted(PLANNED)).flatmap(
    lambda name: st.tuples(
        st.just(name),
        (st.booleans() | counts | counts.map(str) | numbers | texts).filter(
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
    with pytest.raises(PlanError, match=r"mine.json is a plan of format 10.*install"):
        from_json(changed(("format_version",), 10), "mine.json")


def older(number):
    return OLD / f"format_{number}.json"


@pytest.mark.parametrize("number", ["1", "2", "3", "3_caps"])
def test_plans_of_older_formats_are_brought_up_to_date(number):
    text = older(number).read_text()
    document, plan = json.loads(text), from_json(text)
    assert document["format_version"] == int(number[0])
    assert from_json(to_json(plan)) == plan
    told = [str(one.setting) for one in plan.settings]
    assert told == [one["setting"] for one in document["settings"]]
    assert [str(one.usual) for one in plan.settings] == [
        one["usual"] for one in document["settings"]
    ]
    assert [[str(call) for call in one.calls] for one in plan.settings] == [
        one["calls"] for one in document["settings"]
    ]
    assert all(call.operands is None for one in plan.settings for call in one.calls)
    assert str(plan.controls) == document["controls"]
    if document["order"] is not None:
        sequences = document["order"]["sequences"]
        assert plain(plan.order)["sequences"] == sequences
        beside = document["order"].get("aside", {})
        assert plain(plan.order)["second_stream"] == beside
    options = {one["name"]: one["value"] for one in document["levers"]}
    for name, value in plan.compiler_options().items():
        assert name in CAPS or options[name] == value or options[name] is None


def test_what_was_pinned_in_an_older_plan():
    document = json.loads(older("3").read_text())
    document["holds_for"]["pinned"] = [
        ["xla_gpu_autotune_level", "0 [XLA_FLAGS]"],
        ["NCCL_DEBUG", "a [b] [/etc/nccl.conf]"],
        ["NCCL_ALGO", "ring"],
    ]
    assert from_json(json.dumps(document)).holds_for.pinned == (
        Pinned("xla_gpu_autotune_level", "0", "XLA_FLAGS"),
        Pinned("NCCL_DEBUG", "a [b]", "/etc/nccl.conf"),
        Pinned("NCCL_ALGO", "ring", ""),
    )


@pytest.mark.parametrize("number", ["1", "2", "3"])
@given(data=st.data(), value=anything)
def test_an_older_plan_that_was_changed_is_refused_or_is_a_plan(number, data, value):
    document = json.loads(older(number).read_text())
    path = data.draw(st.sampled_from([path for path in places(document) if path]))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        plan = from_json(json.dumps(document))
    except PlanError:
        return
    assert from_json(to_json(plan)) == plan


def test_an_older_plan_names_no_more_options_than_a_new_one():
    document = json.loads(older("1").read_text())
    document["levers"][0] |= {"name": "xla_gpu_cuda_data_dir", "value": "evil"}
    with pytest.raises(PlanError, match="xla_gpu_cuda_data_dir is not an option"):
        from_json(json.dumps(document))


def test_rewritten_steps_of_format_5_have_one_form():
    plan = from_json(older("5").read_text())
    rewrite = Rewrite("sliced", 2, True, ("train.py:31",), "0f" * 32, -0.02, 0)
    assert plan == dataclasses.replace(PLAN, rewrite=rewrite)
    with pytest.raises(PlanError, match=r"rewrite: .*with_forms needs some"):
        from_json(changed(("rewrite",), plain(rewrite) | {"forms": [SITE_FORM]}))
    named = {"transformation": "with_forms", "slices": 1, "forms": [SITE_FORM]}
    found = from_json(changed(("rewrite",), plain(rewrite) | named)).rewrite
    assert found.forms == (
        SiteForm("a.py:3", "psum", Form("chunks", slices=2), "backward"),
    )
    bad = {**SITE_FORM, "form": {**SITE_FORM["form"], "kind": "star"}}
    with pytest.raises(PlanError, match=r"forms\[0\].form.kind: 'star' is none of"):
        from_json(changed(("rewrite",), plain(rewrite) | named | {"forms": [bad]}))


def test_plans_of_format_8_are_read_as_they_are():
    assert from_json(changed(("format_version",), 8)) == PLAN


def test_cuts_of_format_6_named_their_form_in_words():
    document = json.loads(older("6").read_text())
    said = [cut["form"] for cut in document["cuts"]]
    plan = from_json(older("6").read_text())
    assert [cut.form.label for cut in plan.cuts] == said
    assert [cut.collectives for cut in plan.cuts] == [1] * len(said)
    assert plan.rewrite.only == ()
    assert all(one.left == () for one in plan.evidence.candidates)
    document["cuts"][0]["form"] = "star, 3 slices"
    with pytest.raises(PlanError, match=r"cuts\[0\].form: 'star, 3 slices'"):
        from_json(json.dumps(document))


def test_plans_of_format_4_say_nothing_of_how_sure_they_are():
    text = older("4").read_text()
    plan = from_json(text)
    assert plan.evidence.uncertainty is None
    assert from_json(to_json(plan)) == plan
    assert plan == dataclasses.replace(
        PLAN, evidence=dataclasses.replace(PLAN.evidence, uncertainty=None)
    )


def test_a_plan_that_is_too_old_says_what_to_do():
    with pytest.raises(PlanError, match=r"format 0.*make the plan again"):
        from_json(changed(("format_version",), 0))


def test_what_was_measured_comes_back():
    measured = MeasuredSteps(0.1, 0.09, 0.001, 12, True)
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
        ({"sequences": {}, "second_stream": {}}, "order.fingerprint: missing"),
        (
            {"fingerprint": "a1" * 32, "sequences": {"2": [0, 2]}, "second_stream": {}},
            "order: sequence 2 of the order is no permutation",
        ),
        (
            {"fingerprint": "b2" * 32, "sequences": {}, "second_stream": {}},
            "holds_for.schedule: not the schedule that the order is for",
        ),
    ],
)
def test_an_order_must_be_one(order, told):
    with pytest.raises(PlanError, match=told):
        from_json(changed(("order",), order))


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
