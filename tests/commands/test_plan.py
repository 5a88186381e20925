"""`lagom plan` as a user meets it."""

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from lagom_jax.compile.toolchain import Toolchain
from lagom_jax.plan import (
    HoldsFor,
    Needs,
    ProcessVariable,
    Refusal,
    from_json,
    save,
    to_json,
)
from lagom_jax.plan.pinned import stated
from xla_flags import pinned_by_environment, pinned_by_xla_flags

from ..command_line import lagom
from ..plan.plans import made_by_hand

PLAN = made_by_hand()
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "plan.md"


@pytest.fixture
def file(tmp_path):
    save(PLAN, tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.fixture
def nothing_set(monkeypatch, tmp_path):
    """Whatever is set where the tests run."""
    for pin in pinned_by_environment(os.environ):
        monkeypatch.delenv(pin.name, raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def plan(capsys, *words):
    code, out, complaint = lagom(capsys, "plan", *words)
    assert "Traceback" not in out + complaint
    return code, out, complaint


def saved(folder, **changes):
    save(dataclasses.replace(PLAN, **changes), folder / "other.json")
    return folder / "other.json"


def test_show(capsys, file):
    code, out, _ = plan(capsys, "show", file)
    assert code == 0
    assert "Levers: what the compiler is told" in out


def test_show_as_json_is_the_file(capsys, file):
    code, out, _ = plan(capsys, "show", file, "--json")
    assert (code, out) == (0, file.read_text())
    assert from_json(out) == PLAN


def test_diff_exits_as_diff_does(capsys, file, tmp_path):
    assert plan(capsys, "diff", file, file)[:2] == (0, "")
    other = saved(tmp_path, pricing="another")
    code, out, _ = plan(capsys, "diff", file, other)
    assert (code, out) == (1, "pricing: made by hand → another\n")
    code, out, _ = plan(capsys, "diff", file, other, "--json")
    assert code == 1
    (row,) = json.loads(out)
    assert row == {"place": "pricing", "before": "made by hand", "after": "another"}


def in_a_shell(text, **variables):
    done = subprocess.run(
        ["sh", "-euc", f'{text}\nprintf "%s" "$XLA_FLAGS"'],
        env=variables,
        capture_output=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.decode()


def test_a_shell_reads_what_env_prints(capsys, file):
    code, out, _ = plan(capsys, "env", file)
    assert code == 0
    assert in_a_shell(out) == PLAN.environment()["XLA_FLAGS"]
    added = in_a_shell(out, XLA_FLAGS="--xla_gpu_autotune_level=0")
    names = [pin.name for pin in pinned_by_xla_flags(added)]
    assert names[0] == "xla_gpu_autotune_level"
    assert len(names) == 1 + len(pinned_by_xla_flags(PLAN.environment()["XLA_FLAGS"]))


def test_env_says_what_no_variable_can(capsys, file):
    _, out, _ = plan(capsys, "env", file)
    comments = [line for line in out.splitlines() if line.startswith("#")]
    for part in PLAN.beyond_environment():
        assert f"#   {part.what}: {part.why}" in comments


def test_a_shell_runs_nothing_that_a_plan_says(capsys, tmp_path):
    evil = "\nexport XLA_FLAGS=evil\r\x85\u2028'$(echo evil)'"
    holds_for = dataclasses.replace(PLAN.holds_for, program=evil)
    settings = (dataclasses.replace(PLAN.settings[0], kind=evil), PLAN.settings[1])
    changed = {"holds_for": holds_for, "settings": settings}
    _, out, _ = plan(capsys, "env", saved(tmp_path, **changed))
    assert in_a_shell(out) == PLAN.environment()["XLA_FLAGS"]


def made_here(**changes):
    held = HoldsFor(
        "p",
        "f",
        PLAN.holds_for.schedule,
        "h100:1x8",
        8,
        tuple(Toolchain.probe().versions.items()),
        (),
    )
    return {"holds_for": dataclasses.replace(held, **changes)}


def test_check_where_it_was_made(capsys, tmp_path, nothing_set):
    file = saved(tmp_path, **made_here())
    code, out, _ = plan(capsys, "check", file, "--cluster", "h100:1x8")
    assert code == 0
    assert out.startswith("The plan holds here")


def test_check_elsewhere(capsys, tmp_path, nothing_set):
    pinned = stated(pinned_by_xla_flags("--xla_gpu_autotune_level=0"))
    file = saved(tmp_path, **made_here(pinned=pinned))
    code, out, _ = plan(capsys, "check", file, "--cluster", "h100:2x8")
    assert code == 1
    assert "BAD the plan was made for 8 devices" in out
    assert "BAD xla_gpu_autotune_level was 0 in XLA_FLAGS and is not set" in out
    assert "does not hold here" in out
    nothing_set.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    assert plan(capsys, "check", file)[0] == 0
    nothing_set.setenv("NCCL_MAX_CTAS", "8")
    code, out, _ = plan(capsys, "check", file, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["holds"] is True
    assert [row["severity"] for row in found["findings"]] == ["warning"]


def test_check_after_its_own_environment(capsys, tmp_path, nothing_set):
    file = saved(tmp_path, **made_here())
    nothing_set.setenv("XLA_FLAGS", in_a_shell(plan(capsys, "env", file)[1]))
    code, out, _ = plan(capsys, "check", file, "--json")
    assert (code, json.loads(out)) == (0, {"holds": True, "findings": []})


@pytest.mark.parametrize("words", [["show"], ["env"], ["check"], ["diff", "none.json"]])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot read the plan"),
        ("{", "cut short"),
        ("[]", "is no plan"),
        (to_json(PLAN).replace('"ok"', '"fine"', 1), "evidence.candidates[0].status"),
    ],
)
def test_what_is_no_plan_is_refused_in_words(capsys, tmp_path, words, content, told):
    if content is not None:
        (tmp_path / "bad.json").write_text(content)
        words = [
            tmp_path / "bad.json" if word == "none.json" else word for word in words
        ]
    code, out, complaint = plan(capsys, *words, tmp_path / "bad.json")
    assert (code, out) == (2, "")
    assert told in complaint


def test_the_plan_on_the_page_is_one(capsys, tmp_path):
    """And what the page shows of it is what the verbs print."""
    page = PAGE.read_text()
    (example,) = re.findall(r"```json\n(.*?)```", page, re.S)
    assert to_json(from_json(example)) == example
    (tmp_path / "plan.json").write_text(example)
    for words, block in re.findall(
        r"```text\n\$ lagom plan (.*?)\n(.*?)```", page, re.S
    ):
        wanted = [tmp_path / w if w.endswith(".json") else w for w in words.split()]
        code, out, _ = plan(capsys, *wanted)
        assert code == 0
        assert [line.rstrip() for line in out.splitlines()] == block.splitlines()


def needing(folder):
    variable = ProcessVariable("NCCL_CTA_POLICY", "2", "copy engines", 0.5)
    refusal = Refusal("copy engines", "no reduction", "copy engines cannot add")
    return saved(
        folder,
        variables=(variable,),
        needs=Needs("2.29.0", "12.5", 2_000_000_000),
        refusals=(refusal,),
    )


def test_what_a_process_needs_is_shown_and_set(capsys, tmp_path):
    other = needing(tmp_path)
    _, out, _ = plan(capsys, "show", other)
    assert "NCCL_CTA_POLICY=2: copy engines; without it 500 ms a step" in out
    assert "NCCL 2.29.0 or newer" in out
    assert "driver for CUDA 12.5 or newer" in out
    assert "copy engines: copy engines cannot add" in out
    _, out, _ = plan(capsys, "env", other)
    assert "export NCCL_CTA_POLICY=2" in out.splitlines()


def test_check_names_variables_and_a_pool_without_room(capsys, tmp_path, nothing_set):
    other = needing(tmp_path)
    _, out, _ = plan(capsys, "check", other, "--json")
    texts = [one["text"] for one in json.loads(out)["findings"]]
    assert any("NCCL_CTA_POLICY is not 2 here" in text for text in texts)
    nothing_set.setenv("NCCL_CTA_POLICY", "2")
    nothing_set.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.99")
    code, out, _ = plan(capsys, "check", other, "--json")
    assert code == 1
    texts = [one["text"] for one in json.loads(out)["findings"]]
    assert not any("NCCL_CTA_POLICY is not" in text for text in texts)
    assert any("leaves no room for 2.00 GB" in text for text in texts)


def test_a_plan_that_is_not_there(capsys, tmp_path):
    code, _, complaint = plan(capsys, "show", str(tmp_path / "no.json"))
    assert code == 2
    assert complaint == (
        f"lagom: cannot read the plan {tmp_path}/no.json: No such file or directory\n"
    )
