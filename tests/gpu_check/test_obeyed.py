"""Obedience: every difference is seen, and what NCCL does not have is none."""

import csv
import dataclasses

import pytest

from gpu_stages.obeyed import GENERATIONS, Asked, generation, judge
from gpu_stages.steering import Offer, offer
from lagom_jax.nccl_plugin import Answer, Rules, Scope
from lagom_jax.nccl_plugin.reference import ReferenceCommunicator
from lagom_jax.nccl_plugin.rules import FUNCTIONS
from lagom_jax.plan.setting import PROTOCOLS

from .staged import staged

CALL = Asked("all-gather", 1 << 22, Answer("ring", "simple", 8, 1 << 20))
HERE = Offer(32, frozenset({("all-gather", "ring", "simple")}), True)
CUT = "AllGather: tuner chunk size 1048576 exceeds buffer max 524288, clamping"


def ran(per_rank=1 << 21, how="RING", protocol="SIMPLE", channels=8):
    return (
        f"AllGather: {per_rank} Bytes -> Algo {how} proto {protocol} "
        f"channel{{Lo..Hi}}={{0..{channels - 1}}}"
    )


def judged(*lines, call=CALL, here=HERE):
    return judge(call, 0, here, [f"gpu:7:7 [0] NCCL INFO {line}" for line in lines])


def test_what_was_asked_is_done():
    assert not judged(CUT, ran(), CUT).why


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((CUT, ran(protocol="LL")), "it runs as ring/ll"),
        ((CUT, ran(how="TREE")), "it runs as tree/simple"),
        ((CUT, ran(channels=9)), "it takes 9 channels, not 8"),
        ((CUT, ran(channels=7)), "it takes only 7 channels of 8"),
        ((CUT, ran(per_rank=4)), "NCCL writes of another call: all-gather of 4 bytes"),
        ((), "it is one call, and NCCL writes of 0"),
        ((CUT, ran(), ran()), "it is one call, and NCCL writes of 2"),
        ((ran(),), "NCCL writes of chunks [] that it cut, not [1048576]"),
    ],
)
def test_what_is_done_otherwise_is_seen(lines, why):
    assert judged(*lines).why == why


def test_a_chunk_that_the_buffers_hold_is_not_written_of():
    answer = dataclasses.replace(CALL.answer, chunk_bytes=1 << 19)
    small = dataclasses.replace(CALL, answer=answer)
    assert not judged(ran(), call=small).why
    assert judged(CUT, ran(), call=small).why


def test_what_nccl_does_not_have_is_no_disobedience():
    none = dataclasses.replace(HERE, offered=frozenset())
    assert judged(ran(protocol="LL"), here=none) is None


def test_the_table_of_a_real_communicator_is_read():
    """Lines that NCCL 2.32.3 wrote for two ranks on one H200, a column less each."""
    other = "    -1.0/  -1.0 |" * 3
    lines = [
        "TUNER/Plugin: Using lagom (v6)",
        "  Algorithm   |                            Tree                  |"
        "                            Ring                  |",
        "  Protocol    |             LL |          LL128 |         Simple |"
        "             LL |          LL128 |         Simple |",
        f"    AllGather |{other}     7.6/ 282.0 |    16.5/2348.8 |    14.1/3840.0 |",
        "    AllReduce |     8.8/  23.2 |    17.8/  68.7 |    16.4/  88.3 |"
        "     8.6/ 141.0 |    19.0/1174.4 |    19.8/1920.0 |",
        "  Algorithm   |                    CollNetChain                  |"
        "                            NVLS                  |",
        "    AllGather |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |"
        "     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |",
        "32 coll channels, 32 collnet channels, 0 nvls channels, 32 p2p channels",
    ]
    found = offer(f"vm:685:713 [0] NCCL INFO {line}" for line in lines)
    rings = {
        (name, "ring", p) for name in ("all-gather", "all-reduce") for p in PROTOCOLS
    }
    trees = {("all-reduce", "tree", protocol) for protocol in PROTOCOLS}
    assert found == Offer(32, frozenset(rings | trees), True)


def test_a_small_call_may_take_fewer_channels_but_not_more():
    call = dataclasses.replace(CALL, nbytes=1 << 16)
    few = ran(per_rank=1 << 15, channels=2)
    assert not judged(CUT, few, call=call).why
    many = ran(per_rank=1 << 15, channels=16)
    assert judged(CUT, many, call=call).why


def test_a_communicator_with_fewer_channels_takes_all_it_has():
    few = dataclasses.replace(HERE, channels=4)
    assert not judged(CUT, ran(channels=4), here=few).why


def test_each_generation_asks_something_else_of_every_function():
    met = {function: set() for function in FUNCTIONS}
    for number in range(GENERATIONS):
        calls = generation(number)
        assert {call.function for call in calls} == set(FUNCTIONS)
        rules = Rules((Scope(2, rules=tuple(call.rule for call in calls)),))
        asked = ReferenceCommunicator(rules, ranks=2, hosts=1)
        for call in calls:
            assert asked.asked(call.function, call.nbytes) == call.answer
            met[call.function].add((call.answer.algorithm, call.answer.protocol))
        assert calls != generation(number + 1)
    ways = dict.fromkeys(FUNCTIONS, 3) | {"all-reduce": 6}
    assert {name: len(some) for name, some in met.items()} == ways


def test_a_dry_run_is_obeyed(tmp_path, monkeypatch):
    found = staged("obeyed", tmp_path, monkeypatch)
    assert found.verdict == "holds", found
    assert [check.value for check in found.outcome.checks] == [0, 0]
    assert not found.outcome.findings
    assert not found.outcome.left_out


def test_one_function_that_disobeys_refutes_it(tmp_path, monkeypatch):
    found = staged("obeyed", tmp_path, monkeypatch, disobeys="reduce")
    assert found.verdict == "refuted", found
    assert all(" reduce" in finding for finding in found.outcome.findings)
    with (tmp_path / "obeyed" / "calls.csv").open() as file:
        wrong = {row["name"].split()[0] for row in csv.DictReader(file) if row["why"]}
    assert wrong == {"reduce"}


def test_a_rank_that_hangs_refutes_it_and_is_explained(tmp_path, monkeypatch):
    found = staged("obeyed", tmp_path, monkeypatch, seconds=30.0, hangs=100)
    assert found.verdict == "refuted", found
    assert "HungError" in found.outcome.findings[0]
