"""Every kind of step that people have, lowered without a compile."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax.compile import lower
from lagom_jax.errors import CompileError
from tests.compile.conftest import array, mesh
from tests.compile.steps import training_step


def text(lowered):
    """The StableHLO of a lowered step."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        return str(ir.Module.parse(lowered.stablehlo))


class TestKindsOfStep:
    def test_a_plain_function_is_jitted(self):
        lowered = lower(lambda x: x.sum(), array(mesh(8), 64, 4, spec=P("data")))
        assert lowered.device_count == 8
        assert lowered.donated == (False,)

    def test_a_jitted_function_keeps_what_it_was_jitted_with(self):
        on = mesh(4, 2)
        step = jax.jit(
            lambda x, scale: (x * scale, x.sum()),
            in_shardings=NamedSharding(on, P("data")),
            out_shardings=(NamedSharding(on, P("model")), None),
            donate_argnums=0,
            static_argnums=1,
            compiler_options={"xla_gpu_enable_triton_gemm": False},
        )
        lowered = lower(step, jax.ShapeDtypeStruct((64, 4), jnp.float32), 3)
        assert lowered.mesh == (("data", 4), ("model", 2))
        assert lowered.donated == (True,)
        assert lowered.allow_propagation_to_inputs == (False,)
        assert lowered.allow_propagation_to_outputs == (False, True)
        assert lowered.compiler_options == {"xla_gpu_enable_triton_gemm": False}

    def test_a_whole_training_step(self):
        step, arguments = training_step(mesh(4, 2))
        lowered = lower(step, *arguments)
        assert lowered.name == "step"
        assert lowered.donated == (True, True, True, False, False)
        assert lowered.argument_count == 5
        assert lowered.notes == ()

    def test_a_partial_of_a_jitted_function_keeps_its_donation(self):
        @functools.partial(jax.jit, donate_argnums=0, static_argnames="power")
        def step(state, batch, power):
            return state + batch**power

        bound = functools.partial(step, power=2)
        lowered = lower(bound, jnp.ones(3), jnp.ones(3))
        assert lowered.donated == (True, False)
        assert lowered.name == "step"

    def test_a_partial_of_a_plain_function_is_not_taken_apart(self):
        def step(mode, state):
            return state * (2 if mode == "double" else 1)

        assert lower(functools.partial(step, "double"), 1.0).argument_count == 1

    def test_a_jitted_method_gets_its_self(self):
        class Trainer:
            @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
            def step(self, state):
                return state + 1

        assert lower(Trainer().step, jnp.ones(3)).donated == (True,)

    def test_a_plain_method(self):
        class Trainer:
            rate = 0.1

            def step(self, state):
                return state - self.rate

        assert lower(Trainer().step, jnp.ones(3)).argument_count == 1

    def test_a_callable_object(self):
        class Step:
            def __call__(self, state):
                return state - 1

        assert lower(Step(), jnp.ones(3)).argument_count == 1

    def test_a_wrapper_is_traced_itself_although_wraps_copies_trace(self):
        @functools.partial(jax.jit, donate_argnums=0)
        def inner(state, batch):
            return state + batch

        @functools.wraps(inner)
        def outer(state):
            return inner(state, 2 * state)

        lowered = lower(outer, jnp.ones(3))
        assert lowered.argument_count == 1
        assert lowered.donated == (False,)
        assert "counted without donation" in lowered.notes[0]

    def test_axes_that_are_explicit(self):
        on = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
        lowered = lower(lambda x: x.sum(), array(on, 64, spec=P("data")))
        assert lowered.mesh == (("data", 8),)

    def test_shard_map(self):
        on = mesh(8)
        step = jax.shard_map(
            lambda x: jax.lax.psum(x, "data"),
            mesh=on,
            in_specs=P("data"),
            out_specs=P(),
        )
        lowered = lower(step, array(on, 64, 4, spec=P("data")))
        assert lowered.device_count == 8
        assert "all_reduce" in text(lowered)

    def test_a_traced_step(self):
        step, arguments = training_step(mesh(4, 2))
        assert lower(step.trace(*arguments)) == lower(step, *arguments)

    def test_a_step_lowered_for_gpus(self):
        step, arguments = training_step(mesh(4, 2))
        stage = step.trace(*arguments).lower(lowering_platforms=("cuda",))
        assert lower(stage).stablehlo == lower(step, *arguments).stablehlo

    def test_nnx_jit_keeps_its_donation(self):
        model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

        @functools.partial(nnx.jit, donate_argnums=0)
        def step(model, batch):
            return jnp.sum(model(batch))

        lowered = lower(step, model, jnp.ones((2, 4)))
        assert lowered.donated == (True, True, False)

    def test_nnx_functional_with_an_optimizer(self):
        abstract = nnx.eval_shape(lambda: nnx.Linear(8, 8, rngs=nnx.Rngs(0)))
        graph, params = nnx.split(abstract)
        on = mesh(8)
        params = jax.tree.map(
            lambda leaf: array(on, *leaf.shape, dtype=leaf.dtype, spec=P("data")),
            params,
        )
        optimizer = optax.adamw(1e-3)
        state = jax.eval_shape(optimizer.init, params)

        def step(params, state, batch):
            def loss(params):
                return jnp.mean(nnx.merge(graph, params)(batch) ** 2)

            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        lowered = lower(step, params, state, array(on, 16, 8, spec=P("data")))
        assert lowered.device_count == 8
        # Two parameters, adam's count and two moments of each, and the batch.
        assert lowered.argument_count == 2 + 1 + 4 + 1

    def test_a_linen_train_state(self):
        on = mesh(8)
        model = nn.Dense(8)
        batch = array(on, 16, 8, spec=P("data"), dtype=jnp.float32)

        def init():
            params = model.init(jax.random.key(0), jnp.ones((1, 8)))
            return train_state.TrainState.create(
                apply_fn=model.apply, params=params, tx=optax.adamw(1e-3)
            )

        state = jax.eval_shape(init)

        @functools.partial(jax.jit, donate_argnums=0)
        def step(state, batch):
            def loss(params):
                return jnp.mean(state.apply_fn(params, batch) ** 2)

            return state.apply_gradients(grads=jax.grad(loss)(state.params))

        lowered = lower(step, state, batch)
        assert lowered.donated.count(True) == len(jax.tree.leaves(state))
        assert lowered.donated.count(False) == 1


