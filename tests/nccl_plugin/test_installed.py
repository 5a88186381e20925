"""What `lagom doctor` says of the plugin."""

import pytest

from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin import Answer, Rule, Rules, Scope, built, installed, save
from lagom_jax.nccl_plugin.installed import findings
from xla_flags import pinned_by_environment


def said(environ, severity):
    pins = pinned_by_environment(environ)
    return [f for f in findings(environ, pins) if f.severity == severity]


def test_nothing_set():
    assert said({}, "warning") == []
    assert f"NCCL's tuner plugin is {built()}" in {f.text for f in said({}, "ok")}


def test_it_is_loaded_and_asks_another():
    environ = {"NCCL_TUNER_PLUGIN": str(built()), "LAGOM_TUNER_CHAIN": "site.so"}
    assert said(environ, "warning") == []
    assert any("asks site.so" in f.text for f in said(environ, "ok"))


def test_rules_that_nothing_reads():
    (found, _) = said({"LAGOM_TUNER_RULES": "/nowhere"}, "warning")
    assert "NCCL_TUNER_PLUGIN is not: NCCL loads no plugin of ours" in found.text


def test_a_control_page_of_another_process():
    (found,) = said({"LAGOM_TUNER_CONTROL": "/proc/self/fd/9"}, "warning")
    assert found.remedy == "unset LAGOM_TUNER_CONTROL"


def test_another_is_loaded():
    (found,) = said({"NCCL_TUNER_PLUGIN": "site.so"}, "warning")
    assert found.text == "NCCL_TUNER_PLUGIN=site.so: NCCL loads that one, and not ours"
    assert "LAGOM_TUNER_CHAIN=site.so" in found.remedy


@pytest.mark.parametrize("name", ["NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_CTAS"])
def test_what_binds_the_rules(name):
    (found,) = said({name: "8", "NCCL_DEBUG": "INFO"}, "warning")
    assert found.text.startswith(f"{name}=8 in the environment")


def test_rules(tmp_path):
    scope = Scope(8, rules=(Rule("all-gather", 1, 9, Answer("ring", "ll", 4, 32768)),))
    path = tmp_path / "rules"
    save(Rules((scope,)), path)
    environ = {"LAGOM_TUNER_RULES": str(path), "NCCL_TUNER_PLUGIN": str(built())}
    assert any("has rules for 8 ranks" in f.text for f in said(environ, "ok"))
    path.write_bytes(b"nothing")
    (found,) = said(environ, "warning")
    assert found.remedy == "write them again with `lagom tuner write`"


def test_it_was_not_built(monkeypatch):
    def missing():
        raise TunerError("install a compiler")

    monkeypatch.setattr(installed, "built", missing)
    (found,) = said({}, "warning")
    assert found.remedy == "install a compiler"
