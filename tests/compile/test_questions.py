"""Questions about the machine, and the context in which a step is traced."""

import os
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import default_backend, process_count
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax.cluster import Cluster
from lagom_jax.compile import lower, questions_asked, traced_for
from lagom_jax.compile.context import mesh_of
from tests.compile.conftest import array, mesh
from tests.compile.test_lowering import text

CLUSTER = Cluster.parse("h100:2x4")


def told(ask):
    """The answer that a step gets while it is traced for the cluster."""
    answers = []

    def step(x):
        answers.append(ask())
        return x

    with traced_for(CLUSTER):
        lowered = lower(step, 1.0)
    return answers[-1], lowered


class TestAnswers:
    @pytest.mark.parametrize(
        ("ask", "answer"),
        [
            (lambda: jax.default_backend(), "gpu"),
            (lambda: default_backend(), "gpu"),
            (lambda: jax.devices()[0].platform, "gpu"),
            (lambda: jax.devices("gpu")[0].platform, "gpu"),
            (lambda: jax.devices()[0].device_kind, "NVIDIA H100 80GB HBM3"),
            (lambda: jax.devices()[0].compute_capability, "9.0"),
            (lambda: jax.device_count(), 8),
            (lambda: len(jax.devices()), 8),
            (lambda: len(jax.local_devices()), 4),
            (lambda: [d.id for d in jax.local_devices(process_index=1)], [4, 5, 6, 7]),
            (lambda: jax.local_device_count(), 4),
            (lambda: process_count(), 2),
            (lambda: jax.devices()[5].process_index, 1),
            (lambda: jnp.ones(1).devices and jax.process_index(), 0),
        ],
    )
    def test_a_step_is_answered_as_on_the_cluster(self, ask, answer):
        given, lowered = told(ask)
        assert given == answer
        assert lowered.cautions == ()

    def test_the_notes_name_the_line_that_asked(self):
        _, lowered = told(lambda: jax.default_backend())
        assert lowered.notes[0].startswith("traced as on h100:2x4: test_questions.py:")

    def test_jax_itself_is_told_the_truth_and_meshes_can_be_made(self):
        def ask():
            made = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
            other = jax.sharding.Mesh(jax.devices(), ("data",))
            return made.devices.tolist() == other.devices.tolist()

        assert told(ask)[0] is True

    def test_afterwards_everything_is_as_it_was(self):
        before = vars(jax.Device).copy()
        told(lambda: jax.devices()[0].platform)
        assert vars(jax.Device) == before
        assert jax.default_backend() == default_backend() == "cpu"

    def test_what_was_traced_before_with_other_answers_is_traced_again(self):
        inner = jax.jit(lambda x: x * 2 if jax.default_backend() == "gpu" else x)
        inner(1.0)
        with traced_for(CLUSTER):
            assert "stablehlo.multiply" in text(lower(lambda x: inner(x), 1.0))
        assert "stablehlo.multiply" not in text(lower(lambda x: inner(x), 1.0))

    def test_a_step_that_cannot_be_traced_so_is_traced_as_it_is(self):
        def step(x):
            if jax.default_backend() == "gpu":
                raise ImportError("no kernels for GPUs are installed")
            return x

        with traced_for(CLUSTER):
            lowered = lower(step, 1.0)
        assert "no kernels for GPUs are installed" in lowered.cautions[0]

    def test_a_step_that_talks_to_other_processes_is_told_that_there_are_none(self):
        def ask():
            if jax.process_count() > 1:
                raise RuntimeError("no other process answers")
            return jax.default_backend(), jax.local_device_count()

        answer, lowered = told(ask)
        assert answer == ("gpu", 8)
        (caution,) = lowered.cautions
        assert "as one of 2 processes (no other process answers)" in caution
        assert "one process has all of h100:2x4" in caution

    def test_fewer_devices_than_the_cluster_has(self):
        with traced_for(Cluster.parse("h100:8x8")):
            lowered = lower(lambda x: x * len(jax.devices()), 1.0)
        assert "asked for jax.devices() (8 of them)" in lowered.cautions[0]

    def test_environment_variables_are_written_down(self, monkeypatch):
        monkeypatch.setenv("MY_ATTENTION", "flash")
        _, lowered = told(
            lambda: (os.environ.get("MY_ATTENTION"), os.getenv("NO_SUCH"))
        )
        assert "read the variable MY_ATTENTION (flash)" in lowered.notes[0]
        assert "read the variable NO_SUCH (not set)" in lowered.notes[0]

    def test_before_the_step_there_is_no_answer_but_a_caution(self):
        with questions_asked(CLUSTER, answered=False) as asked:
            assert jax.devices()[0].platform == "cpu"
            assert jax.device_count() == 8
        (caution,) = asked.cautions("before")
        assert "asked for the platform of a device (cpu)" in caution


