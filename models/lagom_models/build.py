"""From a name and a few numbers to a training step."""

import dataclasses

from lagom_jax import decompose
from lagom_jax.mesh.sizes import MeshSizes, StepBatch
from lagom_models.configs import ModelConfig, ModelError, config_for
from lagom_models.configs import tiny as shrink
from lagom_models.layout import PARALLELISMS, Layout
from lagom_models.model import Model
from lagom_models.step import TrainingStep

_MODEL_AXIS = 8


def parallelisms(name: str) -> tuple[str, ...]:
    """The ways to train a model in parallel.

    - `dp`: whole weights everywhere, gradients are added up;
    - `fsdp`: weights, gradients and moments cut over all devices;
    - `tp`: matrices cut over the model axis; `tp-sp`: activations between them cut
      along the sequence; `tp-sliced`: the batch in two parts, so that one part's
      collectives can travel while the other computes;
    - `cp`: sequences cut over the model axis, keys and values brought together;
    - `ep`: experts cut over the model axis, the batch in two parts likewise;
    - `pp`: the layers in stages along the model axis.

    Example:
        >>> parallelisms("mpt-7b")
        ('dp', 'fsdp', 'tp', 'tp-sp', 'tp-sliced', 'cp', 'pp')
    """
    dense = config_for(name).experts is None
    return tuple(p for p in PARALLELISMS if not (dense and p == "ep"))


def build(
    name: str,
    *,
    devices: int,
    parallelism: str = "fsdp",
    layers: int | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    scan: bool = True,
    remat: bool = True,
    tiny: bool = False,
    model_axis: int | None = None,
    experts_axis: int = 1,
    stage_axis: int = 1,
    shard_data: bool | None = None,
    micro_batches: int | None = None,
    accumulate: int = 1,
    capacity_factor: float | None = None,
    tp: str | None = None,
    sp: str | None = None,
    form: decompose.Form | None = None,
    attention: str = "plain",
    learning_rate: float = 3e-4,
) -> TrainingStep:
    """Builds a training step on a mesh without devices.

    Args:
        name: The model; see `names`.
        devices: How many devices there are in all.
        parallelism: See `parallelisms`.
        layers: How many layers, if not as published.
        batch: Sequences in one micro batch of one replica. A replica is one device,
            under `tp` and `pp` the devices along the model axis.
        sequence: Tokens per sequence; 2048 unless the model is made for fewer.
        scan: Whether the layers are one loop; otherwise they are written out.
        remat: Whether the backward pass computes each layer's forward again.
        tiny: Shrinks the model to a size that trains on a CPU.
        model_axis: Devices along the model axis, 8 by default; `dp` and
            `fsdp` have none.
        experts_axis: Devices that experts are cut over beside a `tp` model axis.
        stage_axis: Stages of a pipeline beside the model axis of `tp` or `ep`.
        shard_data: Whether weights are cut over the replicas as well; so they are,
            unless under `dp`.
        micro_batches: How many micro batches follow each other in a pipeline; two
            for each stage.
        accumulate: How many micro batches the gradients of a step are added up over,
            where there is no pipeline.
        capacity_factor: Slots of each expert over its even share of the tokens; 1.25.
        tp: `commfuse` fuses the all-reduces of `tp` with the matmuls before them.
        sp: `commfuse` fuses the all-gathers and reduce-scatters of `tp-sp` with the
            matmuls next to them.
        form: The form in which they are fused; by default rings.
        attention: `plain` writes the scores to memory; `cudnn` is one kernel of the
            library, as long sequences are trained.
        learning_rate: Of adamw.

    Raises:
        ModelError: If a name is unknown or a size does not divide.

    Example:
        >>> step = build("llama-3-8b", devices=64)
        >>> print(step.describe())
        llama-3-8b fsdp: 8.03 billion weights, cut along the data axis; 32 layers,
        scanned, recomputed for the backward pass; mesh data=64; 64 sequences of 2048
        tokens
    """
    config = config_for(name)
    if parallelism not in parallelisms(name):
        raise ModelError(
            f"{name} cannot be trained by {parallelism!r}; "
            f"its choices are: {', '.join(parallelisms(name))}"
        )
    config = shrink(config) if tiny else config
    if layers is not None:
        config = dataclasses.replace(config, layers=layers)
    if capacity_factor is not None and config.experts is not None:
        experts = dataclasses.replace(config.experts, capacity_factor=capacity_factor)
        config = dataclasses.replace(config, experts=experts)
    if attention == "cudnn":
        if config.rotary is None:
            raise ModelError(
                f"{name} has ALiBi positions, a bias as large as the scores: its "
                "attention is plain"
            )
        if parallelism == "cp":
            raise ModelError("cp is built with plain attention")
        config = dataclasses.replace(config, attention="cudnn")
    elif attention != "plain":
        raise ModelError(f"attention is plain or cudnn, not {attention!r}")
    sequence = min(2048, config.sequence) if sequence is None else sequence
    batch = config.micro_batch[parallelism.split("-")[0]] if batch is None else batch
    layout = _layout(
        parallelism, devices, model_axis, shard_data, experts_axis, stage_axis
    )
    if experts_axis > 1 and config.experts is None:
        raise ModelError(f"{name} has no experts: leave out experts_axis")
    fused = _fused(config, parallelism, tp, sp, form)
    layout = dataclasses.replace(layout, fused=fused)
    count = (micro_batches or 2 * layout.stages) if layout.pipeline else 1
    if accumulate < 1 or (accumulate > 1 and layout.pipeline):
        raise ModelError(
            f"accumulate={accumulate}: at least 1, and 1 in a pipeline, whose "
            "micro_batches are added up"
        )
    _check(config, layout, batch=batch, sequence=sequence, micro_batches=count)
    replicas = layout.replicas // layout.stages
    beside = "".join(
        f" x {word}"
        for word, size in (("ep", experts_axis), ("pp", stage_axis))
        if size > 1
    )
    return TrainingStep.assemble(
        f"{name} {parallelism}{beside}{'' if fused is None else ' commfuse'}",
        Model.create(
            *(config, layout),
            scan=scan,
            remat=remat,
            micro_batches=count,
            accumulate=accumulate,
        ),
        batch=batch * count * accumulate * replicas,
        sequence=sequence,
        learning_rate=learning_rate,
    )


