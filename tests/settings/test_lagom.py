"""Lagom's regions, its prices, and the steps that tell it from AutoCCL."""

import itertools
import math
import random
import subprocess
import sys

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.program.program import Branch, Launch, Loop, Program, Run, Stream, Wait
from lagom_jax.settings.autoccl import AutoCcl
from lagom_jax.settings.controls import COARSE, FINE, PRESETS
from lagom_jax.settings.exhaustive import Exhaustive, TooManyError
from lagom_jax.settings.frontier import path, points
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.policy import Default
from lagom_jax.settings.tuning import tune_program

from .programs import CLUSTERS, copy, matmul, site, stage_of

A40, H100 = "a40-nvlink:2x8", "h100:2x8"
TOKENS, WIDTH, HIDDEN = 2 * 2048, 2560, 10240
LAYER_BYTES = 157_000_000


def beside(cluster, made, *kernels, trips=32, stream=Stream.COLLECTIVE):
    """A loop whose body hides a collective behind kernels."""
    nodes = (Launch(made, stream, 1), *map(Run, kernels), Wait((1,)))
    body = (Loop("layers", nodes, trips, True),)
    return Program("p", body, Cluster.parse(cluster).devices)


def gather(cluster, nbytes=LAYER_BYTES, **more):
    return site(Cluster.parse(cluster), "all-gather", nbytes, **more)


def seconds(stage, choice):
    return stage.score(choice).step_seconds


def pattern_one():
    """The paper's first pattern: an all-gather beside the feed-forward matmuls."""
    up, down = matmul(TOKENS, HIDDEN, WIDTH), matmul(TOKENS, WIDTH, HIDDEN)
    return beside(A40, gather(A40), up, down)


def test_hidden_the_cheapest_is_kept():
    """Compute hides even the slowest: nothing is bought."""
    kernels = [matmul(10240, 10240, 10240)] * 4
    stage = stage_of(beside(A40, gather(A40), *kernels), A40)
    found = Lagom(look_around=False).choose(stage)
    assert found.regions == {0: "hidden"}
    assert found.moves == ()
    score = stage.score(found.choice)
    assert score.totals.exposed_seconds <= 1e-6 * score.step_seconds
    assert score.totals.contention_seconds < stage.score((0,)).totals.contention_seconds
    chosen = stage.space.groups[0].candidates[found.choice[0]]
    assert chosen.channels <= 2


def test_exposed_even_the_fastest_is_not_hidden():
    """Almost nothing beside it: the collective's own time is what counts."""
    stage = stage_of(beside(A40, gather(A40, 1 << 30), copy(1 << 16)), A40)
    found = Lagom().choose(stage)
    assert found.regions == {0: "exposed"}
    site_ = stage.space.groups[0].sites[0]
    times = [
        stage.price(site_, c).seconds
        for c in range(len(stage.space.groups[0].candidates))
    ]
    assert stage.price(site_, found.choice[0]).seconds <= 1.01 * min(times)


def test_balanced_between_the_ends():
    """The cheapest is exposed, the fastest hidden and dear: the best lies between."""
    up, down = matmul(TOKENS, HIDDEN, WIDTH), matmul(TOKENS, WIDTH, HIDDEN)
    stage = stage_of(beside(A40, gather(A40, 96 << 20), up, down), A40)
    found = Lagom().choose(stage)
    assert found.regions == {0: "balanced"}
    assert found.moves
    chosen = seconds(stage, found.choice)
    for move in found.moves:
        assert move.before != move.after
        assert move.step_seconds >= chosen * (1 - 1e-9)


