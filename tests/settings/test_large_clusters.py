"""What a search takes among 512 and 1,024 GPUs is what links and channels can carry."""

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.nccl_facts import nccl_facts
from lagom_jax.program.program import Launch, Loop, Program, Run, Stream, Wait
from lagom_jax.settings.lagom import Lagom

from .programs import matmul, site, stage_of

PAYLOAD = {"ll": 0.5, "ll128": 0.9375, "simple": 1.0}
MIB = 1 << 20


def pipelined(cluster):
    """A loop of layers: each gathers the next one's weights, and scatters gradients."""
    sizes = (32, 112, 112, 112)
    gathers = [site(cluster, "all-gather", size * MIB) for size in sizes]
    scatter = site(cluster, "reduce-scatter", 416 * MIB)
    nodes = []
    for token, made in enumerate(gathers):
        nodes += [
            Launch(made, Stream.COLLECTIVE, token),
            Run(matmul(2048, 4096, 14336)),
            Run(matmul(2048, 4096, 4096)),
            Wait((token,)),
        ]
    nodes += [Launch(scatter, Stream.COLLECTIVE, 9), Run(matmul(2048, 14336, 4096))]
    body = (Loop("layers", (*nodes, Wait((9,))), 32, True),)
    return Program("layers", body, cluster.devices)


@pytest.mark.parametrize("hosts", [64, 128])
def test_no_choice_is_below_what_channels_and_the_protocol_carry(hosts):
    """LL on one channel for 112 MiB was 9 % slower than what it was to replace."""
    name = f"h100:{hosts}x8"
    cluster = Cluster.parse(name)
    facts, ranks = nccl_facts(cluster), cluster.devices
    stage = stage_of(pipelined(cluster), name, "sequence")
    found = Lagom().choose(stage)
    before = stage.score(stage.untouched).step_seconds
    assert stage.score(found.choice).step_seconds <= before
    for group, candidate in zip(stage.space.groups, found.choice, strict=True):
        for number, made in enumerate(group.sites):
            setting = group.setting(number, group.candidates[candidate])
            moved = made.bytes * (ranks - 1) / ranks
            each = facts.channel_gb_per_s * 1e9 * PAYLOAD[setting.protocol]
            seconds = stage.price(made, candidate).seconds
            assert seconds >= moved / (min(setting.channels, 16) * each)
            if setting.protocol == "ll":
                assert seconds >= moved / 35e9
