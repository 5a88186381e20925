"""Rules for sizes: in every arrangement the plugin finds the one that holds."""

import bisect
import itertools
import random
import struct
import zlib

import pytest

from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin.image import pack, save, unpack
from lagom_jax.nccl_plugin.library import Communicator, opened
from lagom_jax.nccl_plugin.pieces import code_of
from lagom_jax.nccl_plugin.reference import ReferenceCommunicator
from lagom_jax.nccl_plugin.rules import MOST_BYTES, Answer, Rule, Rules, Scope

from .hosted import random_rules


def each(sizes):
    """An answer for each size and none between."""
    return [(nbytes, nbytes) for nbytes in sizes]


def touching(sizes):
    edges = sorted(set(sizes))
    return [(a, b - 1) for a, b in itertools.pairwise(edges)]


def clusters(draw, each_has):
    """Each of sizes that lie closer than any code can tell from the next cluster."""
    begins = [draw.randrange(1 << 20, 1 << 60) for _ in range(40)]
    return sorted({n + 3 * i for n in begins for i in range(each_has)})


ARRANGEMENTS = {
    "one": lambda draw: [(1 << 20, 1 << 20)],
    "all sizes": lambda draw: [(0, MOST_BYTES)],
    "ends of all sizes": lambda draw: [(0, 0), (MOST_BYTES, MOST_BYTES)],
    "only the largest": lambda draw: each(range(MOST_BYTES - 9, MOST_BYTES + 1)),
    "only the smallest": lambda draw: each(range(0, 40, 2)),
    "powers of two": lambda draw: each(1 << n for n in range(64)),
    "as many small as large": lambda draw: touching(
        int(2 ** draw.uniform(0, 50)) for _ in range(2000)
    ),
    "equally far": lambda draw: each((1 << 30) + 64 * n for n in range(2000)),
    "clusters": lambda draw: each(clusters(draw, 30)),
    "touching in clusters": lambda draw: touching(clusters(draw, 30)),
    "one far away": lambda draw: [*each(range(2000)), (1 << 62, 1 << 62)],
}


def ruled(arrangement, differs=lambda number: None):
    rules = tuple(
        Rule("all-gather", least, most, Answer(channels=1 + n % 64), differs(n))
        for n, (least, most) in enumerate(arrangement)
    )
    return Rules((Scope(8, rules=rules),))


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_the_rule_that_holds_is_found(plugin, tmp_path, name):
    arrangement = ARRANGEMENTS[name](random.Random(name))
    save(ruled(arrangement), tmp_path / "rules")
    edges = {edge for both in arrangement for edge in both} | {0, MOST_BYTES}
    sizes = {edge + by for edge in edges for by in (-1, 0, 1)}
    begins = [least for least, _ in arrangement]
    with opened(plugin, {"LAGOM_TUNER_RULES": str(tmp_path / "rules")}) as tuner:
        one = Communicator(tuner, ranks=8, hosts=1, domains=1)
        for nbytes in sizes:
            if not 0 <= nbytes <= MOST_BYTES:
                continue
            number = bisect.bisect_right(begins, nbytes) - 1
            holds = number >= 0 and nbytes <= arrangement[number][1]
            wanted = Answer(channels=1 + number % 64) if holds else None
            assert one.ask("all-gather", nbytes) == wanted, nbytes
        one.close()


