"""`lagom tune` as a user meets it."""

import dataclasses
import json

import pytest

from lagom_jax.api import find_settings, find_settings_of_dump
from lagom_jax.commands import arguments as verbs_arguments
from lagom_jax.errors import LagomError
from lagom_jax.plan.setting import Setting
from lagom_jax.report.tuning import tuning_to_text

from ..command_line import lagom, lagom_alone, write_dump

ALL_COLLECTIVES = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

ENTRY main {
  x = f32[4194304] parameter(0)
  start = (f32[4194304], f32[33554432]) all-gather-start(x), channel_id=1, \
replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, use_global_device_ids=true
  ROOT done = f32[33554432] all-gather-done(start)
}
"""


def tune(capsys, *words):
    code, out, complaint = lagom(capsys, "tune", *words)
    assert "Traceback" not in out + complaint
    return code, out, complaint


def test_a_dump_is_tuned(capsys, tmp_path):
    dump = write_dump(tmp_path, 8)
    code, out, _ = tune(capsys, dump, "--cluster", "h100:1x8")
    assert code == 0
    assert "Choices, those that give the most first" in out
    assert "no settings of these controls make this schedule shorter" in out


def test_the_policies_stand_side_by_side(capsys, tmp_path):
    dump = write_dump(tmp_path, 8)
    words = ["--policy", "lagom", "--policy", "autoccl", "--policy", "exhaustive"]
    code, out, _ = tune(capsys, dump, "--cluster", "h100:1x8", "--json", *words)
    assert code == 0
    found = json.loads(out)
    by_name = {row["policy"]: row for row in found["policies"]}
    assert list(by_name) == ["lagom", "autoccl", "exhaustive"]
    assert by_name["lagom"]["speedup_vs_nccl"] >= 1.0
    best = by_name["exhaustive"]["step_seconds"]
    # What may be none by some models is left alone; tests/settings hold the search.
    assert best <= by_name["lagom"]["step_seconds"]
    assert found["after"]["step_seconds"] == by_name["lagom"]["step_seconds"]
    # The floor adds up in another order: where nothing is left, a bit may differ.
    assert found["floor_seconds"] <= best * (1 + 1e-12)


def test_every_choice_says_why_and_what_it_gives(capsys, tmp_path):
    dump = write_dump(tmp_path, 8)
    _, out, _ = tune(capsys, dump, "--cluster", "h100:1x8", "--json")
    found = json.loads(out)
    gains = [group["step_change"] for group in found["groups"]]
    assert all(gain <= 0 for gain in gains)
    before, after = found["before"]["step_seconds"], found["after"]["step_seconds"]
    # One group: what it gives is all that is given.
    assert after - before == pytest.approx(sum(gains))
    for group in found["groups"]:
        assert group["why"]
        assert (group["chosen"] is None) == group["why"].startswith("left alone")


@pytest.mark.parametrize("columns", [80, 100, 120, 140])
def test_a_narrow_screen_cuts_nothing_off(capsys, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = tune(capsys, write_dump(tmp_path, 8), "--cluster", "h100:1x8")
    assert "…" not in out
    head = next(line for line in out.splitlines() if line.startswith(" collective"))
    assert {"chosen", "step"} <= set(head.split())
    assert ("region" in head) is (columns >= 120)


def test_a_step_that_became_longer_is_not_said_to_have_gained(tmp_path):
    tuning = find_settings_of_dump(
        write_dump(tmp_path, 8), "h100:1x8", policies=["exhaustive"]
    )
    assert " of that is reached" in tuning_to_text(tuning)
    longer = dataclasses.replace(
        tuning.before, exposed_seconds=1.0, step_seconds=1.0, communication_seconds=1.0
    )
    worse = dataclasses.replace(tuning, policy="autoccl", after=longer)
    assert worse.share_of_bound < 0
    assert "is reached" not in tuning_to_text(worse)


def test_a_cap_is_not_said_of_one_kind(capsys, tmp_path):
    words = ["--cluster", "h100:1x8", "--controls", "caps"]
    _, out, _ = tune(capsys, write_dump(tmp_path, 8), *words)
    assert " collectives of up to 134 MB: " in out
    assert "all-gather" not in out


def test_a_step_that_is_all_collectives(capsys, tmp_path):
    dump = tmp_path / "all.txt"
    dump.write_text(ALL_COLLECTIVES)
    code, out, _ = tune(capsys, dump, "--cluster", "h100:1x8", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["before"]["compute_seconds"] == 0
    assert found["after"]["step_seconds"] <= found["before"]["step_seconds"]


def test_a_step_without_collectives(capsys, tmp_path):
    dump = tmp_path / "none.txt"
    dump.write_text(
        "HloModule jit_step, is_scheduled=true\n\n"
        "ENTRY main {\n  x = f32[1024] parameter(0)\n  ROOT y = f32[1024] tanh(x)\n}\n"
    )
    code, out, _ = tune(capsys, dump, "--cluster", "h100:1x1")
    assert code == 0
    assert "nothing here can be set" in out
    assert "leave NCCL's own choices alone" in out


@pytest.mark.parametrize("controls", ["caps", "tuner", "sequence", "fork"])
def test_all_controls_answer(capsys, tmp_path, controls):
    dump = write_dump(tmp_path, 8)
    words = [dump, "--cluster", "a40-nvlink:1x8", "--controls", controls, "--json"]
    code, out, _ = tune(capsys, *words)
    assert code == 0
    assert json.loads(out)["controls"]["name"] == controls


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lama-3-8b", "--cluster", "h100:8x8"], "did you mean llama-3-8b?"),
        (["llama-3-8b", "--cluster", "h100:8x9"], "h100"),
        (
            [
                *["llama-3-8b", "--cluster", "h100:1x8", "--parallelism", "tp"],
                "--model-axis=3",
            ],
            "does not divide",
        ),
        (["nothing.txt", "--cluster", "h100:1x8"], "nothing.txt"),
    ],
)
def test_what_cannot_be_is_refused_in_words(capsys, words, told):
    code, _, complaint = tune(capsys, *words)
    assert code == 2
    assert told in complaint


def test_an_unknown_policy_is_refused_before_anything_is_compiled(capsys):
    words = ["llama-3-8b", "--cluster", "h100:8x8", "--policy", "best"]
    code, _, complaint = tune(capsys, *words)
    assert code == 2
    assert "invalid choice: 'best'" in complaint


def test_a_calibration_is_read_before_anything_is_compiled(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(verbs_arguments, "compile_scheduled", pytest.fail)
    words = ["llama-3-8b", "--cluster", "h100:1x8", "--tiny"]
    words += ["--calibration", tmp_path / "none.json"]
    code, _, complaint = tune(capsys, *words)
    assert code == 2
    assert "none.json" in complaint


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"policies": ()}, "no policy is named"),
        ({"policies": ("best",)}, "no policy 'best'"),
        ({"controls": "magic"}, "no controls 'magic'"),
        ({"calibration": "none.json"}, "none.json"),
    ],
)
def test_what_is_asked_is_checked_before_the_step_is_looked_at(asked, told):
    def step():
        pytest.fail("was traced")

    with pytest.raises(LagomError, match=told):
        find_settings(step, cluster="h100:1x8", **asked)


def test_one_policy_may_stand_for_itself(tmp_path):
    dump = write_dump(tmp_path, 8)
    tuning = find_settings_of_dump(dump, "h100:1x8", policies="autoccl")
    assert tuning.policy == "autoccl"


def test_fewer_threads_are_shown(tmp_path):
    dump = write_dump(tmp_path, 8)
    tuning = find_settings_of_dump(dump, "h100:1x8")
    (group,) = tuning.groups

    def shown(threads):
        setting = Setting("ring", "simple", 24, threads, 2097152)
        told = dataclasses.replace(group, chosen=setting)
        return tuning_to_text(dataclasses.replace(tuning, groups=(told,)))

    assert "24×2M, 128 threads" in shown(128)
    assert "threads" not in shown(544)


def test_the_same_bytes_in_any_process(tmp_path):
    dump = write_dump(tmp_path, 8)
    words = ["tune", str(dump), "--cluster", "a40-nvlink:1x8", "--json"]
    words += ["--policy", "lagom", "--policy", "autoccl"]
    outputs = {
        lagom_alone(
            *words, env={"PYTHONHASHSEED": seed, "PATH": ""}, text=False, check=True
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(outputs) == 1
