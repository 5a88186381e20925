"""What can be told apart, what can be set, and that windows alike are replayed once."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.replay import replay
from lagom_jax.cost.span import span_of
from lagom_jax.cost.timeline import Totals
from lagom_jax.hlo.groups import Groups
from lagom_jax.plan.setting import MOST_CHANNELS, Call, Cap, Setting
from lagom_jax.program.program import Launch, Program, Run, Stream, Wait
from lagom_jax.program.windows import windows
from lagom_jax.settings.arms import decided
from lagom_jax.settings.calls import aggregated, calls_of
from lagom_jax.settings.controls import PRESETS, ControlsError, named
from lagom_jax.settings.neighbours import NearbyCandidates
from lagom_jax.settings.policy import replaced
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

from .programs import matmul, model_of, programs, site, stage_of

H100 = Cluster.parse("h100:2x8")
MIB = 1 << 20


def step(*sites):
    return Program("p", tuple(map(Run, sites)), H100.devices)


def space(controls, *sites):
    return space_of(step(*sites), H100, named(controls))


def gather(mib, how="all", **more):
    return site(H100, "all-gather", mib * MIB, how, **more)


def combined(*mib, kind="bf16"):
    """One launch of several operands, gathered over all devices."""
    parts = tuple((kind, n * MIB // H100.devices) for n in mib)
    return gather(sum(mib), operands=parts)


@pytest.mark.parametrize(
    ("operands", "calls"),
    [
        ([("bf16", 100)], (100,)),
        # All below four times the smallest go together.
        ([("bf16", 100), ("bf16", 399)], (499,)),
        ([("bf16", 100), ("bf16", 400)], (100, 400)),
        # In ascending size, whatever the order; four times the first, not the last.
        ([("bf16", 900), ("bf16", 100), ("bf16", 300)], (400, 900)),
        ([("bf16", 100), ("bf16", 300), ("bf16", 900), ("bf16", 3000)], (400, 3900)),
        # Each element type by itself.
        ([("f32", 100), ("bf16", 200), ("f32", 100)], (200, 200)),
        ([], ()),
    ],
)
def test_operands_are_taken_together_as_nccl_does(operands, calls):
    assert aggregated(tuple(operands)) == calls


def test_a_call_counts_bytes_on_the_larger_side():
    for kind in ("all-gather", "reduce-scatter", "all-reduce"):
        made = site(H100, kind, 16 * MIB)
        call = Call(kind, 16, 2, 16 * MIB)
        assert calls_of(made, span_of(made.groups, H100)) == (call,)


def test_a_tuner_tells_sizes_groups_and_functions_apart():
    sites = [
        *(gather(16), gather(16), gather(32)),
        gather(16, "domain"),
        site(H100, "reduce-scatter", 16 * MIB),
    ]
    found = space("tuner", *sites)
    assert [len(group.sites) for group in found.groups] == [2, 1, 1, 1]
    assert len({group.name for group in found.groups}) == 4


def test_sites_that_share_a_call_share_a_group():
    """The third makes the calls of the first and of the second, and so joins them."""
    small, large, both = combined(1, 1), combined(16), combined(1, 1, 16)
    assert [len(g.sites) for g in space("tuner", small, large).groups] == [1, 1]
    (group,) = space("tuner", small, large, both).groups
    assert group.sites == (small, large, both)
    assert [(call.bytes, call.operands) for call in group.calls] == [
        (2 * MIB, 2),
        (2 * MIB, 3),
        (16 * MIB, 1),
        (16 * MIB, 3),
    ]


def test_a_tuner_that_counts_tells_everything_apart():
    sites = [gather(16), gather(16)]
    assert [g.sites for g in space("sequence", *sites).groups] == [(s,) for s in sites]


def test_caps_are_one_for_collectives_and_one_for_sends():
    sites = [
        *(gather(16), site(H100, "all-reduce", MIB)),
        *(site(H100, kind, MIB) for kind in ("all-to-all", "collective-permute")),
    ]
    collectives, sends = space("caps", *sites).groups
    assert collectives.sites == tuple(sites[:2])
    assert sends.sites == tuple(sites[2:])
    assert all(isinstance(c, Cap) for c in collectives.candidates[1:])
    # Over two hosts a communicator has 16 channels, so 16 is no cap.
    assert sends.candidates == (None, Cap(1), Cap(2), Cap(4), Cap(8))


@pytest.mark.parametrize("controls", PRESETS)
def test_sends_are_only_capped(controls):
    (group,) = space(controls, site(H100, "all-to-all", MIB)).groups
    caps = [c.channels for c in group.candidates if isinstance(c, Cap)]
    assert caps == [1, 2, 4, 8]
    assert len(group.candidates) == 1 + len(caps)


def test_a_cap_leaves_the_rest_as_nccl_chooses():
    made = gather(256)
    (group,) = space("caps", made).groups
    usual = group.usual[0]
    for candidate in group.candidates[1:]:
        setting = group.setting(0, candidate)
        expected = min(usual.channels, candidate.channels)
        assert setting == dataclasses.replace(usual, channels=expected)


def test_what_can_be_set_under_which_controls():
    def settings(controls):
        (group,) = space(controls, site(H100, "all-reduce", 16 * MIB, "domain")).groups
        return [c for c in group.candidates if isinstance(c, Setting)]

    stock, fork = settings("tuner"), settings("fork")
    usual = {(s.algorithm, s.protocol): s.threads for s in stock}
    assert {a for a, _ in usual} == {"ring", "tree", "nvls"}
    assert len({(s.algorithm, s.protocol, s.threads) for s in stock}) == len(usual)
    assert max(s.channels for s in stock) < max(s.channels for s in fork)
    assert max(s.channels for s in fork) == MOST_CHANNELS
    assert len({s.threads for s in fork if s.protocol == "simple"}) > 5
    # A switch's channels are its hardware's.
    switched = {s.channels for s in fork if s.algorithm == "nvls"}
    assert switched == {s.channels for s in stock if s.algorithm == "nvls"}


def test_what_cannot_be_set():
    sites = [
        gather(1, "one"),
        site(H100, "all-reduce", 1 << 10, one_shot_kernel=True),
        site(H100, "collective-broadcast", MIB),
    ]
    found = space("tuner", *sites)
    assert found.groups == ()
    assert [made for made, _ in found.fixed] == sites


def test_a_collective_that_runs_twice_is_one_site():
    made = gather(16)
    assert [g.sites for g in space("tuner", made, made).groups] == [(made,)]


def test_unknown_controls():
    with pytest.raises(ControlsError, match="known are caps, tuner"):
        named("magic")


@pytest.mark.parametrize("controls", ["tuner", "caps"])
def test_every_candidate_can_be_reached_step_by_step(controls):
    for made in (gather(64), site(H100, "all-to-all", MIB)):
        (group,) = space(controls, made).groups
        near = NearbyCandidates(group)
        seen, ahead = set(), [0]
        while ahead:
            here = ahead.pop()
            if here not in seen:
                seen.add(here)
                around = near.of(here, group.usual[0])
                assert here not in around
                assert len(around) == len(set(around)) <= 6 + 10
                ahead += around
        everything = set(range(len(group.candidates)))
        assert everything - seen <= {0}


def layer(token, nbytes=16):
    made = gather(nbytes)
    kernels = (Run(matmul(1024, 1024, 1024)), Run(matmul(4096, 1024, 256)))
    return (Launch(made, Stream.COLLECTIVE, token), *kernels, Wait((token,)))


def test_windows_alike_are_replayed_once():
    nodes = [node for token in range(32) for node in layer(token)]
    stage = stage_of(Program("p", tuple(nodes), H100.devices), H100.name)
    (scene,) = stage.scenes
    assert scene.times == 32
    stage.score(stage.untouched)
    stage.score(stage.untouched)
    assert stage.replays == 1
    stage.score((1,))
    assert stage.replays == 2


def test_who_waits_for_a_communicator_is_not_like_who_does_not():
    """Listed in another order the same devices have another communicator."""
    other = gather(32)
    listed = Groups(other.groups.members[:, ::-1])
    other = dataclasses.replace(other, groups=listed)
    program = Program(
        "p",
        tuple(
            node
            for token, sync in enumerate((gather(32), other))
            for node in (
                *(Launch(gather(32), Stream.COLLECTIVE, token), Run(sync)),
                Wait((token,)),
            )
        ),
        H100.devices,
    )
    stage = stage_of(program, H100.name)
    assert len(stage.scenes) == 2
    model = model_of(H100.name)
    expected = replay(program, model, model.contention()).step_seconds
    found = stage.score(stage.untouched).step_seconds
    assert found == pytest.approx(expected, rel=1e-9)


class OneIsSlow:
    """Prices of a user who has measured one of two kernels that do the same."""

    def __init__(self, base):
        self._base = base
        self.collective = base.collective

    def kernel(self, kernel):
        price = self._base.kernel(kernel)
        seconds = price.seconds * (3.0 if kernel.name == "slow" else 1.0)
        return dataclasses.replace(price, seconds=seconds)


@pytest.mark.parametrize("correct", [OneIsSlow, lambda prices: prices])
def test_kernels_with_the_same_work_cost_what_each_was_measured_to(correct):
    usual = matmul(4096, 4096, 4096)
    slow = dataclasses.replace(usual, name="slow")
    nodes = (
        Launch(gather(64), Stream.COLLECTIVE, 0),
        Run(usual),
        Run(slow),
        Wait((0,)),
    )
    program = Program("p", nodes, H100.devices)
    model = model_of(H100.name)
    expected = replay(program, correct(model), model.contention()).step_seconds
    stage = Stage(program, space_of(program, H100, named("tuner")), model, correct)
    other = stage_of(program, H100.name).under(model, correct)
    for one in (stage, other):
        found = one.score(one.untouched).step_seconds
        assert found == pytest.approx(expected, rel=1e-9)


def test_windows_that_differ_are_not_taken_for_one_another():
    """In bytes, in a kernel, in a stream, in what may be set."""
    other = (layer(0)[0], Run(matmul(1024, 1024, 2048)), layer(0)[2], Wait((0,)))
    sent = gather(16)
    aside = (Launch(sent, Stream.SEND, 0), *layer(0)[1:])
    nodes = (*layer(0), *layer(0, 32), *other, *aside)
    program = Program("p", nodes, H100.devices)
    assert [scene.times for scene in stage_of(program, H100.name).scenes] == [1] * 4
    # A tuner that counts may choose differently for collectives that are alike.
    twice = Program("p", (*layer(0), *layer(1)), H100.devices)
    assert len(stage_of(twice, H100.name, "tuner").scenes) == 1
    assert len(stage_of(twice, H100.name, "sequence").scenes) == 2


def test_groups_that_meet_through_others_are_one_component():
    def beside(*mib):
        launches = [Launch(gather(n), Stream.COLLECTIVE, n) for n in mib]
        return (*launches, Run(matmul(1024, 1024, 1024)), Wait(mib))

    nodes = (*beside(1, 2), *beside(8), *beside(2, 4), *beside(16, 32))
    stage = stage_of(Program("p", nodes, H100.devices), H100.name)
    sizes = [group.calls[0].bytes // MIB for group in stage.space.groups]
    found = [[sizes[group] for group in members] for members in stage.components()]
    assert found == [[1, 2, 4], [8], [16, 32]]


def test_a_score_of_some_scenes_is_their_part_of_the_step():
    nodes = (*layer(0), *layer(1, 64))
    stage = stage_of(Program("p", nodes, H100.devices), H100.name)
    choice = replaced(stage.untouched, 1, 5)
    whole = stage.score(choice)
    parts = [stage.score(choice, [n]) for n in range(len(stage.scenes))]
    assert sum(p.step_seconds for p in parts) == pytest.approx(whole.step_seconds)
    assert whole.own_seconds == {**parts[0].own_seconds, **parts[1].own_seconds}


@given(st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_a_score_is_a_replay_of_the_windows_in_whatever_order(data):
    """To the last bit: what is remembered of another order must not matter."""
    step = data.draw(programs(H100))
    stage = stage_of(step, H100.name, "sequence")
    groups = stage.space.groups
    parts = (st.integers(0, len(group.candidates) - 1) for group in groups)
    choice = data.draw(st.tuples(*parts))
    stage.score(choice)
    blocks = [window.block for window in windows(decided(step, model_of(H100.name)))]
    turned = tuple(node for block in (*blocks[::-1], *blocks[:1]) for node in block)
    chosen = {
        made: group.setting(position, group.candidates[candidate])
        for group, candidate in zip(groups, choice, strict=True)
        for position, made in enumerate(group.sites)
        if candidate
    }
    model = model_of(H100.name).under(chosen)
    for other in (stage, stage.in_order(Program("p", turned, H100.devices))):
        totals, own = Totals(), {}
        for scene in other.scenes:
            timeline = replay(scene.program, model, model.contention())
            totals.add(timeline.totals, scene.times)
            for number in scene.groups:
                of_group = groups[number].sites
                found = [f.seconds for t, f in timeline.tasks.items() if t in of_group]
                if found:
                    own[number] = own.get(number, 0.0) + scene.times * sum(found)
        score = other.score(choice)
        assert (score.totals, score.own_seconds) == (totals, own)
