"""The bytes that a step has to send, as `lagom_jax.mesh` works them out.

Bytes are per device and step, of the larger side of each collective: what a gather
returns, what a reduce-scatter reads, what the others read.
"""

from collections import defaultdict

from lagom_jax.mesh.flows import Flow
from lagom_jax.mesh.flows import flows as flows_of
from lagom_jax.mesh.frameworks import framework_named
from lagom_jax.mesh.sizes import AXES, Axes, MeshSizes, StepBatch
from lagom_models.step import TrainingStep

_PIPELINE_NEAR: Axes = ("pipeline", *(axis for axis in AXES if axis != "pipeline"))


def mesh_sizes(step: TrainingStep) -> MeshSizes:
    """The sizes of a step's mesh.

    Example:
        >>> from lagom_models import build
        >>> mesh_sizes(build("llama-3-8b", devices=64, parallelism="tp")).tensor
        8
    """
    model, layout = step.model, step.model.layout
    count = model.micro_batches * model.accumulate
    # A pipeline's stages share the batch of their replica.
    replicas = layout.replicas // layout.stages
    return MeshSizes(
        data=1 if layout.shard_data else layout.data,
        fsdp=layout.data if layout.shard_data else 1,
        tensor=layout.model if layout.tensor else 1,
        sequence=layout.model if layout.context else 1,
        expert=layout.size((layout.expert_axis,)),
        pipeline=layout.stages,
        micro_batch=step.batch // replicas // count,
        remat="full" if model.remat else "none",
        tensor_sequence=layout.sequence,
        sharded=layout.shard_data,
        order=_PIPELINE_NEAR,
    )


def flows(step: TrainingStep) -> tuple[Flow, ...]:
    """Everything that a step sends.

    Example:
        >>> from lagom_models import build
        >>> step = build("llama-3-8b", devices=8, parallelism="tp", tiny=True)
        >>> sum(flow.total for flow in flows(step) if flow.reason == "leaving matrices")
        589824
    """
    batch = StepBatch(step.batch, step.sequence)
    shape, how = step.model.config.shape, framework_named("xla")
    return flows_of(shape, mesh_sizes(step), batch, how)


def total_bytes(step: TrainingStep) -> dict[tuple[str, int], int]:
    """Bytes per device and step by kind of collective and number of participants.

    Example:
        >>> from lagom_models import build
        >>> step = build("llama-3-8b", devices=64, layers=1)
        >>> total_bytes(step)["all-reduce", 64]
        4
    """
    totals: defaultdict[tuple[str, int], int] = defaultdict(int)
    sizes = mesh_sizes(step)
    for flow in flows(step):
        totals[flow.kind, sizes.size(flow.axes)] += flow.total
    return dict(totals)
