"""`lagom flags`: what is known, what is recommended, what is set."""

import json

import pytest

from xla_flags import flags, recipes

from ..command_line import lagom


def test_every_flag_is_listed_by_its_whole_name(capsys):
    code, out, _ = lagom(capsys, "flags")
    assert code == 0
    assert all(f" {flag.name} " in out for flag in flags())


def test_a_narrow_screen_shows_whole_names_too(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = lagom(capsys, "flags", "--holder", "nccl")
    lines = out.splitlines()
    assert all(len(line) <= 80 for line in lines if "NCCL_" in line)
    assert any(line.startswith(" NCCL_MAX_NCHANNELS ") for line in lines)
    assert "xla_gpu" not in out


def test_one_flag_in_detail(capsys):
    code, out, _ = lagom(capsys, "flags", "--xla_gpu_all_gather_mode".lstrip("-"))
    assert code == 0
    assert "COLLECTIVES_PEER_MEMORY" in out
    assert "PRIVATE, SYMMETRIC, PEER" in out
    assert "356 to 656 MiB" in out


def test_a_slip_is_answered_with_the_name_that_was_meant(capsys):
    code, out, err = lagom(capsys, "flags", "NCCL_MAX_NCHANNEL")
    assert (code, out) == (2, "")
    assert "did you mean NCCL_MAX_NCHANNELS?" in err


def test_json_is_the_catalogue(capsys):
    _, out, _ = lagom(capsys, "flags", "--json")
    found = json.loads(out)
    assert [record["name"] for record in found] == [flag.name for flag in flags()]
    (one,) = json.loads(lagom(capsys, "flags", "optimization_level", "--json")[1])
    assert one["seen"] == {"0.10.2": 0, "0.12.0.1": 0}


def test_recipes_are_listed_with_their_sources(capsys):
    _, out, _ = lagom(capsys, "flags", "--recipes")
    found = json.loads(lagom(capsys, "flags", "--recipes", "--json")[1])
    assert [r["name"] for r in found] == [recipe.name for recipe in recipes()]
    for recipe in found:
        assert recipe["source"] in out


def test_what_is_set_here_is_listed(capsys, monkeypatch):
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_gpu_autotune_level=x stray"
    )
    monkeypatch.setenv("NCCL_MAX_CTAS", "8")
    code, out, _ = lagom(capsys, "flags", "--pinned")
    assert code == 0
    assert "xla_gpu_autotune_level=0  XLA_FLAGS\n" in out
    assert "it cannot be 'x'" in out
    assert "XLA stops reading XLA_FLAGS at 'stray'" in out
    assert "NCCL_MAX_CTAS=8  the environment" in out
    pins = json.loads(lagom(capsys, "flags", "--pinned", "--json")[1])
    assert [p["value"] for p in pins if not p["problem"]][:1] == [0]


def test_nothing_set_is_said(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for name in ("NCCL_MAX_CTAS", "NCCL_DEBUG", "NCCL_CONF_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    _, out, _ = lagom(capsys, "flags", "--pinned")
    assert out.startswith("Nothing is set")


@pytest.mark.parametrize("words", [("--recipes", "x"), ("--pinned", "--holder", "xla")])
def test_lists_take_no_names(capsys, words):
    code, _, err = lagom(capsys, "flags", *words)
    assert code == 2
    assert "give no names" in err
