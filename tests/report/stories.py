"""Reports and plans made by hand, for pages and traces."""

import dataclasses

from lagom_jax.cluster import Cluster
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad
from lagom_jax.hlo.work import Work
from lagom_jax.program.program import Kernel, Launch, Loop, Program, Run, Stream
from lagom_jax.report import report_program
from lagom_jax.report.figures import FigureSource
from lagom_jax.report.story import Story

from ..cost.programs import ByName, collective, wait
from ..plan.plans import made_by_hand

CLUSTER = Cluster.parse("h100:1x2")


class Loads:
    """What tasks take, the same for all."""

    def kernel_load(self, kernel):
        return KernelLoad(0.5, 0.0, 0)

    def collective_load(self, collective):
        return CollectiveLoad(16, 1 << 19, 3e11, "nvlink", 0.8)


class Prices(ByName):
    """Two thirds of a link are used."""

    def collective(self, collective):
        return dataclasses.replace(super().collective(collective), resource_share=0.66)


def kernel(name, kind="matmul"):
    return Kernel(name, Work(kind, 1e9, 1 << 20, 1 << 20))


def step(*, layers=12, name="train_step", hidden=2e-3, extra=""):
    """Layers in a loop, an all-gather beside a matmul in each; then an all-reduce."""
    gather = collective(
        f"all-gather-start.1{extra}",
        nbytes=1 << 26,
        op_name=f"jit(f)/while/body/mlp.up{extra}/all_gather",
        source=f"/home/me/train{extra}.py:12",
    )
    scatter = collective(f"reduce-scatter-start.2{extra}", kind="reduce-scatter")
    reduce = collective(
        f"all-reduce.3{extra}", kind="all-reduce", nbytes=1 << 12, is_sync=True
    )
    body = (
        Launch(gather, Stream.COLLECTIVE, 1),
        Run(kernel(f"gemm.1{extra}")),
        Run(kernel(f"add.1{extra}", "fusion")),
        wait(1),
        Launch(scatter, Stream.COLLECTIVE, 2),
        Run(kernel(f"gemm.2{extra}")),
        wait(2),
    )
    seconds = {
        gather.name: 4e-3,
        scatter.name: 1e-3,
        reduce.name: 1e-4,
        f"gemm.1{extra}": hidden,
        f"gemm.2{extra}": 2e-3,
        f"add.1{extra}": 1e-4,
    }
    nodes = (Loop(f"while.1{extra}", body, layers, True), Run(reduce))
    return Program(name, nodes, 2), Prices(seconds)


def reported(**more):
    program, prices = step(**more)
    return report_program(
        program,
        CLUSTER,
        prices,
        pricing="estimated: by hand",
        name=program.name,
        description="12 layers, made by hand",
        peak_memory_bytes=7 * 10**9,
        loads=Loads(),
        sources=[FigureSource("times of matmuls", "estimated", "made by hand")],
    )


def story():
    """Before, after and a plan, all of their own: their figures do not agree."""
    return Story(
        reported(), reported(hidden=4e-3), made_by_hand(), "train.py:make_step"
    )


def many(sites):
    """A report with so many collectives, each of a layer of its own."""
    nodes, seconds = [], {"k": 5e-5}
    for number in range(sites):
        gather = collective(
            f"all-gather-start.{number}",
            nbytes=1 << (16 + number % 8),
            op_name=f"jit(f)/layers_{number}.mlp/all_gather",
            source=f"/home/me/train.py:{number % 7}",
        )
        seconds[gather.name] = 1e-4 * (1 + number % 5)
        nodes += [
            Launch(gather, Stream.COLLECTIVE, number + 1),
            Run(kernel("k")),
            wait(number + 1),
        ]
    return report_program(
        Program("many", tuple(nodes), 2),
        CLUSTER,
        Prices(seconds),
        pricing="estimated: by hand",
        loads=Loads(),
    )
