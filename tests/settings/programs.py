"""Random steps on real clusters: kernels, collectives of every kind, loops, branches."""

import functools
import itertools

import numpy as np
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.work import Matmul, Work
from lagom_jax.program.program import (
    Branch,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Stream,
    Wait,
)
from lagom_jax.settings.controls import FINE, named
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

from ..cost.programs import collective

CLUSTERS = ("h100:2x8", "b200:1x8", "a40-nvlink:2x8", "a40-pcie:2x8", "gb200-nvl72")
KINDS = (
    *("all-gather", "all-reduce", "reduce-scatter"),
    *("all-to-all", "collective-permute", "collective-broadcast"),
)


@functools.cache
def model_of(cluster):
    """One for all programs of a cluster: what it remembers must not matter."""
    return CostModel.of(Cluster.parse(cluster))


def stage_of(step, cluster, controls="tuner", grid=FINE):
    model = model_of(cluster)
    return Stage(step, space_of(step, model.cluster, named(controls), grid), model)


def matmul(m, n, k):
    product = Matmul(1, m, n, k, "bf16", "bf16", "bf16")
    work = Work("matmul", product.flops, 2 * k * (m + n), 2 * m * n, (product,))
    return Kernel(f"matmul {m}x{n}x{k}", work)


def copy(nbytes):
    return Kernel(f"copy {nbytes}", Work("copy", 0.0, nbytes, nbytes))


def groups(cluster, how):
    """Of all devices, of a domain, across domains, or of one device each."""
    devices, domain = cluster.devices, cluster.scale_up_size
    everyone = np.arange(devices)
    if how == "ring":
        return Groups(np.stack([everyone, np.roll(everyone, -1)], 1), True)
    if how == "domain":
        return Groups(everyone.reshape(-1, min(domain, devices)))
    if how == "across":
        return Groups(everyone.reshape(-1, min(domain, devices)).T)
    return Groups(everyone.reshape(1, -1) if how == "all" else everyone.reshape(-1, 1))


def site(cluster, kind, nbytes, how="all", **more):
    """A collective of so many bytes on the larger side."""
    among = groups(cluster, "ring" if kind == "collective-permute" else how)
    size = 1 if among.point_to_point else among.size
    operand = max(1, nbytes // size) if kind == "all-gather" else nbytes
    result = max(1, nbytes // size) if kind == "reduce-scatter" else nbytes
    settings = {
        "kind": kind,
        "groups": among,
        "operands": (("bf16", operand),),
        "result_bytes": result,
    }
    return collective(f"{kind} of {nbytes} {how}", **{**settings, **more})


BYTES = st.sampled_from([1 << n for n in range(10, 31, 2)] + [157_000_000, 3_000_000])
SIZES = st.sampled_from([256, 1024, 2560, 4096, 10240])
KERNELS = st.one_of(
    st.builds(matmul, SIZES, SIZES, SIZES),
    st.builds(copy, st.sampled_from([1 << 16, 1 << 22, 1 << 27])),
)


@st.composite
def sites(draw, cluster, kinds=KINDS, sizes=BYTES):
    kind = draw(st.sampled_from(kinds))
    how = draw(st.sampled_from(["all", "all", "domain", "across", "one"]))
    nbytes = draw(sizes)
    one_shot = kind == "all-reduce" and nbytes <= 1 << 18 and draw(st.booleans())
    made = site(cluster, kind, nbytes, how, one_shot_kernel=one_shot)
    if kind in ("all-gather", "all-reduce") and draw(st.integers(0, 3)) == 0:
        count = draw(st.integers(2, 40))
        part = (made.operands[0][0], max(1, made.operands[0][1] // count))
        made = site(cluster, kind, nbytes, how, operands=(part,) * count)
    return made


@st.composite
def stretches(draw, found, token):
    """Some collectives: launched, kernels, waited for; or in order on compute."""
    launches, waits = [], []
    for made in found:
        how = draw(st.sampled_from(["sync", "collective", "collective", "send"]))
        streams = {"collective": Stream.COLLECTIVE, "send": Stream.SEND}
        if how == "sync":
            launches.append(Run(made))
            continue
        number = next(token)
        if how == "send" and draw(st.booleans()):
            launches.append(Launch(made, Stream.RECEIVE, number))
        else:
            launches.append(Launch(made, streams[how], number))
        waits.append(Wait((number,)))
    kernels = [Run(kernel) for kernel in draw(st.lists(KERNELS, max_size=3))]
    split = draw(st.integers(0, len(kernels)))
    nodes = [*launches, *kernels[:split], *waits[:1], *kernels[split:], *waits[1:]]
    if draw(st.integers(0, 4)) == 0 and waits:
        # Pipelined: an iteration waits for what the one before launched.
        nodes = [*waits[:1], *(node for node in nodes if node not in waits[:1])]
    how = draw(st.sampled_from(["once", "once", "loop", "branch"]))
    if how == "loop":
        return [Loop("l", tuple(nodes), draw(st.integers(0, 8)), True)]
    if how == "branch":
        return [Branch("b", (tuple(nodes), tuple(Run(k.task) for k in kernels)))]
    return nodes


@st.composite
def programs(draw, cluster, most=6, kinds=KINDS, sizes=BYTES):
    """A step with at most so many different collectives, some of them alike."""
    made = draw(st.lists(sites(cluster, kinds, sizes), max_size=most))
    token = itertools.count()
    nodes = []
    while made:
        count = draw(st.integers(1, len(made)))
        nodes += draw(stretches(made[:count], token))
        made = made[count:]
    nodes += [Run(kernel) for kernel in draw(st.lists(KERNELS, max_size=2))]
    return Program("random", tuple(nodes), cluster.devices)