class TestMesh:
    def test_the_arguments_mesh_is_the_context(self):
        def step(x):
            return jax.lax.with_sharding_constraint(x, P(None, "data"))

        argument = array(mesh(8), 8, 8, spec=P("data"))
        assert lower(step, argument).mesh == (("data", 8),)

    def test_explicit_axes(self):
        on = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
        x = jax.ShapeDtypeStruct(
            (8, 8), "float32", sharding=NamedSharding(on, P("data"))
        )
        lowered = lower(lambda x: jax.reshard(x, P(None, "data")), x)
        assert lowered.device_count == 8

    def test_the_callers_own_mesh_stays(self):
        on = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
        with jax.set_mesh(on):
            lowered = lower(
                lambda x: jax.lax.with_sharding_constraint(x, P("a", "b")),
                jax.ShapeDtypeStruct((8, 8), "float32"),
            )
        assert lowered.mesh == (("a", 4), ("b", 2))

    def test_two_meshes_are_none(self):
        both = array(mesh(8), 8, spec=P("data")), array(mesh(4), 8, spec=P("data"))
        assert mesh_of(both) is None

    def test_a_mesh_changes_no_fingerprint(self):
        # With `jax.set_mesh` the gradient's first constant is another.
        step = jax.grad(lambda x: jnp.square(jnp.tanh(x @ x)).sum())
        on = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        x = jax.ShapeDtypeStruct(
            (8, 8), "bfloat16", sharding=NamedSharding(on, P("data"))
        )
        with jax.set_mesh(on):
            other = lower(step, x).fingerprint
        traced = jax.jit(step).trace(x)
        assert lower(traced).fingerprint == lower(step, x).fingerprint != other


class TestLowerAlone:
    def test_filter_jit_with_abstract_arguments(self):
        @eqx.filter_jit(donate="all")
        def step(model, x):
            return jax.vmap(model)(x)

        model = eqx.filter_eval_shape(eqx.nn.Linear, 8, 8, key=jax.random.key(0))
        lowered = lower(step, model, array(mesh(8), 16, 8, spec=P("data")))
        assert lowered.name == "step"
        assert lowered.device_count == 8
        assert all(lowered.donated)

    def test_abstract_and_real_arguments_give_the_same_program(self):
        step = eqx.filter_jit(lambda model, x: jax.vmap(model)(x))
        model = eqx.nn.Linear(8, 8, key=jax.random.key(0))
        x = jnp.ones((16, 8))
        real = lower(step, model, x)
        abstract = lower(step, *eqx.filter_eval_shape(lambda: (model, x)))
        assert real.fingerprint == abstract.fingerprint

    def test_its_own_errors_come_through(self):
        def step(x):
            raise KeyError("no such layer")

        with pytest.raises(KeyError, match="no such layer"):
            lower(eqx.filter_jit(step), jax.ShapeDtypeStruct((8,), "float32"))
        assert "Traced" in type(jax.jit(lambda x: x).trace(1.0)).__name__


class TestCudnn:
    def test_attention_is_traced_without_cudnn(self):
        def attend(x):
            return jax.nn.dot_product_attention(x, x, x, implementation="cudnn")

        with traced_for(Cluster.parse("h100:1x1")):
            lowered = lower(attend, jax.ShapeDtypeStruct((1, 64, 8, 64), jnp.bfloat16))
        assert "__cudnn$fmhaSoftmax" in text(lowered)

    def test_inside_shard_map_it_is_lowered_on_a_mesh_without_devices(self):
        mesh = jax.sharding.AbstractMesh((8,), ("data",))
        spec = jax.sharding.PartitionSpec("data")

        def attend(x):
            return jax.nn.dot_product_attention(
                x, x, x, is_causal=True, implementation="cudnn"
            ).sum()

        def step(x):
            local = jax.value_and_grad(attend)
            return jax.shard_map(
                lambda x: local(x)[1], mesh=mesh, in_specs=spec, out_specs=spec
            )(x)

        x = jax.ShapeDtypeStruct(
            (8, 1024, 8, 128),
            jnp.bfloat16,
            sharding=jax.sharding.NamedSharding(mesh, spec),
        )
        with traced_for(Cluster.parse("h100:1x8")):
            lowered = lower(step, x)
        assert "__cudnn$fmhaSoftmaxBackward" in text(lowered)


def test_other_threads_are_told_the_truth_and_none_leaves_an_answer_behind():
    inside, leave, answers = threading.Event(), threading.Event(), []

    def first():
        with questions_asked(CLUSTER):
            inside.set()
            leave.wait(10)
            answers.append(jax.default_backend())

    def second():
        with questions_asked(CLUSTER):
            answers.append(jax.default_backend())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    # What is imported meanwhile takes the function that answers.
    taken = jax.default_backend
    threads[1].start()
    assert jax.default_backend() == "cpu"
    assert jax.devices()[0].platform == "cpu"
    leave.set()
    for thread in threads:
        thread.join(10)
    assert answers == ["gpu", "gpu"]
    assert jax.default_backend is default_backend
    assert jax.default_backend() == taken() == "cpu"
