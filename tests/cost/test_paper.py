"""The published effects of contention, on programs that we take for the paper's.

The figures that docs/explanation/model.md gives for them are held here as well.
"""

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.hlo.work import Matmul, Work
from lagom_jax.plan.setting import Setting
from lagom_jax.program.program import Kernel, Launch, Loop, Run, Stream

from .programs import collective, program, wait

TOKENS, WIDTH, HIDDEN = 2 * 2048, 2560, 10240
# A phi-2 layer has 78.7 million weights; in bf16.
LAYER_BYTES = 157_000_000
NCCL = Setting("ring", "simple", 8, 544, 2 << 20)
AUTOCCL = Setting("ring", "simple", 61, 544, 2 << 20)
LAGOM = Setting("ring", "simple", 2, 544, 684 << 10)
FEW = Setting("ring", "simple", 4, 544, 1366 << 10)
# How far a figure that docs/explanation/model.md writes may be from what the model says.
FIGURE = 0.02


def matmul(name, m, n, k):
    product = Matmul(1, m, n, k, "bf16", "bf16", "bf16")
    work = Work("matmul", product.flops, 2 * k * (m + n), 2 * m * n, (product,))
    return Kernel(name, work)


def layer(name, kind="all-gather"):
    return collective(name, kind=kind, nbytes=LAYER_BYTES, ranks=tuple(range(16)))


def seconds(step, settings):
    model = CostModel.of(Cluster.parse("a40-nvlink:2x8")).under(settings)
    return replay(step, model, model.contention()).step_seconds


def forward(gather):
    """The parameters of a layer, beside the feed-forward of the one before."""
    body = (
        Launch(gather, Stream.COLLECTIVE, 1),
        Run(matmul("up", TOKENS, HIDDEN, WIDTH)),
        Run(matmul("down", TOKENS, WIDTH, HIDDEN)),
        wait(1),
    )
    return program(Loop("layers", body, 32, True))


def backward(*collectives):
    """One layer's feed-forward backwards, beside the collectives of its neighbours."""
    body = (
        *(Launch(c, Stream.COLLECTIVE, token) for token, c in enumerate(collectives)),
        Run(matmul("down, to inputs", TOKENS, HIDDEN, WIDTH)),
        Run(matmul("down, to weights", HIDDEN, WIDTH, TOKENS)),
        Run(matmul("up, to inputs", TOKENS, WIDTH, HIDDEN)),
        Run(matmul("up, to weights", WIDTH, HIDDEN, TOKENS)),
        wait(*range(len(collectives))),
    )
    return program(Loop("layers", body, 32, True))


@pytest.mark.parametrize(
    ("setting", "within", "reported", "documented"),
    [(AUTOCCL, 0.15, 0.87, None), (LAGOM, 0.2, 1.35, 1.19)],
)
def test_pattern_one(setting, within, reported, documented):
    """An all-gather beside feed-forward matmuls; 1.35 is reported and not reached."""
    gather = layer("gather")
    step = forward(gather)
    found = seconds(step, {gather: NCCL}) / seconds(step, {gather: setting})
    assert found == pytest.approx(reported, abs=within)
    if documented is not None:
        assert found == pytest.approx(documented, abs=FIGURE)


def test_pattern_two():
    """Several collectives, of which the reduce-scatter's change is given: 1.43."""
    gather, scatter = layer("gather"), layer("scatter", "reduce-scatter")
    step = backward(gather, scatter)
    default = seconds(step, {gather: NCCL, scatter: NCCL})
    both = seconds(step, {gather: LAGOM, scatter: FEW})
    only_scatter = seconds(step, {gather: NCCL, scatter: FEW})
    assert default / both == pytest.approx(1.43, abs=0.15)
    assert default / both == pytest.approx(1.33, abs=FIGURE)
    assert default / both > default / only_scatter > 1.05
    assert default / seconds(step, {gather: AUTOCCL, scatter: AUTOCCL}) < 1.0


def test_collectives_that_are_not_the_bottleneck():
    """Reported: they slow a step by up to 35 %, and settings change that by over 30."""
    gather = layer("gather")
    alone = seconds(backward(), {})
    slow, few = (seconds(backward(gather), {gather: s}) for s in (NCCL, LAGOM))
    assert slow / alone == pytest.approx(1.35, abs=0.15)
    assert slow / alone == pytest.approx(1.44, abs=FIGURE)
    assert slow / few > 1.3


def times_as_long(cluster, setting=None):
    """Three large matmuls beside an all-gather: the least and the most."""
    gather = collective("gather", nbytes=1 << 30, ranks=tuple(range(8)))
    model = CostModel.of(Cluster.parse(cluster))
    if setting is not None:
        model = model.under({gather: setting})
    sizes = [(4096, 4096, 4096), (8192, 8192, 8192), (16384, 4096, 4096)]
    rates = [model.contention().rates(matmul("k", *s), (gather,)) for s in sizes]
    found = [1 / rate.running for rate in rates]
    return min(found), max(found)


@pytest.mark.parametrize(
    ("cluster", "least", "most"),
    [
        ("a40-nvlink:1x8", 3.47, 3.71),
        ("a100:1x8", 1.77, 1.77),
        # Users report 1.3 to 1.4; no constant was chosen for it.
        ("h100:1x8", 1.23, 1.35),
        ("b200:1x8", 1.31, 1.38),
    ],
)
def test_large_matmuls_beside_nccl(cluster, least, most):
    assert times_as_long(cluster) == pytest.approx((least, most), rel=0.02)


@pytest.mark.parametrize(("channels", "about"), [(32, 2.5), (48, 5.3)])
def test_more_in_flight_than_the_cache_holds_on_hopper(channels, about):
    setting = Setting("ring", "simple", channels, 544, 2 << 20)
    assert times_as_long("h100:1x8", setting) == pytest.approx((about, about), rel=0.05)