def test_the_cheapest_second_is_bought_first():
    """`H` of every step that could be taken, worked out here, at each that was."""
    choices = 0
    for seed in range(48):
        cluster, step = windowful(seed)
        stage = stage_of(step, cluster, grid=COARSE)
        found = Lagom(look_around=False, least_gain=0.0).choose(stage)
        members = sorted(found.regions)
        if len(stage.components()) > 1 or len(members) < 2:
            continue
        paths = {group: path(points(stage, group)) for group in members}
        places = dict.fromkeys(members, 0)

        def at(places, paths=paths, members=members):
            return tuple(paths[g][places[g]].candidate for g in members)

        for move in found.moves:
            prices = {}
            for group in members:
                if places[group] + 1 == len(paths[group]):
                    continue
                after = at({**places, group: places[group] + 1})
                one, other = stage.score(at(places)), stage.score(after)
                saved = one.own_seconds[group] - other.own_seconds[group]
                lost = other.totals.compute_seconds - one.totals.compute_seconds
                if saved > 0:
                    prices[group] = lost / saved
                else:
                    prices[group] = -math.inf if lost < 0 else math.inf
            least = min(prices.values())
            assert prices[move.group] <= least + 1e-9 * abs(least)
            if move.price is not None:
                assert move.price == pytest.approx(prices[move.group], abs=1e-12)
            places[move.group] += 1
            choices += len(prices) > 1
    assert choices >= 20


def test_a_step_without_a_gain_of_speed_has_no_price():
    """The local search goes down as well as up."""
    moves = []
    for seed in range(60):
        cluster, step = windowful(seed)
        moves += Lagom().choose(stage_of(step, cluster, grid=COARSE)).moves
    assert {move.price is None for move in moves} == {True, False}
    # Where communication and computation both gain, the price is below zero.
    assert any(move.price is not None and move.price < 0 for move in moves)


def test_pattern_one_the_fastest_collective_makes_the_step_slower():
    """Published: AutoCCL 0.87 of NCCL, Lagom faster than both."""
    stage = stage_of(pattern_one(), A40, "fork")
    default = seconds(stage, Default().choose(stage).choice)
    fastest = stage.score(AutoCcl().choose(stage).choice)
    lagom = seconds(stage, Lagom().choose(stage).choice)
    assert fastest.own_seconds[0] < stage.score((0,)).own_seconds[0]
    assert default < fastest.step_seconds
    assert lagom < 0.95 * default
    assert lagom == pytest.approx(
        seconds(stage, Exhaustive().choose(stage).choice), rel=0.01
    )


def windowful(seed, most=3):
    """One to three collectives that share a window, on one of the clusters."""
    dice = random.Random(seed)
    name = dice.choice(CLUSTERS)
    cluster = Cluster.parse(name)
    kinds = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")
    kinds = (*kinds, "collective-permute")
    sizes = (256, 1024, 2560, 4096, 10240)

    def kernels(count):
        for _ in range(dice.randint(0, count)):
            if dice.random() < 0.7:
                yield Run(matmul(*(dice.choice(sizes) for _ in range(3))))
            else:
                yield Run(copy(1 << dice.choice([20, 24, 27, 29])))

    nodes, under_way = [], []
    for token in range(dice.randint(1, most)):
        nbytes = int(2 ** dice.uniform(18, 30))
        how = dice.choice(["all", "all", "domain", "across"])
        made = site(cluster, dice.choice(kinds), nbytes, how)
        stream = dice.choice([Stream.COLLECTIVE] * 3 + [Stream.SEND])
        nodes += [Launch(made, stream, token), *kernels(4)]
        under_way.append(Wait((token,)))
        if dice.random() < 0.4:
            nodes += [under_way.pop(0), *kernels(2)]
    nodes += [*kernels(4), *itertools.chain(*((w, *kernels(1)) for w in under_way))]
    return name, Program("p", (Loop("l", tuple(nodes), 32, True),), cluster.devices)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [0, 1, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 3))]
)
@pytest.mark.parametrize(("grid", "most"), [(COARSE, 6000), (FINE, 1500)])
def test_groups_that_share_a_window_come_near_the_best(part, grid, most):
    """Within 1 % of the best combination, and not by trying them all."""
    compared = 0
    for seed in range(60 * part, 60 * (part + 1)):
        cluster, step = windowful(seed)
        stage = stage_of(step, cluster, grid=grid)
        try:
            least = seconds(stage, Exhaustive(most=most).choose(stage).choice)
        except TooManyError:
            continue
        found = Lagom().choose(stage)
        assert seconds(stage, found.choice) <= 1.01 * least, seed
        assert found.evaluations <= 100 * len(stage.space.groups)
        compared += 1
    assert compared >= 20


