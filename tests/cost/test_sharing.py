"""Laws of contention: separable, monotone, and nothing where nothing is shared."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad, kernel_load, memory_rate
from lagom_jax.cost.prices import Price
from lagom_jax.cost.rates_of_loads import RatesOfLoads, SharedGpu
from lagom_jax.cost.sharing import SharedWith, cache_overflow, collective_slowdown
from lagom_jax.cost.sharing_constants import SharingConstants, load_sharing_constants
from lagom_jax.hlo.work import Matmul, Work
from lagom_jax.plan.setting import Setting

from .programs import collective, kernel

H100 = Cluster.parse("h100").gpu
A40 = Cluster.parse("a40-nvlink").gpu
CONSTANTS = SharingConstants(True, 0.45, 1.0, 0.0, 0.0, 3.0, 4.0, 1.0)
SMOOTH = dataclasses.replace(CONSTANTS, persistent_kernels=False)


def load(channels=8, chunk=1 << 20, rate=1e11, link="nvlink", share=0.5):
    return CollectiveLoad(channels, chunk, rate, link, share)


def test_alone_nothing_is_slowed():
    assert SharedWith([], H100, CONSTANTS).of(KernelLoad(0.9, 2.0, 1000)) == 1.0
    assert collective_slowdown(load(), [load()], H100) == 1.0


def test_persistent_kernels_lose_whole_rounds():
    """132 tiles fit into one round of 132 SMs, and need two of 116."""
    one_round = KernelLoad(0.0, 2.0, 132)
    assert SharedWith([load(16)], H100, CONSTANTS).by_sms(one_round) == 2.0
    ten_rounds = KernelLoad(0.0, 2.0, 1320)
    assert SharedWith([load(16)], H100, CONSTANTS).by_sms(ten_rounds) == pytest.approx(
        1.2
    )


def test_waits_for_memory_add_to_what_fewer_sms_cost():
    """Fewer SMs ask the memory for as much over a longer time."""
    both = KernelLoad(0.5, 0.0, 132)
    half = load(16, rate=H100.memory_bytes_per_s / 2)
    assert SharedWith([half], H100, CONSTANTS).by_sms(both) == 2.0
    assert SharedWith([half], H100, CONSTANTS).by_memory(both) == pytest.approx(1.5)
    assert SharedWith([half], H100, CONSTANTS).of(both) == pytest.approx(2.5)


def test_small_blocks_lose_smoothly():
    found = SharedWith([load(16)], H100, SMOOTH).by_sms(KernelLoad(0.0, 2.0, 10**6))
    assert found == pytest.approx(132 / 116, rel=1e-3)


def test_a_kernel_that_leaves_sms_free_loses_none():
    assert (
        SharedWith([load(32)], H100, CONSTANTS).by_sms(KernelLoad(0.0, 2.0, 64)) == 1.0
    )


def test_memory_bound_kernels_do_not_miss_a_few_sms():
    assert (
        SharedWith([load(32)], H100, CONSTANTS).by_sms(KernelLoad(1.0, 2.0, 0)) == 1.0
    )


def test_links_are_shared():
    two = [load(share=0.8), load(share=0.7)]
    assert collective_slowdown(two[0], two, H100) == pytest.approx(1.5)
    apart = [load(share=0.8), load(share=0.7, link="network")]
    assert collective_slowdown(apart[0], apart, H100) == 1.0


def test_a_kernel_gets_what_collectives_leave_of_the_memory():
    greedy = load(rate=0.5 * H100.memory_bytes_per_s)
    copy = KernelLoad(1.0, 0.0, 0)
    found = SharedWith([greedy], H100, CONSTANTS).by_memory(copy)
    assert found == pytest.approx(2.0)


def test_a_collective_waits_for_the_bytes_of_a_kernel_as_that_for_its_own():
    """Each uses the memory for a half and a third of its time."""
    kernel = KernelLoad(1 / 3, 0.0, 0)
    shared = SharedWith([load(rate=H100.memory_bytes_per_s / 2)], H100, CONSTANTS)
    assert shared.by_memory(kernel) == pytest.approx(1 + 1 / 3)
    assert shared.of_collectives(kernel) == [pytest.approx(1 + 1 / 4)]
    assert shared.of_collectives() == [1.0]


def test_nobody_waits_for_who_has_no_bytes():
    still, busy = load(rate=0.0), load(rate=H100.memory_bytes_per_s / 4)
    shared = SharedWith([still, None, busy], H100, CONSTANTS)
    slower = shared.of_collectives(KernelLoad(0.5, 0.0, 0))
    assert slower == [1.0, 1.0, pytest.approx(1.25)]
    assert shared.of_collectives(KernelLoad(0.0, 2.0, 1000)) == [1.0, 1.0, 1.0]


def test_a_collective_waits_beside_others_as_long_as_by_itself():
    """It uses the memory more slowly, and longer."""
    kernel, one = KernelLoad(0.5, 0.0, 0), load(share=0.8, rate=2e11)
    waits = SharedWith([one], H100, CONSTANTS).of_collectives(kernel)[0] - 1.0
    two = SharedWith([one, load(share=0.7)], H100, CONSTANTS)
    assert two.of_collectives(kernel)[0] == pytest.approx(1.5 + waits)


def test_no_kernel_is_waited_for_longer_than_was_seen():
    shared = SharedWith([load(rate=H100.memory_bytes_per_s / 4)], H100, CONSTANTS)
    found = [shared.of_collectives(KernelLoad(m, 0.0, 0))[0] for m in (0.8, 0.9, 1.0)]
    assert found == [pytest.approx(2.0)] * 3


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_how_long_a_collective_waits_is_a_constant(strength):
    constants = dataclasses.replace(CONSTANTS, waits_for_kernels=strength)
    shared = SharedWith([load(rate=H100.memory_bytes_per_s / 4)], H100, constants)
    found = shared.of_collectives(KernelLoad(0.5, 0.0, 0))
    assert found == [pytest.approx(1 + strength / 4)]


def test_collectives_share_memory_and_sms_by_their_sum():
    """Two that each ask for most of the memory, and hold half of the SMs."""
    greedy = load(channels=40, rate=0.8 * H100.memory_bytes_per_s, share=0.1)
    two = [greedy, greedy]
    assert collective_slowdown(greedy, two, H100) == pytest.approx(1.6)
    smooth = KernelLoad(0.0, 0.0, 10**6)
    found = SharedWith(two, H100, SMOOTH).by_sms(smooth)
    assert found == pytest.approx(132 / 52, rel=1e-3)
    copy, light = KernelLoad(1.0, 0.0, 0), load(rate=0.2 * H100.memory_bytes_per_s)
    found = SharedWith([light, light], H100, CONSTANTS).by_memory(copy)
    assert found == pytest.approx(1 / 0.6)


def test_a_small_kernel_loses_a_constant():
    late = dataclasses.replace(CONSTANTS, start_seconds=4e-6)
    short, long = KernelLoad(0.0, 0.0, 0, 4e-6), KernelLoad(0.0, 0.0, 0, 4e-3)
    assert SharedWith([load()], H100, late).of(short) == pytest.approx(2.0)
    assert SharedWith([load()], H100, late).of(long) == pytest.approx(1.001)


def test_a_collective_that_only_waits_evicts_nothing():
    own = KernelLoad(0.2, 20.0, 1000)
    waits = dataclasses.replace(load(8, 2 << 20), busy=0.0, memory_bytes_per_s=0.0)
    assert SharedWith([waits], A40, CONSTANTS).by_memory(own) == 1.0


def test_few_blocks_may_need_one_more_round():
    """108 blocks fit on 108 SMs once, and on 84 twice."""
    a100 = Cluster.parse("a100").gpu
    found = SharedWith([load(24)], a100, SMOOTH).by_sms(KernelLoad(0.2, 2.0, 108))
    assert found == 2.0


CHANNELS = st.integers(1, 64)
CHUNKS = st.integers(512, 1 << 21)
SHARES = st.floats(0, 1)
TILES = st.one_of(st.just(0), st.integers(1, 10**5))
GPUS = st.sampled_from([H100, A40])
EITHER = st.sampled_from([CONSTANTS, SMOOTH])


@given(SHARES, TILES, CHANNELS, CHANNELS, CHUNKS, GPUS, EITHER)
def test_more_channels_never_help_the_kernel(share, tiles, one, other, chunk, gpu, c):
    few, many = sorted((one, other))
    own = KernelLoad(share, 2.0, tiles)
    assert (
        SharedWith([load(few, chunk)], gpu, c).of(own)
        <= SharedWith([load(many, chunk)], gpu, c).of(own) + 1e-12
    )


@given(SHARES, TILES, CHANNELS, CHUNKS, CHUNKS, GPUS, EITHER)
def test_larger_chunks_never_help_the_kernel(
    share, tiles, channels, one, other, gpu, c
):
    small, large = sorted((one, other))
    own = KernelLoad(share, 2.0, tiles)
    assert (
        SharedWith([load(channels, small)], gpu, c).of(own)
        <= SharedWith([load(channels, large)], gpu, c).of(own) + 1e-12
    )


@given(SHARES, TILES, CHANNELS, CHUNKS, CHUNKS, GPUS)
def test_the_chunk_does_not_touch_sms(share, tiles, channels, one, other, gpu):
    own = KernelLoad(share, 2.0, tiles)
    assert SharedWith([load(channels, one)], gpu, CONSTANTS).by_sms(own) == SharedWith(
        [load(channels, other)], gpu, CONSTANTS
    ).by_sms(own)


@given(SHARES, TILES, CHANNELS, CHANNELS, GPUS)
def test_channels_at_the_same_amount_in_flight_do_not_touch_the_cache(
    share, tiles, one, other, gpu
):
    own = KernelLoad(share, 2.0, tiles)
    total = 1 << 24
    pair = [
        SharedWith([load(n, total // n)], gpu, CONSTANTS).by_memory(own)
        for n in (one, other)
    ]
    assert pair[0] == pytest.approx(pair[1], rel=1e-4)


def test_what_fits_into_the_cache_evicts_nothing():
    own = KernelLoad(0.2, 20.0, 1000)
    small, fits, twice = (
        SharedWith([load(1, size)], A40, CONSTANTS).by_memory(own)
        for size in (1 << 20, A40.l2_bytes, 2 * A40.l2_bytes)
    )
    assert small == fits
    assert twice > 4 * fits


@given(CHANNELS, CHUNKS, GPUS)
def test_cache_overflow_is_a_share(channels, chunk, gpu):
    assert 0 <= cache_overflow([load(channels, chunk)], gpu) <= 1


@given(SHARES, TILES, CHANNELS, CHUNKS, st.floats(0, 5e12), SHARES, GPUS, EITHER)
def test_rates_are_speeds(share, tiles, channels, chunk, rate, link, gpu, c):
    flying = load(channels, chunk, rate, share=link)
    shared = SharedGpu(
        RatesOfLoads(gpu, c),
        lambda _: KernelLoad(share, 2.0, tiles),
        lambda _: flying,
    )
    found = shared.rates(kernel("k"), (collective("c"), kernel("copy")))
    assert 0 < found.running <= 1
    assert 0 < found.flying[0] <= 1
    assert found.flying[1] == 1


def test_the_load_of_a_matmul():
    matmul = Matmul(2, 4096, 1000, 4096, "bf16", "bf16", "bf16")
    work = Work("matmul", matmul.flops, 1 << 26, 1 << 24, (matmul,))
    found = kernel_load(work, Price(1e-3, "arithmetic"), H100)
    assert found.tiles == 2 * 32 * 8
    assert found.memory_share == pytest.approx(
        work.hbm_bytes / (H100.memory_bytes_per_s * 1e-3)
    )


SIMPLE = Setting("ring", "simple", 8, 544, 1 << 20)


def test_an_exchange_reads_what_it_sends_as_well():
    kinds = ("reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
    passes = [CONSTANTS.passes(kind, SIMPLE) for kind in kinds]
    assert [memory_rate(1e9, 1.0, number) for number in passes] == [3e9, 4e9, 4e9, 4e9]


def test_the_record_counts_the_passes_of_rings_and_exchanges():
    """Derived, not fitted: a ring writes, reads and writes; an exchange reads first."""
    found = load_sharing_constants(H100)
    assert (found.ring_passes, found.exchange_passes) == (3.0, 4.0)


def test_protocols_move_their_flags_through_memory():
    ll = Setting("ring", "ll", 8, 512, 32768)
    nvls = Setting("nvls", "simple", 16, 640, 131072)
    assert CONSTANTS.passes("all-reduce", ll) == 5.0
    assert CONSTANTS.passes("all-reduce", nvls) == 2.0


def test_what_kernels_lose_to_a_collective_is_what_their_rates_say():
    gpu = H100
    rates = RatesOfLoads(gpu, load_sharing_constants(gpu))
    load = CollectiveLoad(8, 1 << 19, 0.2 * gpu.memory_bytes_per_s, "", 0.5)
    kernels = {
        KernelLoad(0.3, 0.0, 0): 2.0,
        KernelLoad(0.9, 1.0, 1000, seconds=1e-4): 3.0,
        KernelLoad(0.6, 0.5, 40, seconds=2e-5): 0.5,
    }
    found = {one: rates.of(one, (load,)) for one in kernels}
    lost = sum(s * (1.0 - found[one].running) for one, s in kernels.items())
    done = sum(s * found[one].flying[0] for one, s in kernels.items())
    assert 0 < rates.mix(kernels).lost(load) == lost / done
    # Another mix of the same kernels takes what is known of them.
    fewer = dict(list(kernels.items())[1:])
    assert rates.mix(fewer).lost(load) != lost / done