def build_on(
    name: str,
    sizes: MeshSizes,
    batch: StepBatch,
    *,
    layers: int | None = None,
    tiny: bool = False,
) -> TrainingStep:
    """Builds a training step on a mesh that `lagom_jax.mesh` chose.

    Args:
        name: The model; see `names`.
        sizes: The mesh. One of `data` and `fsdp` may be above 1.
        batch: What a step is trained on.
        layers: How many layers, if not as published.
        tiny: Shrinks the model to a size that trains on a CPU.

    Raises:
        ModelError: No step can be built so.

    Example:
        >>> from lagom_jax.mesh import MeshSizes, StepBatch
        >>> step = build_on("llama-3-8b", MeshSizes(fsdp=8), StepBatch(16, 2048))
        >>> step.batch, step.model.accumulate
        (16, 2)
    """
    names = ("sequence", "tensor", "expert", "pipeline")
    inner = [name for name in names if getattr(sizes, name) > 1]
    other = [
        words
        for words, met in (
            ("sequence beside another axis", sizes.sequence > 1 and len(inner) > 1),
            ("both data and fsdp above 1", sizes.data > 1 and sizes.fsdp > 1),
            ("interleaved stages", sizes.interleave > 1),
            ("the selective remat", sizes.remat == "selective"),
        )
        if met
    ]
    if other:
        raise ModelError(f"models of the zoo are not built with {', '.join(other)}")
    count = batch.micro_batches(sizes)
    if not count:
        raise ModelError(
            f"{batch.sequences} sequences do not divide over {sizes.replicas} replicas "
            f"with micro batches of {sizes.micro_batch}"
        )
    ways = {"tensor": "tp-sp" if sizes.tensor_sequence else "tp", "expert": "ep"}
    ways["sequence"] = "cp"
    alone = "fsdp" if sizes.sharded else "dp"
    way = ways.get(inner[0], "pp") if inner else alone
    # The first has the model axis, the others have axes of their own.
    beside = {name: getattr(sizes, name) for name in inner[1:]}
    staged = sizes.pipeline > 1
    return build(
        name,
        devices=sizes.devices,
        parallelism=way,
        layers=layers,
        batch=sizes.micro_batch,
        sequence=batch.length,
        remat=sizes.remat == "full",
        tiny=tiny,
        model_axis=getattr(sizes, inner[0]) if inner else None,
        experts_axis=beside.get("expert", 1),
        stage_axis=beside.get("pipeline", 1),
        shard_data=sizes.sharded,
        micro_batches=count if staged else None,
        accumulate=1 if staged else count,
    )