def test_rules_that_differ_by_operations_lie_among_others(plugin, tmp_path):
    overlapping = [(n // 3 * 100, n // 3 * 100 + 70 * (n % 3)) for n in range(300)]
    rules = ruled(overlapping, lambda number: (2, None, 1)[number % 3])
    save(rules, tmp_path / "rules")
    wanted = ReferenceCommunicator(rules, ranks=8, hosts=1)
    with opened(plugin, {"LAGOM_TUNER_RULES": str(tmp_path / "rules")}) as tuner:
        one = Communicator(tuner, ranks=8, hosts=1, domains=1)
        for nbytes in range(0, 10_200, 10):
            for pipe_ops in (0, 1, 2, 3):
                call = ("all-gather", nbytes, pipe_ops)
                assert one.ask(*call) == wanted.told(*call), call
        one.close()


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_codes_grow_and_do_not_cost_more_than_the_rules(name):
    arrangement = ARRANGEMENTS[name](random.Random(name))
    image = pack(ruled(arrangement))
    assert len(image) <= 1024 + 60 * len(arrangement)


@pytest.mark.parametrize(("linear", "bits"), [(0, 0), (3, 3), (5, 2), (63, 0), (40, 9)])
def test_codes_leave_no_number_out(linear, bits):
    ends = {(1 << n) + by for n in range(64) for by in (-1, 0, 1)}
    codes = [code_of(n, linear, bits) for n in sorted(ends | set(range(2000)))]
    assert codes[0] == 0
    assert codes == sorted(codes)
    steps = [code_of(n, linear, bits) for n in range(5000)]
    assert all(b - a in (0, 1) for a, b in itertools.pairwise(steps))


LIES = {
    "nothing": (lambda at: 0, b""),
    "no such algorithm": (lambda at: at["pieces"] + 16 + 8, b"\x07"),
    "no such protocol": (lambda at: at["pieces"] + 16 + 9, b"\x03"),
    "more channels than there are": (lambda at: at["pieces"] + 16 + 10, b"\x41"),
    "alone and more": (lambda at: at["pieces"] + 16 + 11, b"\x02"),
    "sizes below the first piece": (lambda at: at["pieces"], b"\x01"),
    "pieces that descend": (lambda at: at["pieces"] + 2 * 16 + 7, b"\xff"),
    "no such choice": (lambda at: at["pieces"] + 2 * 16 + 12, b"\x02"),
    "choices without an end": (lambda at: at["starts"] - 4, b"\x01"),
    "no such piece": (lambda at: at["end"] - 4, b"\x7f"),
    "starts that descend": (lambda at: at["starts"], b"\x7f"),
    "codes without starts": (lambda at: at["scopes"] + 16 + 20, b"\xff"),
    "pieces of nobody": (lambda at: at["scopes"] + 16 + 12, b"\xff"),
    "no exponent": (lambda at: at["scopes"] + 16 + 24, b"\x40"),
    "more bits than the exponent has": (lambda at: at["scopes"] + 16 + 28, b"\x3f"),
}


@pytest.mark.parametrize("name", LIES)
def test_an_image_that_lies_is_ignored(plugin, tmp_path, name):
    """Its checksum is right: only what it says is not."""
    scope = Scope(
        8,
        rules=(
            Rule("broadcast", 1, 1, Answer("ring", "simple")),
            Rule("broadcast", 2, 2, Answer(channels=2), pipe_ops=2),
        ),
    )
    image = bytearray(pack(Rules((scope,))))
    pieces, items, anchors, scopes, choices, _ = struct.unpack_from("<6I", image, 24)
    assert (items, anchors, scopes, choices) == (0, 0, 1, 2)
    at = {"pieces": 64, "scopes": 64 + 16 * pieces, "end": len(image)}
    at["starts"] = at["scopes"] + 192 + 12 * choices
    where, lie = LIES[name]
    image[where(at) : where(at) + len(lie)] = lie
    struct.pack_into("<I", image, 12, zlib.crc32(image[16:]))
    (tmp_path / "rules").write_bytes(image)
    with opened(plugin, {"LAGOM_TUNER_RULES": str(tmp_path / "rules")}) as tuner:
        one = Communicator(tuner, ranks=8, hosts=1, domains=1)
        told = one.ask("broadcast", 1), one.ask("broadcast", 2, 2)
        one.close()
    held = (Answer("ring", "simple"), Answer(channels=2))
    assert told == (held if name == "nothing" else (None, None))


def test_no_more_rules_are_written_than_the_plugin_reads(monkeypatch):
    image = pack(ruled([(1, 1)]))
    monkeypatch.setattr("lagom_jax.nccl_plugin.image.LARGEST", len(image))
    assert pack(ruled([(1, 1)])) == image
    with pytest.raises(TunerError, match="too many rules"):
        pack(ruled([(1, 1), (2, 2)]))


@pytest.mark.parametrize("seed", range(5))
def test_rules_that_are_read_back_decide_the_same(seed):
    rules, _, _ = random_rules(random.Random(seed), 300, places=True)
    image = pack(rules)
    assert pack(unpack(image)) == image
