"""Processes, devices, and the mesh that they make."""

import jax
from jax.sharding import Mesh

from lagom_models import TrainingStep
from training.errors import TrainingError


def start(
    devices: int | None,
    coordinator: str | None,
    processes: int | None,
    process: int | None,
) -> None:
    """Says to jax what it must know before it starts.

    Args:
        devices: How many CPU devices this process pretends to have; None takes the
            devices that there are.
        coordinator: The address of the first process, as `host:port`.
        processes: How many processes there are.
        process: Which of them this is.

    Raises:
        TrainingError: If the processes cannot find each other.
    """
    if devices is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
    asked = (coordinator, processes, process) != (None, None, None)
    try:
        jax.distributed.initialize(coordinator, processes, process)
    except ValueError as error:
        # Where neither flags, environment nor cluster name a first process, this is the
        # only one; where they do, training alone would be a mistake.
        if asked or "coordinator_address" not in str(error):
            raise TrainingError(
                f"{error} Give --coordinator, --processes and --process, or leave to "
                "jax.distributed what it can find out on your cluster"
            ) from error
    except RuntimeError as error:
        raise TrainingError(f"the processes did not meet: {error}") from error


def axes_of(mesh: str | None) -> dict[str, int]:
    """The sizes of the axes in words such as `data=2,model=4`.

    Without words, all devices are along `data`.

    Raises:
        TrainingError: If the words are no axes, or not of the devices that there are.
    """
    count = jax.device_count()
    if mesh is None:
        return {"data": count, "model": 1}
    axes = {"data": 1, "model": 1}
    for word in mesh.split(","):
        axis, _, size = word.partition("=")
        if axis not in axes or not size.isdecimal() or int(size) < 1:
            raise TrainingError(
                f"--mesh={mesh}: {word!r} is not one of data=N and model=N"
            )
        axes[axis] = int(size)
    if axes["data"] * axes["model"] != count:
        hint = (
            f"; --devices={axes['data'] * axes['model']} makes as many of this CPU"
            if jax.default_backend() == "cpu" and jax.process_count() == 1
            else ""
        )
        raise TrainingError(
            f"--mesh={mesh} is of {axes['data'] * axes['model']} devices, and there "
            f"are {count}{hint}"
        )
    return axes


def mesh_of(step: TrainingStep) -> Mesh:
    """The devices, in the shape that a step was made for."""
    mesh = step.mesh
    return jax.make_mesh(
        tuple(mesh.shape.values()), mesh.axis_names, axis_types=mesh.axis_types
    )
