"""Trains a language model: `python scripts/train.py --devices=8` on any machine.

A template for a training binary of your own; see docs/how-to/training.md. The two lines
that mention `lagom_jax` are all that it takes to tune its step with `--lagom=tune`.
"""

import functools
import logging
import sys
import time
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from jax.sharding import NamedSharding

import lagom_jax.flags
import lagom_models
from lagom_jax.errors import LagomError
from lagom_models.model import Model
from training import corpus, devices, regional, steps
from training.batches import Batches
from training.checkpoints import Checkpoints
from training.errors import TrainingError
from training.progress import Progress
from training.stopping import Stop

_MODEL = flags.DEFINE_string(
    "model", "llama-3-8b", f"One of {', '.join(lagom_models.names())}."
)
_TINY = flags.DEFINE_bool("tiny", True, "Shrink the model until it trains on a CPU.")
_MESH = flags.DEFINE_string(
    "mesh", None, "Sizes of the axes, as data=2,model=4; all devices are data if unset."
)
_PARALLELISM = flags.DEFINE_string(
    "parallelism",
    None,
    "How to use the mesh, see docs/reference/models.md; fsdp, or tp with a model axis, "
    "if unset.",
)
_STEPS = flags.DEFINE_integer("steps", 200, "How many steps to train.", 1)
_BATCH = flags.DEFINE_integer("batch", 32, "Sequences in a step, over all devices.", 1)
_SEQUENCE = flags.DEFINE_integer("sequence", 64, "Tokens in a sequence.", 1)
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 3e-3, "The highest rate.", 0)
_WARMUP = flags.DEFINE_integer("warmup", 30, "Steps until the highest rate.", 0)
_SEED = flags.DEFINE_integer("seed", 0, "Decides weights and order of the text.", 0)
_TEXT = flags.DEFINE_string(
    "text", None, "A file to train on, byte by byte; a text is generated if unset."
)
_OUT = flags.DEFINE_string("out", None, "A folder for checkpoints and metrics.jsonl.")
_CHECKPOINT_EVERY = flags.DEFINE_integer(
    "checkpoint_every", 100, "Steps from one checkpoint to the next.", 1
)
_RESUME = flags.DEFINE_bool("resume", True, "Go on from the last checkpoint in --out.")
_LOG_EVERY = flags.DEFINE_integer("log_every", 20, "Steps from line to line.", 1)
_DEVICES = flags.DEFINE_integer(
    "devices", None, "Train on so many virtual devices of the CPU.", 1
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "host:port of the first process."
)
_PROCESSES = flags.DEFINE_integer("processes", None, "How many processes there are.", 1)
_PROCESS = flags.DEFINE_integer("process", None, "Which of them this is, from 0.", 0)

_EVALUATION_BATCHES = 16


