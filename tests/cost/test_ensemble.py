"""Ensembles: drawn alike everywhere, from all that is open, narrowed by measurements."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.drawn import drawn
from lagom_jax.cost.draws import Draws
from lagom_jax.cost.ensemble import MEMBERS, Ensemble
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.spread import Spread
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.plan import Interval, Setting
from lagom_jax.program.program import Kernel

from .programs import collective

H100, A40 = Cluster.parse("h100:1x8"), Cluster.parse("a40-pcie:2x8")
MODELS = Ensemble.of(H100)
GATHER = collective("gather", nbytes=64 << 20, ranks=range(8))
FAR = collective("far", nbytes=64 << 20, ranks=range(16))


def product(size):
    """A kernel that multiplies two square matrices."""
    return Kernel(
        "product",
        Work(
            "matmul",
            2.0 * size**3,
            4 * size**2,
            2 * size**2,
            matmuls=(Matmul(1, size, size, size, "bf16", "bf16", "bf16"),),
        ),
    )


def test_there_are_twenty_or_more():
    assert len(MODELS.members) == MEMBERS >= 20
    assert len({model.digest for model in MODELS.members}) == MEMBERS


def test_an_ensemble_is_the_same_in_every_process():
    code = (
        "from lagom_jax.cluster import Cluster; "
        "from lagom_jax.cost.ensemble import Ensemble; "
        "models = Ensemble.of(Cluster.parse('h100:1x8')); "
        "import json; print(json.dumps([one.digest for one in models.members]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert json.loads(found.stdout) == [model.digest for model in MODELS.members]


def test_another_seed_draws_others():
    other = Ensemble.of(H100, seed=1)
    assert not {m.digest for m in other.members} & {m.digest for m in MODELS.members}


@pytest.mark.parametrize(
    "part", ["kernels", "sharing", "surfaces", "network", "facts", "one_shot_seconds"]
)
def test_every_part_of_a_model_is_drawn(part):
    likeliest = MODELS.likeliest.constants
    for model in MODELS.members[:3]:
        drawn_part = getattr(model.constants, part)
        same = dataclasses.replace(likeliest, **{part: drawn_part})
        assert same.digest != likeliest.digest


def test_what_cards_share_over_pcie_is_anything_from_nothing_to_what_was_measured():
    """One host, so all kinds alike; what was measured there is not drawn."""
    models, l40s = Ensemble.of(A40), Ensemble.of(Cluster.parse("l40s:1x8"))
    falls = [
        {form.form.fall for form in one.constants.surfaces.by_kind.values()}
        for one in models.members
    ]
    assert {len(kinds) for kinds in falls} == {1}
    drawn_falls = sorted(fall for (fall,) in falls)
    assert 0 < drawn_falls[0] < 0.11
    assert 1.99 < drawn_falls[-1] < 2.1
    assert drawn_falls[9] < 1.05 < drawn_falls[10]
    times = [one.collective(GATHER).seconds for one in models.members]
    likeliest = models.likeliest.collective(GATHER).seconds
    assert min(times) < likeliest / 2.5
    assert max(times) > 2.5 * likeliest
    known = l40s.likeliest.constants.surfaces.by_kind
    for one in l40s.members:
        for kind, surface in one.constants.surfaces.by_kind.items():
            assert surface.form == known[kind].form


def test_two_collectives_share_what_eight_cards_over_pcie_have():
    """One of large bytes takes nearly all of it, as over NVLink of the link."""
    for name in ("a40-pcie:1x8", "l40s:1x8", "h100:1x8"):
        model = CostModel.of(Cluster.parse(name))
        large = collective("large", nbytes=1 << 30, ranks=range(8))
        assert model.collective(large).resource_share > 0.6


def test_forms_that_nothing_tells_apart_are_drawn_as_often_as_each_other():
    forms = [one.constants.sharing.persistent_kernels for one in MODELS.members]
    assert forms.count(True) == forms.count(False) == MEMBERS // 2
    # On Ampere a block per tile is known, not open.
    a100 = Ensemble.of(Cluster.parse("a100:1x8"))
    assert not any(one.constants.sharing.persistent_kernels for one in a100.members)


def test_estimates_stay_in_the_range_that_is_stated():
    evictions = sorted(one.constants.sharing.eviction for one in MODELS.members)
    assert 0 <= evictions[0] < 0.05
    assert 0.95 < evictions[-1] <= 1


def test_what_nccl_chooses_by_itself_is_known():
    usual = MODELS.likeliest.usual(GATHER)
    assert {model.usual(GATHER) for model in MODELS.members} == {usual}


def test_settings_go_along_with_every_model():
    slow = Setting("ring", "simple", 1, 544, 524288)
    before = MODELS.interval(lambda model: model.collective(GATHER).seconds)
    under = MODELS.under({GATHER: slow})
    assert under.interval(lambda m: m.collective(GATHER).seconds).low > before.high


def width_of_a_product(spread, size):
    """The interval of a square product's time, as a share of it."""
    known = MODELS.likeliest.constants
    of = dataclasses.replace(known.kernels.matmul("bf16"), spread=spread)
    kernels = dataclasses.replace(known.kernels, matmuls={"bf16": of})
    found = drawn(dataclasses.replace(known, kernels=kernels), H100.gpu, Draws(MEMBERS))
    times = [CostModel(H100, one).kernel(product(size)).seconds for one in found]
    return Interval.of(float(np.median(times)), times).width


def test_a_larger_spread_makes_wider_intervals():
    widths = [width_of_a_product(Spread(s, s), 4096) for s in (0.02, 0.2, 0.6)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1] / 2


def test_short_products_have_the_spread_of_short_ones():
    """The smaller one takes 6 us, of which its start is two fifths."""
    small, large = (width_of_a_product(Spread(0.02, 0.4), n) for n in (1024, 8192))
    assert large == pytest.approx(
        width_of_a_product(Spread(0.02, 0.02), 8192), rel=0.05
    )
    assert small > 3 * large


def test_what_was_measured_is_surer_than_what_is_estimated():
    far = Ensemble.of(A40).interval(lambda model: model.collective(FAR).seconds)
    near = MODELS.interval(lambda model: model.collective(GATHER).seconds)
    assert near.width < far.width


def test_fields_are_alike_where_places_are_near():
    rough = Draws(200).field("x", (0.0, 0.5, 9.0), 4.0)
    assert np.corrcoef(rough)[0, 1] > 0.9
    assert abs(np.corrcoef(rough)[0, 2]) < 0.3
    assert rough.std(axis=1) == pytest.approx([1.0, 1.0, 1.0], abs=0.15)
