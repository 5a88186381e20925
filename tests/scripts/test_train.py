"""The training binary: it learns, resumes, works in several processes, and explains."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from jax.sharding import NamedSharding, PartitionSpec

from tests.forked import TRAINING, Forked
from tests.kept_programs import COMPILED_SOONER, kept_programs

SCRIPTS = Path(__file__).parents[2] / "scripts"
# The binary, whose processes all keep their programs.
KEEPING = Path(__file__).with_name("keeping.py")
STEPS, WARMUP = 40, 30
SIZE = (f"--steps={STEPS}", "--batch=16", "--sequence=32", f"--warmup={WARMUP}")


def start(
    out: Path, *words: str, script: Path = SCRIPTS / "train.py"
) -> subprocess.Popen:
    return Forked(
        [script, *SIZE, f"--out={out}", *words, "--log_every=1"],
        modules=TRAINING,
        env={
            **os.environ,
            **kept_programs(),
            "PYTHONPATH": os.pathsep.join(sys.path),
            # Compiling takes longer than running.
            "XLA_FLAGS": f"{COMPILED_SOONER} --xla_backend_optimization_level=1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output


def wait_for_step(process: subprocess.Popen, step: int) -> None:
    assert process.stdout
    for line in process.stdout:
        if re.match(rf" *{step}  ", line):
            return
    raise AssertionError(process.communicate()[1])


def rows(out: Path) -> list[dict]:
    return [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]


def results(out: Path) -> list[tuple]:
    """What does not depend on the clock."""
    names = ("step", "loss", "gradient_norm", "learning_rate", "evaluation_loss")
    return [tuple(row.get(name) for name in names) for row in rows(out)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run from the first step to the last: its folder, and what it printed."""
    out = tmp_path_factory.mktemp("whole")
    return out, finish(start(out, "--devices=4"))


@pytest.mark.slow
def test_it_learns(whole):
    out, printed = whole
    unigram, least = map(
        float, re.findall(r"(?:a loss of|everything) (\d+\.\d+)", printed)
    )
    *steps, last = rows(out)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    # Nobody has learned anything yet, and guesses among 512 tokens.
    assert steps[0]["loss"] > np.log(512)
    assert steps[-1]["tokens_per_second"] > 0
    assert least < last["evaluation_loss"] < 0.7 * unigram
    assert f"loss on held-out text: {last['evaluation_loss']:.4f}" in printed


@pytest.mark.slow
def test_interrupted_and_resumed_it_is_the_same_run(whole, tmp_path):
    process = start(tmp_path, "--devices=4")
    wait_for_step(process, 15)
    process.send_signal(signal.SIGINT)
    assert "as asked" in finish(process)
    stopped = rows(tmp_path)[-1]["step"]
    assert 15 <= stopped < STEPS
    # As if it had been killed later, amid a line, without another checkpoint.
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": {stopped + 1}, "loss": 0.0}}\n{{"step": ')
    assert f"resumed after step {stopped}\n" in finish(start(tmp_path, "--devices=4"))
    # To the last bit: the state is whole, and batches depend on the step alone.
    assert results(tmp_path) == results(whole[0])


