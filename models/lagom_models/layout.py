"""The layout of weights and data on devices, and the collectives that layers use.

The step runs under `jax.shard_map`: every device runs the same program on its own
shards, and each collective below is one that the code asks for. Mesh axes:

- `data`: batches are cut over it, and under FSDP every weight as well;
- `model`: what the parallelism names. Tensor parallelism cuts weights over it, context
  parallelism sequences, expert parallelism the experts, a pipeline the layers into
  stages;
- `experts` and `stage`: experts or stages beside another parallelism's model axis.

An axis of one device does not exist. Backward collectives are written nowhere: they
are the transposes of the forward ones (all-gather and reduce-scatter are each
other's, all-to-all its own, all-reduce that of marking a value as varying).
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from lagom_jax import decompose
from lagom_models.configs import ModelError

PARALLELISMS = ("dp", "fsdp", "tp", "tp-sp", "tp-sliced", "cp", "ep", "pp")
COMPUTE = jnp.bfloat16

# Rematerialisation keeps what came out of these collectives: repeating arithmetic is
# cheap, repeating an all-reduce is not. Weights are gathered again all the same,
# since not keeping them is the point of FSDP.
MOVED = "moved_over_model_axis"


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The placement of one weight, and the axes it is gathered over before use.

    Attributes:
        spec: The cut of the stored weight.
        gather: The mesh axes that must be brought together before use.
        dimension: The dimension of one layer's weight that grows thereby.
        varying: The axes whose devices each read the weight for their own data, so
            that the gradient must be added up over them.
    """

    spec: PartitionSpec
    gather: tuple[str, ...]
    dimension: int
    varying: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """A parallelism on a mesh of `data` x `experts` x `model` x `stage` devices.

    Attributes:
        parallelism: One of `PARALLELISMS`.
        data: Devices along the data axis.
        model: Devices along the model axis.
        shard_data: Whether weights are cut over the data axis as well.
        fused: The form in which tensor parallelism's collectives are fused with the
            matmuls next to them; None where they are not.
        experts: Devices that experts are cut over, beside the model axis.
        stage: Stages of a pipeline beside the model axis.

    Example:
        >>> layout = Layout("tp-sp", data=8, model=8, shard_data=True)
        >>> layout.mesh.axis_names, layout.mesh.size
        (('data', 'model'), 64)
        >>> layout.replicas
        8
    """

    parallelism: str
    data: int
    model: int
    shard_data: bool
    fused: decompose.Form | None = None
    experts: int = 1
    stage: int = 1

    @property
    def mesh(self) -> AbstractMesh:
        """The mesh, without devices."""
        axes = self.axes
        sizes = tuple(self.size((axis,)) for axis in axes)
        return AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes))

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that exist; a single device still has `data`."""
        # The last is the one whose devices are neighbours.
        names = ("data", "experts", "model", "stage")
        return tuple(n for n in names if self.size((n,)) > 1) or ("data",)

    @property
    def data_axis(self) -> tuple[str, ...]:
        """The data axis, if there is one."""
        return ("data",) if self.data > 1 else ()

    @property
    def model_axis(self) -> tuple[str, ...]:
        """The model axis, if there is one."""
        return ("model",) if self.model > 1 else ()

    @property
    def tensor(self) -> bool:
        """True if matrices are cut over the model axis."""
        return self.parallelism.startswith("tp") and self.model > 1

    @property
    def sequence(self) -> bool:
        """True if activations between the layers are cut along the sequence."""
        return self.parallelism == "tp-sp" and self.model > 1

    @property
    def context(self) -> bool:
        """True if sequences are cut over the model axis from the first layer on."""
        return self.parallelism == "cp" and self.model > 1

    @property
    def expert(self) -> bool:
        """True if experts are cut over devices."""
        return self.size((self.expert_axis,)) > 1

    @property
    def expert_axis(self) -> str:
        """The axis that experts are cut over, where they are."""
        return "model" if self.parallelism == "ep" else "experts"

    @property
    def pipeline(self) -> bool:
        """True if there are stages of a pipeline."""
        return self.stages > 1

    @property
    def pipeline_axis(self) -> str:
        """The axis of the stages, where there are any."""
        return "model" if self.parallelism == "pp" else "stage"

    @property
    def stages(self) -> int:
        """Stages of the pipeline; 1 where there is none."""
        return self.size((self.pipeline_axis,))

    @property
    def slices(self) -> int:
        """Independent parts of the batch inside one layer's body."""
        return 2 if self.parallelism in ("tp-sliced", "ep") or self.expert else 1

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes that the batch is cut over."""
        shared = {
            axis
            for axis, there in (
                (self.expert_axis, self.expert),
                (self.pipeline_axis, self.pipeline),
            )
            if there
        }
        return self.data_axis + tuple(axis for axis in self.axes if axis in shared)

    @property
    def replicas(self) -> int:
        """The number of parts that the batch is cut into."""
        return self.size(self.batch_axes)

    def size(self, axes: tuple[str, ...]) -> int:
        """The number of devices along some axes together.

        Example:
            >>> Layout("ep", data=2, model=4, shard_data=True).size(("data", "model"))
            8
        """
        return math.prod(getattr(self, axis) for axis in axes)

    def place(
        self,
        shape: tuple[int, ...],
        *,
        tensor: int | None = None,
        expert: int | None = None,
        inside: bool = False,
        staged: bool = False,
        stacked: bool = False,
    ) -> Placement:
        """Decides how one weight is stored.

        Args:
            shape: The shape, without the dimension that counts layers.
            tensor: The dimension that tensor parallelism cuts.
            expert: The dimension that counts experts.
            inside: Whether each device uses the weight on its part of the work
                between `enter` and `leave`, although no dimension is cut.
            staged: Whether the weight belongs to one pipeline stage.
            stacked: Whether a dimension that counts layers comes first.

        Example:
            >>> layout = Layout("tp", data=4, model=2, shard_data=True)
            >>> layout.place((64, 128), tensor=1).dimension
            0
        """
        dims: list[tuple[str, ...]] = [()] * len(shape)
        owned: set[str] = {self.pipeline_axis} if self.pipeline and staged else set()
        for cut, axis, there in (
            (tensor, "model", self.tensor),
            (expert, self.expert_axis, self.expert),
        ):
            if cut is None or not there:
                continue
            if shape[cut] % self.size((axis,)):
                raise ModelError(
                    f"{shape[cut]} (dimension {cut} of a weight of {shape}) does not "
                    f"divide over {axis}_axis={self.size((axis,))}"
                )
            dims[cut] = (axis,)
            owned.add(axis)
        # A replica's weights are cut over all devices that have data of their own,
        # except along the axes that already cut them.
        sharing = self.batch_axes + (self.model_axis if self.context else ())
        replicas = tuple(axis for axis in sharing if axis not in owned)
        gather = replicas if self.shard_data else ()
        dimension = 0
        if gather:
            dimension = self._dimension(shape, dims, gather)
            dims[dimension] += gather
        partial = tensor is None and (self.sequence or (self.tensor and inside))
        varying = replicas + (self.model_axis if partial else ())
        staged_axis = (self.pipeline_axis,) if self.pipeline and staged else ()
        first = [staged_axis] * stacked
        spec = PartitionSpec(*(_entry(axes) for axes in (*first, *dims)))
        return Placement(spec, gather, dimension, varying)

    def _dimension(
        self,
        shape: tuple[int, ...],
        dims: list[tuple[str, ...]],
        gather: tuple[str, ...],
    ) -> int:
        for index, length in enumerate(shape):
            if length % self.size(dims[index] + gather) == 0:
                return index
        raise ModelError(
            f"no dimension of a weight of {shape} divides over {self.size(gather)} "
            f"devices of {' x '.join(gather)}: take another number of devices, or "
            "keep whole weights on every replica (--parallelism dp, or in Python "
            "shard_data=False)"
        )

    def fetch(
        self, weight: jax.Array, placement: Placement, *, stacked: bool = False
    ) -> jax.Array:
        """Makes a stored weight ready for use: in bfloat16, brought together.

        The cast comes first, so that half the bytes travel, forward and backward.
        """
        weight = weight.astype(COMPUTE)
        if placement.gather:
            dimension = placement.dimension + stacked
            weight = lax.all_gather(
                weight, placement.gather, axis=dimension, tiled=True
            )
        # Marked once per layer: the transpose is one all-reduce of the gradient,
        # however many times the layer reads the weight.
        return vary(weight, placement.varying)

    def own(self, x: jax.Array) -> jax.Array:
        """The part of sequences `[batch, time]` that this device works on."""
        if not self.context:
            return x
        length = x.shape[1] // self.model
        first = lax.axis_index("model") * length
        return lax.dynamic_slice_in_dim(x, first, length, axis=1)

    def whole(self, x: jax.Array) -> jax.Array:
        """Keys or values of the whole sequence, from every device's part."""
        return lax.all_gather(x, "model", axis=1, tiled=True) if self.context else x

    def positions(self, length: int) -> jax.Array:
        """Where the tokens of this device's part stand in their sequence."""
        first = lax.axis_index("model") * length if self.context else 0
        return first + jnp.arange(length)

    def enter(self, x: jax.Array, *, fused: bool = False) -> jax.Array:
        """Before matrices cut by columns: every device needs all of `x`.

        Args:
            x: What the layers keep between them.
            fused: Whether `columns` comes next, and may gather by itself.
        """
        if self.sequence:
            if fused and self.fused is not None:
                return x
            return lax.all_gather(x, "model", axis=1, tiled=True)
        return vary(x, self.model_axis) if self.tensor else x

    def columns(self, x: jax.Array, *matrices: jax.Array) -> tuple[jax.Array, ...]:
        """The products of all rows with matrices that are cut by columns."""
        if self.sequence and self.fused is not None:
            return decompose.all_gather_matmul(
                x, matrices, "model", dimension=1, form=self.fused
            )
        return tuple(x @ matrix for matrix in matrices)

    def rows(self, x: jax.Array, matrix: jax.Array) -> jax.Array:
        """The product with a matrix that is cut by rows; `leave` comes next."""
        if self.fused is None or not self.tensor:
            return x @ matrix
        fused = (
            decompose.matmul_reduce_scatter
            if self.sequence
            else decompose.matmul_all_reduce
        )
        return fused(x, matrix, "model", dimension=1, form=self.fused)

    def leave(self, x: jax.Array, *, fused: bool = False) -> jax.Array:
        """After matrices cut by rows: adds up the devices' parts of `x`.

        Args:
            x: The parts.
            fused: Whether they come from `rows`, which may have added them up.
        """
        if fused and self.tensor and self.fused is not None:
            return checkpoint_name(x, MOVED)
        if self.sequence:
            x = lax.psum_scatter(x, "model", scatter_dimension=1, tiled=True)
        elif self.tensor:
            x = lax.psum(x, "model")
        else:
            return x
        return checkpoint_name(x, MOVED)

    def total(self, x: jax.Array) -> jax.Array:
        """Adds up small statistics of which every device has a part."""
        return checkpoint_name(lax.psum(x, "model"), MOVED) if self.tensor else x

    def spread(self, x: jax.Array) -> jax.Array:
        """Marks what all devices share as input to what each has a part of."""
        return vary(x, self.model_axis) if self.tensor else x

    def exchange(self, x: jax.Array) -> jax.Array:
        """Swaps the parts of `x` along its first dimension between all devices.

        Each device sends its part `i` to device `i`, under expert parallelism.
        """
        if not self.expert:
            return x
        return checkpoint_name(
            lax.all_to_all(
                x, self.expert_axis, split_axis=0, concat_axis=0, tiled=True
            ),
            MOVED,
        )


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    return None if not axes else axes[0] if len(axes) == 1 else axes


def vary(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Marks `x` as differing between the devices of `axes`.

    Example:
        >>> vary(jnp.ones(2), ())
        Array([1., 1.], dtype=float32)
    """
    missing = tuple(axis for axis in axes if axis not in _varying(x))
    return lax.pcast(x, missing, to="varying") if missing else x


def _varying(x: jax.Array) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying


def mean_over_devices(x: jax.Array) -> jax.Array:
    """The mean of `x` over every axis that it differs along."""
    axes = tuple(sorted(_varying(x)))
    return lax.pmean(x, axes) if axes else x


def remat(body: Callable, *, looped: bool, enabled: bool) -> Callable:
    """Wraps a layer so that its backward pass computes the forward again.

    Args:
        body: The layer.
        looped: Whether the layer is the body of a loop, where XLA cannot undo the
            recomputation by merging it with the forward pass.
        enabled: False returns the layer as it is.
    """
    if not enabled:
        return body
    policy = jax.checkpoint_policies.save_only_these_names(MOVED)
    return jax.checkpoint(body, policy=policy, prevent_cse=not looped)
