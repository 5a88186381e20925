"""Small steps, compiled once for all tests that look at them."""

import functools

import lagom_models
from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.hlo import read_module
from lagom_jax.program.build import build_program

from ..compile.conftest import mesh
from ..compile.overlapping import OPTIONS, overlapping_step

CLUSTERS = {
    "chain": "h100:1x8",
    "fsdp": "h100:2x8",
    "fsdp unrolled": "h100:2x8",
    "tp-sliced": "h100:2x8",
}


@functools.cache
def lowered(step):
    """`chain`: six gathered weights, one after another; or tiny llamas."""
    if step == "chain":
        function, arguments = overlapping_step(mesh(8))
        return lower(function, *arguments)
    how, _, unrolled = step.partition(" ")
    built = lagom_models.build(
        "llama-3-8b", devices=16, tiny=True, parallelism=how, scan=not unrolled
    )
    return lower(built.function, *built.arguments)


@functools.cache
def model_of(step):
    return CostModel.of(Cluster.parse(CLUSTERS[step]))


def compile_again(step, **options):
    """A step with options, as a program."""
    usual = OPTIONS if step == "chain" else {}
    where = Cluster.parse(CLUSTERS[step])
    made = compile_step(lowered(step), where, {**usual, **options})
    return build_program(read_module(made.module_bytes))


@functools.cache
def compiled(step):
    """The program of a step as it is."""
    return compile_again(step)


def replayed(step):
    """Its replay."""
    model = model_of(step)
    return replay(compiled(step), model, model.contention())


def seconds_of(step):
    """What any collective would take alone."""
    model = model_of(step)
    return lambda site: model.collective(site).seconds