def test_what_is_slow_can_let_another_pass():
    """A reduce-scatter on the links of two others that are waited for first.

    Slower than it needs to be it leaves them the links; no path has that, since by
    itself it gains nothing.
    """
    cluster = Cluster.parse(A40)
    slow = site(cluster, "reduce-scatter", 1 << 26, "domain")
    first = site(cluster, "all-gather", 1 << 24)
    second = site(cluster, "reduce-scatter", 1 << 22)
    body = (
        Launch(first, Stream.COLLECTIVE, 1),
        Launch(second, Stream.COLLECTIVE, 2),
        Wait((1,)),
        Wait((2,)),
    )
    step = Program(
        "p",
        (
            Branch("b", ((), (Run(matmul(10240, 4096, 1024)),))),
            Launch(slow, Stream.SEND, 0),
            Loop("l", body, 3, True),
            Run(matmul(4096, 4096, 4096)),
            Run(matmul(2560, 2560, 10240)),
        ),
        16,
    )
    stage = stage_of(step, A40, grid=COARSE)
    least = seconds(stage, Exhaustive().choose(stage).choice)
    assert seconds(stage, Lagom().choose(stage).choice) <= 1.001 * least


def apart(count):
    """So many loops, each with a collective of its own."""
    sizes = (LAYER_BYTES + (n << 20) for n in range(count))
    kernels = (matmul(TOKENS, HIDDEN, WIDTH), matmul(TOKENS, WIDTH, HIDDEN))
    bodies = (beside(A40, gather(A40, n), *kernels).body for n in sizes)
    return Program("p", tuple(itertools.chain(*bodies)), 16)


def chain(count):
    """So many collectives, each under way with the one before and the one after."""
    nodes = []
    for n in range(count):
        made = gather(A40, LAYER_BYTES + (n << 20))
        nodes += [
            Launch(made, Stream.COLLECTIVE, n),
            Run(matmul(TOKENS, HIDDEN, WIDTH)),
        ]
        if n:
            nodes.append(Wait((n - 1,)))
    return Program("p", (*nodes, Wait((count - 1,))), 16)


@pytest.mark.parametrize("make", [apart, chain])
def test_evaluations_grow_with_the_number_of_groups(make):
    def evaluations(count):
        stage = stage_of(make(count), A40)
        assert len(stage.space.groups) == count
        return Lagom().choose(stage).evaluations

    each = [evaluations(count) / count for count in (8, 16, 32)]
    assert max(each) <= 220
    assert each[2] <= 1.3 * each[0]


def test_groups_that_never_meet_do_not_matter_to_each_other():
    alone = [stage_of(apart(n), A40) for n in (1, 3)]
    one, three = (Lagom().choose(stage).choice for stage in alone)
    assert three[0] == one[0]


def test_what_gives_next_to_nothing_is_left_alone():
    """A collective of a kilobyte in a step of seconds."""
    kernels = [matmul(10240, 10240, 10240)] * 40
    stage = stage_of(beside(H100, gather(H100, 1 << 10), *kernels), H100)
    assert Lagom().choose(stage).choice == (0,)


def test_what_is_left_alone_costs_next_to_nothing_together():
    """Each of many groups gives little, and all of them a lot."""
    stage = stage_of(apart(24), A40)
    default = seconds(stage, stage.untouched)
    least = seconds(stage, Lagom(least_gain=0.0).choose(stage).choice)
    share = (default - least) / default / 2
    chosen = seconds(stage, Lagom(least_gain=share).choose(stage).choice)
    assert least <= chosen <= least + share * default
    assert Lagom(least_gain=4 * share).choose(stage).choice == stage.untouched


