"""Advice on cuts, from programs whose prices are made by hand."""

import dataclasses

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.decompose import Form
from lagom_jax.decompose.cutting_advice import advise
from lagom_jax.decompose.form_savings import FormPrices
from lagom_jax.decompose.form_schedule import message_of, part_of
from lagom_jax.program.build import build_program
from tests.decompose.programs import program

CLUSTER = Cluster.parse("h100:1x4")


class Faster:
    """Prices in which one kind of collective takes a share of its time."""

    def __init__(self, model, **shares):
        self._model, self._shares = model, shares

    def kernel(self, kernel):
        return self._model.kernel(kernel)

    def collective(self, site):
        price = self._model.collective(site)
        share = self._shares.get(site.kind.replace("-", "_"), 1.0)
        return dataclasses.replace(price, seconds=share * price.seconds)


@pytest.fixture(scope="module")
def step():
    return build_program(program("gather", Form("chunks")).module)


def advice(step, **shares):
    prices = Faster(CostModel.of(CLUSTER), **shares)
    return advise(step, replay(step, prices), FormPrices(prices))


@pytest.mark.slow
def test_transport_decides_for_the_form(step):
    (usual,) = advice(step)
    assert usual.kind == "all-gather"
    assert usual.memory_bytes > 0
    (copied,) = advice(step, collective_permute=0.05)
    assert copied.form.kind == "ring"
    assert copied.saved_seconds > usual.saved_seconds
    assert copied.pays
    line = copied.source.rpartition("/")[2]
    assert (copied.line, copied.collectives) == (line, 1)
    # A gather that takes no time leaves nothing to save.
    assert advice(step, all_gather=1e-9) == ()


@pytest.mark.slow
def test_a_part_and_a_message(step):
    (site,) = [c for c, _, _ in step.collectives()]
    assert part_of(site, 4).bytes == site.bytes // 4
    message = message_of(site)
    assert message.bytes == site.bytes // 4
    assert message.groups.members.tolist() == [[0, 1], [1, 2], [2, 3], [3, 0]]