def _layout(
    parallelism: str,
    devices: int,
    model_axis: int | None,
    shard_data: bool | None,
    experts: int,
    stage: int,
) -> Layout:
    if devices < 1 or (model_axis is not None and model_axis < 1):
        raise ModelError("devices and model_axis must be at least 1")
    if min(experts, stage) < 1 or devices % (experts * stage):
        raise ModelError(
            f"experts_axis={experts} times stage_axis={stage} does not divide "
            f"{devices} devices"
        )
    if (stage > 1 and not parallelism.startswith(("tp", "ep"))) or (
        experts > 1 and not parallelism.startswith("tp")
    ):
        raise ModelError(
            f"{parallelism} has no further axis: stage_axis goes with tp and ep, "
            "experts_axis with tp"
        )
    devices //= experts * stage
    if parallelism in ("dp", "fsdp"):
        if model_axis not in (None, 1):
            raise ModelError(
                f"{parallelism} has no model axis: leave out model_axis "
                "(--model-axis), or choose another parallelism"
            )
        model = 1
    else:
        model = _MODEL_AXIS if model_axis is None else model_axis
    if devices % model:
        raise ModelError(
            f"model_axis={model} (--model-axis) does not divide {devices} devices; "
            f"it can be: {_divisors(devices)}"
        )
    if shard_data is None:
        shard_data = parallelism != "dp"
    return Layout(
        *(parallelism, devices // model, model, shard_data),
        experts=experts,
        stage=stage,
    )


def _fused(
    config: ModelConfig,
    parallelism: str,
    tp: str | None,
    sp: str | None,
    form: decompose.Form | None,
) -> decompose.Form | None:
    for option, asked, way in (("tp", tp, "tp"), ("sp", sp, "tp-sp")):
        if asked in (None, "plain"):
            continue
        if asked != "commfuse":
            raise ModelError(f"{option} is plain or commfuse, not {asked!r}")
        if parallelism != way:
            raise ModelError(
                f"{option}='commfuse' (--{option}) goes with --parallelism {way}, "
                f"not {parallelism}"
            )
        if config.experts is not None:
            raise ModelError(
                f"{option}='commfuse' (--{option}): the collectives of a mixture's "
                "experts are not fused; choose a dense model"
            )
        return decompose.Form() if form is None else form
    if form is not None:
        raise ModelError("a form is of use with tp='commfuse' or sp='commfuse' only")
    return None


def _check(
    config: ModelConfig,
    layout: Layout,
    *,
    batch: int,
    sequence: int,
    micro_batches: int,
) -> None:
    """Refuses what does not divide, in the words of the caller."""
    if config.layers <= config.dense_layers or min(batch, sequence) < 1:
        raise ModelError(
            f"batch and sequence must be at least 1 and layers at least "
            f"{config.dense_layers + 1}"
        )
    axis = layout.model
    wanted = [("batch", batch, layout.slices, "the parts of the batch")]
    if layout.tensor:
        wanted.append(("key-value heads", config.kv_heads, axis, "model_axis"))
        wanted.append(("vocabulary", config.vocabulary, axis, "model_axis"))
    fused = layout.tensor and layout.fused is not None
    if layout.context or layout.sequence or fused:
        wanted.append(("sequence", sequence, axis, "model_axis"))
    if layout.expert and config.experts is not None:
        parts = layout.size((layout.expert_axis,))
        named = f"{layout.expert_axis}_axis"
        wanted.append(("experts", config.experts.count, parts, named))
    if layout.pipeline:
        layers = config.layers - config.dense_layers
        named = f"{layout.pipeline_axis}_axis"
        wanted.append(("layers of the pipeline", layers, layout.stages, named))
        wanted.append(("micro_batches", micro_batches, layout.stages, named))
    for what, size, parts, named in wanted:
        if size % parts:
            raise ModelError(
                f"{what}: {size} does not divide by {parts}, {named}; what divides "
                f"it: {_divisors(size)}"
            )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