@pytest.mark.parametrize("controls", PRESETS)
@pytest.mark.parametrize(
    "policy", [Lagom(), AutoCcl(), Exhaustive()], ids=lambda p: p.name
)
def test_steps_with_nothing_to_choose(policy, controls):
    cluster = Cluster.parse(H100)
    fixed = [
        site(cluster, "all-gather", 1 << 20, "one"),
        site(cluster, "all-reduce", 1 << 10, one_shot_kernel=True),
        site(cluster, "collective-broadcast", 1 << 20),
    ]
    for nodes in ([], [matmul(256, 256, 256)], fixed):
        step = Program("p", tuple(map(Run, nodes)), 16)
        stage = stage_of(step, H100, controls)
        found = policy.choose(stage)
        assert (found.choice, found.evaluations) == ((), 0)
        assert stage.score(()).step_seconds >= 0.0


@pytest.mark.parametrize(
    "policy", [Lagom(), AutoCcl(), Exhaustive()], ids=lambda p: p.name
)
@pytest.mark.parametrize("kind", ["all-reduce", "all-to-all", "collective-permute"])
def test_collectives_without_kernels(policy, kind):
    """Nothing is in their way: the fastest is the best."""
    cluster = Cluster.parse(H100)
    made = [site(cluster, kind, 1 << n) for n in (20, 26)]
    nodes = [Launch(c, Stream.COLLECTIVE, n) for n, c in enumerate(made)]
    stage = stage_of(Program("p", (*nodes, Wait((0, 1))), 16), H100, grid=COARSE)
    found = policy.choose(stage)
    assert seconds(stage, found.choice) <= seconds(stage, stage.untouched)


CHOOSE = """
from tests.settings.test_lagom import AutoCcl, COARSE, Lagom, stage_of, windowful
for seed in range(12):
    cluster, step = windowful(seed)
    stage = stage_of(step, cluster)
    for policy in (Lagom(), AutoCcl()):
        found = policy.choose(stage)
        settings = [str(g.candidates[c]) for g, c in zip(stage.space.groups, found.choice)]
        print(seed, policy.name, settings, found, [g.name for g in stage.space.groups])
"""


def chosen_in_a_process(hash_seed):
    done = subprocess.run(
        [sys.executable, "-c", CHOOSE],
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_step_gives_the_same_choice():
    """Whatever the hashes, and whatever was searched before."""
    one, other = (chosen_in_a_process(seed) for seed in ("1", "4711"))
    assert one
    assert one == other


def test_a_second_search_gives_the_same_choice():
    """After others in the same process, on the same model and on the same stage."""
    cluster, step = windowful(5)
    stage = stage_of(step, cluster)
    first = [policy.choose(stage) for policy in (Lagom(), AutoCcl())]
    for seed in range(6, 12):
        other_cluster, other = windowful(seed)
        Lagom().choose(stage_of(other, other_cluster))
    again = stage_of(step, cluster)
    assert [policy.choose(again) for policy in (Lagom(), AutoCcl())] == first
    assert [policy.choose(stage) for policy in (Lagom(), AutoCcl())] == first


def test_moves_lead_to_the_choice():
    """What was looked at beyond the best, or on another way, is no move."""
    for seed in range(60):
        cluster, step = windowful(seed)
        stage = stage_of(step, cluster, grid=COARSE)
        found = Lagom(least_gain=0.0).choose(stage)
        ended = {move.group: move.after for move in found.moves}
        for group, candidate in ended.items():
            assert found.choice[group] in (candidate, 0)


def test_a_comparison_without_an_answer_leaves_the_decision_standing():
    cluster = Cluster.parse(A40)
    tuning = tune_program(
        pattern_one(),
        cluster,
        CostModel.of(cluster),
        controls=PRESETS["tuner"],
        policies=[Lagom(), Exhaustive(most=1)],
    )
    assert [result.policy for result in tuning.policies] == ["lagom"]
    assert tuning.speedup > 1.0
    assert tuning.notes[0].startswith("exhaustive has no answer: ")
    with pytest.raises(TooManyError):
        tune_program(
            pattern_one(),
            cluster,
            CostModel.of(cluster),
            controls=PRESETS["tuner"],
            policies=[Exhaustive(most=1)],
        )
