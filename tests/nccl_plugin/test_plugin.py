"""The plugin answers as the reference does, asked as NCCL asks."""

import random
import subprocess

import pytest

from lagom_jax.nccl_plugin.image import save
from lagom_jax.nccl_plugin.rules import Answer, Rule, Rules, Scope

from .hosted import HERE, ask, build, expected, random_calls, random_rules

CALLS = 100_000


def compare(host, plugin, tmp_path, *, version, threads, seed, count, places=True):
    draw = random.Random(seed)
    rules, shapes, edges = random_rules(draw, 200, places=places)
    calls = random_calls(draw, rules, shapes, edges, count)
    save(rules, tmp_path / "rules")
    found, log = ask(
        host,
        plugin,
        version,
        threads,
        shapes,
        calls,
        {"LAGOM_TUNER_RULES": str(tmp_path / "rules")},
    )
    assert "WARN" not in log
    wanted = expected(rules, version, shapes, calls)
    wrong = [i for i in range(count) if found[i] != wanted[i]]
    assert not wrong, (len(wrong), calls[wrong[0]], found[wrong[0]], wanted[wrong[0]])
    return wanted


@pytest.mark.slow
def test_100_000_random_calls_are_answered_as_by_the_reference(host, plugin, tmp_path):
    wanted = compare(host, plugin, tmp_path, version=6, threads=4, seed=1, count=CALLS)
    # The calls are of all sorts: forced, channels only, chunks, and left alone.
    assert sum(w.changed != 0 for w in wanted) > CALLS / 10
    assert sum(w.channels != 0 for w in wanted) > CALLS / 10
    assert sum(w.chunks[0] not in (0, 12345) for w in wanted) > CALLS / 50
    assert sum(w.changed == 0 and not w.channels for w in wanted) > CALLS / 10


@pytest.mark.parametrize("version", [3, 4, 5, 6])
@pytest.mark.parametrize("seed", [2, 3])
def test_every_version_of_the_interface(host, plugin, tmp_path, version, seed):
    compare(host, plugin, tmp_path, version=version, threads=2, seed=seed, count=4000)


def test_after_init_it_allocates_nothing_and_asks_the_system_for_nothing(
    plugin, tmp_path
):
    rules, _, _ = random_rules(random.Random(5), 40, places=True)
    anything = Rule("all-gather", 0, 1 << 50, Answer(channels=3))
    shape = Scope(8, rules=(anything,), sequences=rules.scopes[0].sequences)
    save(Rules((shape,)), tmp_path / "rules")
    silent = build(tmp_path / "silent", HERE / "silent.c", "-O1", "-fno-builtin")
    words = [silent, plugin, tmp_path / "rules"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("this system has no seccomp")
    assert (done.returncode, done.stdout) == (0, "silent\n"), done.stderr