def main(arguments: list[str]) -> int:
    if not flags.FLAGS["verbosity"].present:
        # Orbax speaks of every file there.
        logging.getLogger("absl").setLevel(logging.WARNING)
    try:
        if len(arguments) > 1:
            raise TrainingError(f"what is {arguments[1]!r}? Flags begin with --")
        devices.start(
            _devices_here(), _COORDINATOR.value, _PROCESSES.value, _PROCESS.value
        )
        if regional.REGIONS.value is not None and regional.REGION.value is None:
            return start_regions()
        train()
    except (LagomError, TrainingError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    return 0


def _devices_here() -> int | None:
    count, among = _DEVICES.value, regional.REGIONS.value
    if not among:
        return count
    if count is None:
        # Each region is a process of this machine, and they cannot share its GPUs.
        return 1
    if count % among:
        raise TrainingError(
            f"--devices={count} cannot be shared out over --regions={among}: it has to "
            "be a multiple"
        )
    return count // among


def start_regions() -> int:
    """Measures a step, decides for all regions, and starts them."""
    if _PROCESSES.value is not None:
        raise TrainingError("--regions starts its own processes: leave out --processes")
    built = build()
    mesh, model = devices.mesh_of(built), built.model
    seconds = regional.STEP_SECONDS.value or measure_step(built)
    shapes = lagom_models.state_shapes(model, steps.make_optimizer(1.0, 0, 1)[0])
    delay, sends = regional.derive(shapes.weights, seconds)
    if regional.DELAY.value is None:
        flags.FLAGS["delay"].value = 0 if regional.OUTER.value == "diloco" else delay
    if regional.SEND_STEPS.value is None:
        flags.FLAGS["send_steps"].value = sends
    outer = regional.make_outer(None, _LEARNING_RATE.value)
    cadence = outer.cadence
    found = (
        f"{regional.REGIONS.value} regions of {mesh.size} devices, "
        f"{regional.OUTER.value} over {regional.WAN.value}: a step takes "
        f"{seconds:.3g} s by itself; a send every {cadence.interval} steps takes "
        f"{sends:.3g} and arrives after {cadence.delay}"
    )
    print(found, flush=True)
    decided = [
        f"--delay={cadence.delay}",
        f"--send_steps={regional.SEND_STEPS.value}",
    ]
    return regional.launch(sys.argv, decided, _OUT.value)


def measure_step(built: lagom_models.TrainingStep) -> float:
    """Seconds of one inner step, by trying."""
    state, tokens = built.initialise(devices.mesh_of(built))
    times: list[float] = []
    for _ in range(4):
        began = time.perf_counter()
        state, loss = built.function(state, tokens)
        jax.block_until_ready(loss)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def train() -> None:
    region = regional.Region.here(_LEARNING_RATE.value)
    built = build()
    model, mesh = built.model, devices.mesh_of(built)
    text = corpus.read(_TEXT.value) if _TEXT.value else corpus.generate()
    cut = NamedSharding(mesh, model.batch_spec())
    size = (_BATCH.value, _SEQUENCE.value)
    own = region.seed if region else 0
    batches = Batches(text.tokens, *size, _SEED.value + own, cut)
    held_out = Batches(text.held_out, *size, _SEED.value, cut)

    optimizer, rate = steps.make_optimizer(
        _LEARNING_RATE.value, _WARMUP.value, _STEPS.value
    )
    state: Any = None
    shapes: Any = steps.state_shapes(model, optimizer, mesh)
    inner_shapes, plain = shapes, steps.make_step(model, optimizer)
    if region:
        shapes = region.shapes(shapes, mesh)
    step = jax.jit(
        region.step(plain) if region else plain,
        donate_argnums=0,
        out_shardings=(steps.shardings(shapes), None),
    )
    step = lagom_jax.tune(step)

    checkpoints = open_checkpoints()
    start = (checkpoints.latest or 0) if checkpoints else 0
    notes: list[str] = []
    if checkpoints and start:
        state, notes = checkpoints.restore(shapes)
    else:
        state = steps.initial_state(model, optimizer, inner_shapes, _SEED.value)
        if region:
            state = regional.RegionState(
                state, jax.jit(region.optimizer.init)(state.weights)
            )
            state = jax.device_put(state, steps.shardings(shapes))
    if region:
        state = region.begin(state, shapes)
        start = int(state.outer.common.step)

    log = Progress(
        Path(_OUT.value) / "metrics.jsonl" if _OUT.value else None,
        kept=start,
        tokens=_BATCH.value * _SEQUENCE.value,
        speaks=region is None or region.number == 0,
    )
    log.say(built.describe())
    log.say(text.describe())
    if start:
        log.say("; ".join([f"resumed after step {start}", *notes]))

    stop, stopped, before = Stop(), False, None
    for done in range(start + 1, _STEPS.value + 1):
        state, metrics = step(state, batches.at(done - 1))
        # Never more than a step ahead, so that asking to stop is answered soon.
        jax.block_until_ready(before)
        before = metrics
        if region:
            region.exchange.offer(region.optimizer, state.outer)
        if done == start + 1:
            log.first(done, metrics)
        stopped = stop.after(done)
        last = stopped or done == _STEPS.value
        if last or done % _LOG_EVERY.value == 0:
            log.step(done, metrics, rate(done - 1))
        if checkpoints and (last or done % _CHECKPOINT_EVERY.value == 0):
            checkpoints.save(done, state)
        if stopped:
            log.say(f"stopped after step {done}, as asked")
            break
    if region:
        log.say(region.describe(state))
    if not stopped:
        weights = state.outer.common.anchor if region else state.weights
        loss = evaluate(model, weights, held_out)
        log.evaluation(max(start, _STEPS.value), loss)
    if checkpoints:
        checkpoints.close()
    if region:
        region.exchange.close()


def build() -> lagom_models.TrainingStep:
    """The model on its mesh; a batch is given as a whole, and shared out here."""
    axes = devices.axes_of(_MESH.value)
    parallelism = _PARALLELISM.value or ("tp" if axes["model"] > 1 else "fsdp")
    build = functools.partial(
        lagom_models.build,
        _MODEL.value,
        devices=axes["data"] * axes["model"],
        parallelism=parallelism,
        model_axis=axes["model"],
        sequence=_SEQUENCE.value,
        tiny=_TINY.value,
    )
    smallest = build(batch=2)
    share = smallest.batch // 2
    least = share * smallest.model.layout.slices
    if _BATCH.value % least:
        raise TrainingError(
            f"--batch={_BATCH.value} cannot be shared out over this mesh: it has to be "
            f"a multiple of {least} under {parallelism}"
        )
    return build(batch=_BATCH.value // share)


def open_checkpoints() -> Checkpoints | None:
    if not _OUT.value:
        return None
    record = {
        flag.name: flag.value
        for flag in (
            *(_MODEL, _TINY, _PARALLELISM, _MESH, _STEPS, _BATCH, _SEQUENCE),
            *(_LEARNING_RATE, _WARMUP, _SEED, _TEXT),
        )
    }
    checkpoints = Checkpoints(Path(_OUT.value), record)
    if checkpoints.latest is not None and not _RESUME.value:
        raise TrainingError(
            f"--out={_OUT.value} holds checkpoints of another run: with --noresume, "
            "name another folder"
        )
    return checkpoints


def evaluate(model: Model, weights: Any, held_out: Batches) -> float:
    loss = jax.jit(lagom_models.sharded_loss(model))
    count = min(_EVALUATION_BATCHES, len(held_out))
    return sum(float(loss(weights, held_out.at(n))) for n in range(count)) / count


if __name__ == "__main__":
    app.run(main)
