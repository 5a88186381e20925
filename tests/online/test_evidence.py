"""A test that is looked at again and again, and still errs as rarely as it says."""

import random

from lagom_jax.online.evidence import Comparisons
from lagom_jax.online.steps import MeasuredBeside

LOOKS, RUNS = 120, 400


def wrong_at_some_look(error, seed, outliers=0.0):
    """True if what is no faster is found faster at any of many looks."""
    chance, found = random.Random(seed), Comparisons()
    for _ in range(LOOKS):
        off = 20.0 if chance.random() < outliers else 1.0
        ratio = off * chance.gauss(0.0, 0.01)
        found = found.with_(MeasuredBeside(1, 0, ratio, 1e-4, 0.01, 3))
        if found.proves_faster(error):
            return True
    return False


def test_however_often_one_looks_it_is_wrong_as_rarely_as_stated():
    wrong = sum(wrong_at_some_look(0.05, seed) for seed in range(RUNS))
    # Two standard errors above what is stated.
    assert wrong / RUNS < 0.05 + 2 * (0.05 * 0.95 / RUNS) ** 0.5


def test_wild_steps_prove_nothing_either():
    wrong = sum(wrong_at_some_look(0.05, seed, outliers=0.05) for seed in range(RUNS))
    assert wrong / RUNS < 0.07


def test_a_gain_is_found_and_the_other_way_it_is_a_loss():
    faster, slower = Comparisons(), Comparisons()
    for _ in range(12):
        seen = MeasuredBeside(1, 0, -0.02, 1e-4, 0.01, 3)
        faster, slower = faster.with_(seen), slower.with_(seen, turned=True)
    assert faster.proves_faster(0.01)
    assert not faster.proves_slower(0.01)
    assert slower.proves_slower(0.01)
    assert not slower.proves_faster(0.01)


def test_one_comparison_is_no_proof_however_far_it_lies():
    found = Comparisons().with_(MeasuredBeside(1, 0, -5.0, 1e-4, 0.01, 3))
    assert not found.proves_faster(0.01)
