"""What a model remembers is what it would work out again."""

import copy
import dataclasses
import itertools
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.arrays import arrays_of
from lagom_jax.cost.collective import CollectiveTerms
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.span import span_of
from lagom_jax.hlo.work import Matmul, Work
from lagom_jax.plan.setting import Setting
from lagom_jax.program.program import Kernel

from .programs import collective

CLUSTER = Cluster.parse("h100:2x8")
COLLECTIVES = [
    collective(
        "c",
        kind=kind,
        nbytes=size,
        ranks=ranks,
        operands=(("bf16", size),) * count,
        **more,
    )
    for kind in ("all-gather", "all-reduce")
    for size in (1 << 14, 1 << 26)
    for ranks in (range(8), range(16), range(0, 16, 2))
    for count, more in ((1, {}), (99, {}), (1, {"one_shot_kernel": True}))
]
SETTINGS = [
    None,
    Setting("ring", "simple", 2, 544, 512 << 10),
    Setting("ring", "simple", 2, 544, 64 << 10),
    Setting("ring", "simple", 8, 544, 512 << 10),
]
SQUARE = Matmul(1, 4096, 4096, 4096, "bf16", "bf16", "bf16")
KERNELS = [
    Kernel("k", work)
    for work in (
        Work("copy", 0.0, 1 << 28, 1 << 28),
        Work("transpose", 0.0, 1 << 28, 1 << 28),
        Work("matmul", SQUARE.flops, 1 << 26, 1 << 25, (SQUARE,)),
    )
]


def under(model, task, setting):
    return model if setting is None else model.under({task: setting})


@given(st.permutations(list(itertools.product(COLLECTIVES, SETTINGS))))
def test_prices_do_not_depend_on_what_was_asked_before(questions):
    model = CostModel.of(CLUSTER)
    for task, setting in questions:
        terms = CollectiveTerms.of(
            task.kind,
            float(task.bytes),
            span_of(task.groups, CLUSTER),
            CLUSTER,
            model.constants,
            arrays_of(task),
            one_shot=task.one_shot_kernel,
        )
        expected = terms.price(setting)
        assert under(model, task, setting).collective(task) == expected
        # Another that is like it.
        alike = copy.copy(task)
        assert under(model, alike, setting).collective(alike) == expected
    for kernel in KERNELS:
        expected = kernel_price(kernel.work, CLUSTER, model.constants)
        assert model.kernel(kernel) == model.kernel(copy.copy(kernel)) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, *KERNELS]),
            st.sampled_from(COLLECTIVES),
            st.sampled_from(SETTINGS),
        ),
        max_size=8,
    )
)
def test_speeds_do_not_depend_on_what_was_asked_before(questions):
    model = CostModel.of(CLUSTER)
    for kernel, task, setting in questions:
        found = under(model, task, setting).contention().rates(kernel, (task,))
        fresh = under(CostModel.of(CLUSTER), task, setting).contention()
        assert found == fresh.rates(kernel, (task,))


def test_the_digest_is_of_all_constants_and_of_no_process():
    model = CostModel.of(CLUSTER)
    sharing = dataclasses.replace(model.constants.sharing, eviction=0.123)
    other = CostModel(CLUSTER, dataclasses.replace(model.constants, sharing=sharing))
    assert model.digest != other.digest
    script = (
        "from lagom_jax.cluster import Cluster; from lagom_jax.cost.model import "
        f"CostModel; print(CostModel.of(Cluster.parse({CLUSTER.name!r})).digest)"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == model.digest


def test_a_model_with_another_cluster_remembers_nothing():
    task = COLLECTIVES[0]
    model = CostModel.of(CLUSTER)
    known = model.collective(task)
    slower = Cluster.parse("h100:16x1")
    found = CostModel(slower, model.constants).collective(task)
    assert found == CostModel.of(slower).collective(task) != known


def test_the_same_groups_lie_differently_on_another_cluster():
    groups = collective("c", ranks=range(16)).groups
    spans = [
        span_of(groups, Cluster.parse(name))
        for name in ("h100:2x8", "gb200-nvl72:4x4", "h100:2x8")
    ]
    assert [span.domains for span in spans] == [2, 1, 2]