@pytest.mark.slow
def test_two_processes_train_as_one_and_stop_together(whole, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    shared = (f"--coordinator={address}", "--processes=2", "--devices=2")
    # The rate does not depend on the number of steps before the warm-up is over.
    endless = ("--steps=100000", *shared)
    first, second = (
        start(tmp_path, *endless, f"--process={n}", script=KEEPING) for n in (0, 1)
    )
    with contextlib.ExitStack() as stack:
        for process in (first, second):
            stack.callback(process.kill)
        wait_for_step(first, 5)
        second.send_signal(signal.SIGINT)
        assert "as asked" in finish(first)
        assert finish(second).count("as asked") == 0
    found = [row["loss"] for row in rows(tmp_path)][:WARMUP]
    expected = [row["loss"] for row in rows(whole[0])[: len(found)]]
    assert len(found) >= 5
    # The same weights and tokens; only the mean over devices is added up differently.
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    # Gradients are added up in bfloat16, whose errors depend on the order, and training
    # carries them on.
    assert found == pytest.approx(expected, abs=0.02)
    assert [p.name for p in (tmp_path / "checkpoints").glob("[0-9]*")] == [
        str(rows(tmp_path)[-1]["step"])
    ]


@pytest.fixture
def training(monkeypatch):
    """The binary as a module, with its flags at their defaults."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import train

    yield train
    flags.FLAGS.unparse_flags()


def refuse(training, *words: str) -> str:
    flags.FLAGS(["train.py", *words])
    with pytest.raises(ValueError, match=r"\w") as caught:
        training.train()
    return str(caught.value)


def test_half_a_set_up_for_several_processes_is_not_one_process(training, monkeypatch):
    said = "coordinator_address should be defined."

    def initialize(*arguments):
        raise ValueError(said)

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    training.devices.start(None, None, None, None)
    with pytest.raises(ValueError, match="Give --coordinator"):
        training.devices.start(None, None, 2, None)
    said = "Number of processes must be defined."
    with pytest.raises(ValueError, match="Give --coordinator"):
        training.devices.start(None, None, None, None)


def test_an_unknown_model_is_answered_with_those_that_there_are(training):
    assert "the models are: phi-2, llama-3-8b" in refuse(training, "--model=gpt-2")


@pytest.mark.parametrize("mesh", ["rows=2", "data", "data=0", "data=2;model=4"])
def test_a_mesh_has_two_axes(training, mesh):
    words = refuse(training, f"--mesh={mesh}")
    assert "is not one of data=N and model=N" in words


def test_a_mesh_is_of_the_devices_that_there_are(training, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    words = refuse(training, "--mesh=data=2,model=4")
    assert "is of 8 devices, and there are 1; --devices=8" in words


@pytest.mark.parametrize(
    ("words", "least"),
    [
        ((), 8),
        (("--mesh=data=2,model=4",), 2),
        (("--mesh=data=2,model=4", "--parallelism=pp"), 16),
        (
            ("--mesh=data=2,model=4", "--parallelism=ep", "--model=olmoe-1b-7b"),
            16,
        ),
    ],
)
def test_a_batch_is_shared_out_evenly(training, monkeypatch, words, least):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    refused = refuse(training, "--batch=17", *words)
    assert f"it has to be a multiple of {least} under" in refused
    flags.FLAGS(["train.py", f"--batch={3 * least}", *words])
    assert training.build().batch == 3 * least


def test_a_text_has_to_be_long_enough(training, tmp_path):
    text = tmp_path / "text"
    assert "No such file" in refuse(training, f"--text={text}")
    text.write_text("")
    assert "is empty" in refuse(training, f"--text={text}")
    text.write_text("too short " * 1000)
    words = refuse(training, f"--text={text}", "--batch=8")
    assert "a batch needs 8 sequences of 64 tokens, and 500 tokens are only 7" in words


def test_the_folder_has_to_be_one(training, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert f"--out={file}: File exists" in refuse(training, f"--out={file}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_folder_has_to_be_writable(training, tmp_path):
    tmp_path.chmod(0o500)
    assert "no files can be written" in refuse(training, f"--out={tmp_path}")


def test_a_checkpoint_belongs_to_a_model(training, tmp_path):
    from training.checkpoints import Checkpoints

    record = {"model": "phi-2", "tiny": True, "batch": 32}
    saved = Checkpoints(tmp_path, record)
    saved.save(3, {"weight": jnp.arange(4.0)})
    saved.close()

    words = refuse(training, f"--out={tmp_path}")
    assert "of step 3 in --out is of another model" in words
    assert "model phi-2, now llama-3-8b" in words
    assert "name another folder" in refuse(training, f"--out={tmp_path}", "--noresume")

    other = Checkpoints(tmp_path, {**record, "batch": 64})
    state, changed = other.restore({"weight": jax.ShapeDtypeStruct((4,), jnp.float32)})
    other.close()
    assert changed == ["batch 32, now 64"]
    assert state["weight"].tolist() == [0, 1, 2, 3]


def test_words_that_are_no_flags_are_not_ignored(training, capsys):
    assert training.main(["train.py", "llama-3-8b"]) == 1
    assert capsys.readouterr().err.startswith("train.py: what is 'llama-3-8b'?")


def test_the_generated_text_has_the_entropy_that_it_says(training):
    text = training.corpus.generate()
    assert np.array_equal(text.tokens, training.corpus.generate().tokens)
    words = re.findall(rb"(\w+)( |\. )", text.tokens.tobytes())
    pairs = Counter(zip(words, (word for word, _ in words[1:]), strict=False))
    ends = Counter(words)
    starts = Counter(word for word, _ in words)
    # Two choices after each word: whether the sentence ends, and what comes next.
    nats = -sum(n * np.log(n / starts[word]) for (word, _), n in ends.items())
    nats -= sum(n * np.log(n / ends[before]) for (before, _), n in pairs.items())
    assert text.entropy == pytest.approx(nats / len(text.tokens), rel=0.03)


def test_an_epoch_has_every_sequence_once(training):
    from training.batches import Batches

    mesh = jax.make_mesh((1,), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec("data"))
    batches = Batches(np.arange(101, dtype=np.uint8), 4, 5, 7, everywhere)
    assert len(batches) == 5
    first = np.concatenate([batches.at(step) for step in range(5)])
    second = np.concatenate([batches.at(step) for step in range(5, 10)])
    for epoch in (first, second):
        assert sorted(epoch[:, 0]) == list(range(0, 100, 5))
        assert (epoch == epoch[:, :1] + np.arange(6)).all()
    assert (first != second).any()
