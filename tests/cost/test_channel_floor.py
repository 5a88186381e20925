"""No price is below what its own channels can carry, nor a setting's parts in conflict."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.collective import collective_seconds
from lagom_jax.cost.nccl_default import nccl_default, offered
from lagom_jax.cost.nccl_facts import nccl_facts
from lagom_jax.cost.span import Span
from lagom_jax.plan.setting import Setting, largest_chunk, threads_range
from tests.depth import examples

PAYLOAD = {"ll": 0.5, "ll128": 0.9375, "simple": 1.0}
KINDS = ("all-gather", "reduce-scatter", "all-reduce")


def sent(kind, algorithm, nbytes, n):
    """By each GPU, counted here anew."""
    if algorithm == "tree":
        return 2 * nbytes
    once = nbytes * (n - 1) / n
    if algorithm == "pat":
        return once / 0.75
    return 2 * once if kind == "all-reduce" and algorithm == "ring" else once


@st.composite
def asked(draw):
    name = draw(st.sampled_from(Cluster.names()))
    full = Cluster.parse(name).gpus_per_host
    cluster = Cluster.parse(
        f"{name}:{draw(st.sampled_from([1, 2, 8, 32, 128]))}x{full}"
    )
    size, local = cluster.scale_up_size, cluster.scale_up_size
    domains = max(1, cluster.devices // size)
    if domains > 1:
        local = draw(st.sampled_from([1, size]))
    span = Span(domains * local, domains, local)
    if span.size == 1:
        span = Span(2, 1, 2)
    kind = draw(st.sampled_from(KINDS))
    algorithm, protocol = draw(st.sampled_from(offered(kind, span, cluster)))
    low, high = threads_range(algorithm, protocol)
    limit = largest_chunk(algorithm, protocol)
    setting = Setting(
        algorithm,
        protocol,
        draw(st.integers(1, 64)),
        32 * draw(st.integers(-(-low // 32), high // 32)),
        draw(st.sampled_from([limit, max(1920, limit // 8) // 1920 * 1920])),
    )
    return cluster, kind, float(draw(st.integers(1, 1 << 34))), span, setting


@given(asked())
@examples(by_day=100, by_night=2000)
def test_no_price_is_below_what_its_channels_carry(case):
    cluster, kind, nbytes, span, setting = case
    facts = nccl_facts(cluster)
    share = setting.threads / (setting.threads + facts.half_rate_threads)
    share /= 512 / (512 + facts.half_rate_threads)
    rate = facts.channel_gb_per_s * 1e9 * PAYLOAD[setting.protocol] * share
    moved = sent(kind, setting.algorithm, nbytes, span.size)
    least = moved / (setting.channels * rate)
    found = collective_seconds(kind, nbytes, span, cluster, setting)
    assert least * (1 - 1e-9) <= found < math.inf


def test_ll_on_one_channel_for_112_mib_among_512_is_no_bargain():
    """What a search took when latency and bandwidth were multiplied with each other."""
    cluster, span = Cluster.parse("h100:64x8"), Span(512, 64, 8)
    one = Setting("ring", "ll", 1, 512, 32768)
    found = collective_seconds("all-gather", 112 << 20, span, cluster, one)
    assert found > 112 * 2**20 * 511 / 512 / 15e9
    assert found > 3 * collective_seconds("all-gather", 112 << 20, span, cluster)


@pytest.mark.parametrize("hosts", [2, 8, 64, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_ll_between_hosts_is_no_faster_than_nccl_has_it(kind, hosts):
    """Its flags are polled, and NCCL's own limit is a tenth of eight cards' rate."""
    cluster, span = Cluster.parse(f"h100:{hosts}x8"), Span(8 * hosts, hosts, 8)
    nbytes, most = 1 << 30, 45e9 if hosts == 2 else 35e9
    setting = Setting("ring", "ll", 16, 512, 32768)
    found = collective_seconds(kind, nbytes, span, cluster, setting)
    if (kind, hosts) == ("all-reduce", 2):
        assert found > nbytes / most
    else:
        assert found > sent(kind, "ring", nbytes, span.size) / most


@pytest.mark.parametrize("hosts", [2, 8, 64])
def test_latency_over_hosts_is_a_ring_s_and_the_same_for_every_setting(hosts):
    """Each host more adds a network hop and seven inside, whatever the setting."""
    cluster = Cluster.parse(f"h100:{hosts + 1}x8")

    def latency(count, channels):
        span = Span(8 * count, count, 8)
        setting = Setting("ring", "ll", channels, 512, 32768)
        return collective_seconds("all-gather", 8.0, span, cluster, setting)

    hop = nccl_facts(cluster).network_microseconds["ring"]["ll"]
    inside = nccl_facts(cluster).inside_microseconds["ring"]["ll"]
    for channels in (1, 16):
        more = latency(hosts + 1, channels) - latency(hosts, channels)
        assert more == pytest.approx((hop + 7 * inside) * 1e-6, rel=0.05)


def test_communicators_have_other_channels_between_hosts():
    h100, b200 = Cluster.parse("h100:2x8"), Cluster.parse("b200:2x8")
    both = Span(16, 2, 8)
    for cluster, nccl, channels in (
        (h100, "2.29.7", 16),
        (b200, "2.27.5", 32),
        (b200, "2.28.9", 16),
    ):
        assert nccl_default("all-gather", 1e9, both, cluster, nccl).channels == channels
    assert nccl_default("all-gather", 1e9, Span(8, 1, 8), h100).channels == 24


def test_a_pipeline_fills_before_it_is_full():
    """With one chunk a step the larger chunk only waits longer for the first one."""
    cluster, span = Cluster.parse("h100:8x8"), Span(64, 8, 8)
    nbytes = 64.0 * (1 << 20)

    def time(chunk):
        setting = Setting("tree", "simple", 8, 512, chunk)
        return collective_seconds("all-reduce", nbytes, span, cluster, setting)

    chunks = [512 << i for i in range(11)]
    times = [time(chunk) for chunk in chunks]
    assert min(times) < times[-1]
    assert min(times) < times[0]


def test_a_tree_sends_all_of_it_up_and_down():
    """Twice the data over one channel that nothing else limits."""
    cluster, span, nbytes = Cluster.parse("h100:8x8"), Span(64, 8, 8), 4e9
    setting = Setting("tree", "simple", 1, 512, 524288)
    rate = nccl_facts(cluster).channel_gb_per_s * 1e9
    found = collective_seconds("all-reduce", nbytes, span, cluster, setting)
    assert found >= 2 * nbytes / rate


def test_an_all_to_all_keeps_what_stays_in_its_host_off_the_network():
    """Of 64 GPUs on 8 hosts, 56 are elsewhere: 7/8 of the bytes cross."""
    cluster, nbytes = Cluster.parse("h100:8x8"), 64e9
    span = Span(64, 8, 8)
    found = collective_seconds("all-to-all", nbytes, span, cluster)
    card = cluster.between.bytes_per_s
    assert nbytes * 56 / 64 / card <= found <= 1.35 * nbytes * 56 / 64 / card


def test_the_host_with_the_fewest_members_has_the_fewest_cards():
    import numpy as np

    from lagom_jax.cost.span import span_of
    from lagom_jax.hlo.groups import Groups

    uneven = Groups(np.array([[0, 1, 2, 3, 4, 5, 6, 8]]))
    assert span_of(uneven, Cluster.parse("h100:2x8")).local == 1