class TestFingerprint:
    def test_it_is_the_same_from_every_folder_and_process(self, tmp_path):
        source = (
            "import zlib\n"
            "from lagom_jax.compile import lower\n"
            "from tests.compile.conftest import mesh\n"
            "{lines}"
            "from tests.compile.steps import training_step\n"
            "step, arguments = training_step(mesh(4, 2))\n"
            "def outer(*arguments): return step(*arguments)\n"
            "lowered = lower(outer, *arguments)\n"
            "print(lowered.fingerprint, zlib.crc32(lowered.stablehlo))\n"
        )
        root = Path(__file__).parents[2]
        found = []
        for seed, lines in (("0", ""), ("1", "\n" * 50)):
            folder = tmp_path / f"checkout{seed}"
            (folder / "tests" / "compile").mkdir(parents=True)
            (folder / "tests" / "__init__.py").touch()
            for name in ("__init__", "steps", "conftest"):
                text = (root / f"tests/compile/{name}.py").read_text()
                (folder / f"tests/compile/{name}.py").write_text(lines + text)
            (folder / "run.py").write_text(source.format(lines=lines))
            path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
            done = subprocess.run(
                [sys.executable, folder / "run.py"],
                env={
                    **os.environ,
                    "PYTHONHASHSEED": seed,
                    "PYTHONPATH": os.pathsep.join(path),
                },
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            found.append(done.stdout.split())
        (one, bytecode), (other, other_bytecode) = found
        assert (one, bytecode) == (other, other_bytecode)

    def test_the_step_changes_it(self):
        step, arguments = training_step(mesh(4, 2))
        other_step, others = training_step(mesh(8, 1))
        params, count, batch, rate = arguments
        longer = jax.ShapeDtypeStruct((128, 128), batch.dtype, sharding=batch.sharding)
        whole = array(mesh(4, 2), *batch.shape)
        steps = [
            lower(step, *arguments),
            lower(step, params, count, longer, rate),
            lower(step, params, count, whole, rate),
            lower(other_step, *others),
        ]
        assert len({lowered.fingerprint for lowered in steps}) == len(steps)

    def test_options_of_the_compiler_do_not_change_it(self):
        shape = jax.ShapeDtypeStruct((8,), jnp.float32)

        def step(x):
            return x * 2

        options = {"xla_gpu_enable_triton_gemm": False}
        told = lower(jax.jit(step, compiler_options=options), shape)
        assert told.fingerprint == lower(step, shape).fingerprint
        donating = lower(jax.jit(step, donate_argnums=0), shape)
        assert donating.fingerprint != told.fingerprint

    def test_large_constants_count(self):
        def with_constant(last):
            table = np.arange(4096.0, dtype=np.float32)
            table[-1] = last
            return lower(lambda x: x + table, jax.ShapeDtypeStruct((4096,), "float32"))

        one, other = with_constant(1.0), with_constant(2.0)
        assert one.fingerprint == with_constant(1.0).fingerprint
        # Some versions of jax make an argument of a constant.
        inside = one.argument_count == 1
        assert (one.fingerprint != other.fingerprint) == inside


class TestArguments:
    def test_real_arrays_numpy_and_numbers(self):
        lowered = lower(
            lambda tree, b, c: tree["a"] + b + c, {"a": jnp.ones(3)}, np.ones(3), 2.0
        )
        assert lowered.argument_count == 3
        assert "tensor<3xf32>" in text(lowered)

    def test_what_is_not_used_is_no_parameter(self):
        lowered = lower(lambda a, b: a + 1, 1.0, 2.0)
        assert lowered.argument_count == 1
        assert len(lowered.donated) == 2

    def test_keyword_arguments(self):
        assert lower(lambda *, x, y: x + y, x=1.0, y=2.0).argument_count == 2

    def test_x64_reaches_the_module(self):
        with jax.enable_x64(True):
            lowered = lower(lambda x: x * 2, np.ones(3))
        assert "tensor<3xf64>" in text(lowered)

    def test_the_partitioner_of_this_process_is_carried_along(self):
        before = jax.config.jax_use_shardy_partitioner
        try:
            jax.config.update("jax_use_shardy_partitioner", not before)
            lowered = lower(lambda x: x * 2, 1.0)
        finally:
            jax.config.update("jax_use_shardy_partitioner", before)
        assert lowered.settings["jax_use_shardy_partitioner"] is not before


class TestMistakes:
    def test_what_the_step_raises_comes_through_untouched(self):
        raised = ValueError("mine")

        def step(x):
            raise raised

        with pytest.raises(ValueError, match="mine") as caught:
            lower(step, 1.0)
        assert caught.value is raised

    def test_a_jax_error_inside_the_step_comes_through_untouched(self):
        with pytest.raises(TypeError, match="dot_general"):
            lower(lambda a, b: a @ b, jnp.ones((2, 3)), jnp.ones((4, 5)))

    def test_an_argument_that_is_no_array(self):
        def step(x):
            return x

        with pytest.raises(CompileError, match=r"cannot trace step .*'str'"):
            lower(step, "text")

    def test_a_sharding_that_does_not_divide(self):
        with pytest.raises(CompileError, match=r"partitioned 8 times|divisible by 8"):
            lower(jax.jit(lambda x: x + 1), array(mesh(8), 3, spec=P("data")))

    def test_arrays_on_other_devices(self):
        on_one = jax.device_put(jnp.ones(8), jax.devices()[0])
        with pytest.raises(CompileError, match="AbstractMesh size: 8"):
            lower(lambda a, b: a + b, array(mesh(8), 8, spec=P("data")), on_one)

    def test_a_users_own_complaint_about_cudnn(self):
        def step(x):
            raise RuntimeError("no cuDNN, no training")

        with pytest.raises(RuntimeError, match="no training"):
            lower(step, 1.0)

    def test_two_meshes(self):
        arguments = array(mesh(8), 8, spec=P("data")), array(mesh(4), 8, spec=P("data"))
        with pytest.raises((CompileError, ValueError), match=r"(?i)mesh"):
            lower(lambda a, b: a + b, *arguments)

    def test_no_function(self):
        with pytest.raises(CompileError, match="a training step is a function"):
            lower(3)

    def test_lowered_for_the_cpu(self):
        with pytest.raises(CompileError, match="lowered for cpu"):
            lower(jax.jit(lambda x: x).lower(1.0))

    def test_compiled(self):
        with pytest.raises(CompileError, match="compiled already"):
            lower(jax.jit(lambda x: x).lower(1.0).compile())

    def test_arguments_given_twice(self):
        with pytest.raises(CompileError, match="already knows its arguments"):
            lower(jax.jit(lambda x: x).trace(1.0), 1.0)

    def test_only_lower(self):
        class Filtered:
            def __call__(self, x):
                return x

            def lower(self, x):
                return jax.jit(self).lower(x) if x else None

        assert lower(Filtered(), 1.0).argument_count == 1
        with pytest.raises(CompileError, match=r"wrap the step in jax\.jit"):
            lower(Filtered(), 0.0)


class TestCallbacks:
    @pytest.mark.parametrize("devices", [1, 8])
    def test_debug_prints_are_left_out_and_said_so(self, devices):
        def step(x):
            jax.debug.print("{}", x.sum())
            return x * 2

        lowered = lower(step, array(mesh(devices), 64, spec=P("data")))
        assert lowered.notes == ("1 jax.debug callback(s) were left out",)
        assert "callback" not in text(lowered)

    def test_debug_prints_inside_a_scan(self):
        def step(x):
            def body(carry, _):
                jax.debug.callback(print, carry.sum())
                return carry * 2, None

            return jax.lax.scan(body, x, None, length=3)[0]

        lowered = lower(jax.jit(step), array(mesh(8), 64, spec=P("data")))
        assert "callback" not in text(lowered)

    @pytest.mark.parametrize("devices", [1, 8])
    def test_callbacks_with_results_need_a_mesh_of_devices(self, devices):
        def step(x):
            return x + jax.pure_callback(np.asarray, x, x)

        with pytest.raises(CompileError, match="AbstractMesh"):
            lower(step, array(mesh(devices), 64, spec=P("data")))
