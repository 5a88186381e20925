"""Kernels that are not XLA's own, compiled without a GPU and without their libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.pallas import mosaic_gpu, triton
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lagom_jax
from lagom_jax.cluster import Cluster
from lagom_jax.compile import lower, traced_for
from lagom_jax.compile.partitioning import QUESTION, answered, rules_of
from tests.compile.test_lowering import text

CLUSTER = "h100:1x8"


def devices():
    return jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


DATA = P("data")


def array(*shape, spec=DATA, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(devices(), spec))


def kinds(report):
    return {total.kind: total for total in report.kernel_kinds}


def norm_of_a_library():
    """A call as TransformerEngine makes them: FFI, partitioned by rules in Python."""

    def call(x, w):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call("some_librarys_norm_ffi", shape)(
            x, w, eps=np.float32(1e-5)
        )

    norm = custom_partitioning(call)

    def partition(mesh, arguments, result):
        whole = NamedSharding(mesh, P())
        return mesh, call, result.sharding, (result.sharding, whole)

    norm.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, arguments, result: (
            arguments[0].sharding
        ),
        sharding_rule="b d, d -> b d",
    )
    return norm


@pytest.mark.slow
class TestCompiled:
    def test_attention_of_cudnn(self):
        def attend(q):
            return jax.nn.dot_product_attention(
                q, q, q, implementation="cudnn", is_causal=True
            ).sum()

        report = lagom_jax.analyze(
            jax.grad(attend), array(8, 512, 8, 64), cluster=CLUSTER
        )
        # Forward and backward, each on the part of one device.
        assert kinds(report)["attention"].count == 2
        assert report.collectives == ()

    def test_a_call_that_is_partitioned_in_python(self):
        norm = norm_of_a_library()
        report = lagom_jax.analyze(
            lambda x, w: (norm(x, w) @ x.T).sum(),
            array(64, 128),
            array(128, spec=P()),
            cluster=CLUSTER,
        )
        custom = kinds(report)["custom"]
        # A part of 8 rows is read with the weights, and written.
        assert custom.bytes == 2 * (8 * 128 + 128 + 8 * 128)
        assert report.unknown_kernels == ("some_librarys_norm_ffi",)
        assert "without the time of 1 kernel that nothing is known" in str(report)

    def test_a_call_whose_time_is_stated(self, tmp_path):
        norm, table = norm_of_a_library(), tmp_path / "kernels.json"
        table.write_text('{"kernels": [{"name": "some_*", "seconds": 0.25}]}')
        arguments = (array(64, 128), array(128, spec=P()))

        def step(x, w):
            return (norm(x, w) @ x.T).sum()

        report = lagom_jax.analyze(step, *arguments, cluster=CLUSTER, kernels=table)
        assert kinds(report)["stated"].seconds == pytest.approx(0.25)
        assert report.step_seconds > 0.25
        assert report.unknown_kernels == ()
        plan = lagom_jax.make_plan(
            step,
            *arguments,
            cluster=CLUSTER,
            kernels=table,
            levers=("options",),
            budget=lagom_jax.Budget(compiles=2),
        )
        assert plan.evidence.default.step_seconds == report.step_seconds
        tuning = lagom_jax.find_settings(
            step, *arguments, cluster=CLUSTER, kernels=table
        )
        assert tuning.before.step_seconds == report.step_seconds

    @pytest.mark.skipif(
        jax.__version_info__ >= (0, 12),
        reason="jax 0.12 lowers pallas_call for a GPU only where one is",
    )
    @pytest.mark.parametrize(
        "parameters",
        [
            triton.CompilerParams(num_warps=4, num_stages=1),
            mosaic_gpu.CompilerParams(),
        ],
        ids=["triton", "mosaic"],
    )
    def test_kernels_of_pallas(self, parameters):
        def double(source, target):
            target[...] = source[...] * 2

        shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        kernel = pl.pallas_call(double, out_shape=shape, compiler_params=parameters)
        step = jax.shard_map(
            kernel,
            mesh=devices(),
            in_specs=P("data"),
            out_specs=P("data"),
            check_vma=False,
        )
        report = lagom_jax.analyze(
            step, array(64, 128, dtype="float32"), cluster=CLUSTER
        )
        assert kinds(report)["custom"].bytes == 2 * 4 * 8 * 128
        assert not any("compiled for a GPU" in note for note in report.notes)

    def test_calls_of_python(self):
        def step(x):
            return x * io_callback(
                np.asarray, jax.ShapeDtypeStruct((), x.dtype), x.sum()
            )

        report = lagom_jax.analyze(
            step, array(64, 128, dtype="float32"), cluster=CLUSTER
        )
        assert kinds(report)["host-copy"].bytes == 8
        assert any("Python is called from the GPU" in note for note in report.notes)

    def test_a_rule_that_fails_says_so(self):
        norm = custom_partitioning(lambda x: x)

        def partition(mesh, arguments, result):
            raise KeyError("no such layout")

        norm.def_partition(
            partition=partition,
            infer_sharding_from_operands=lambda mesh, arguments, result: (
                arguments[0].sharding
            ),
            sharding_rule="b d -> b d",
        )
        with pytest.raises(lagom_jax.LagomError, match="no such layout"):
            lagom_jax.analyze(norm, array(64, 128), cluster=CLUSTER)


class TestRules:
    def test_a_program_is_the_same_every_time(self):
        arguments = array(64, 128), array(128, spec=P())
        both = [lower(norm_of_a_library(), *arguments) for _ in range(2)]
        assert both[0].fingerprint == both[1].fingerprint
        assert both[0].digest == both[1].digest
        assert "lagom.rule.0" in text(both[0])

    def test_a_rule_is_answered_in_bytes(self):
        arguments = array(64, 128), array(128, spec=P())
        lowered = lower(norm_of_a_library(), *arguments)
        sharding = NamedSharding(devices(), P("data"))._to_xla_hlo_sharding(2)
        whole = NamedSharding(devices(), P())._to_xla_hlo_sharding(1)
        question = {
            QUESTION: "partition",
            "name": "lagom.rule.0",
            "shapes": ["bf16[64,128]{1,0}", "bf16[128]{0}"],
            "shardings": [s.to_proto().SerializeToString() for s in (sharding, whole)],
            "result": "bf16[64,128]{1,0}",
            "result_sharding": sharding.to_proto().SerializeToString(),
        }
        header, module = answered(question, lowered.rules)
        assert header["targets"] == ("some_librarys_norm_ffi",)
        assert module.startswith(b"ML")

    def test_one_device_needs_no_rule(self):
        x = jax.ShapeDtypeStruct((8, 8), "float32")
        w = jax.ShapeDtypeStruct((8,), "float32")
        assert lower(norm_of_a_library(), x, w).rules == {}
        assert rules_of("module {}") == {}


class TestCudnn:
    def test_what_a_gpu_cannot_do_is_refused_as_there(self):
        def attend(x):
            return jax.nn.dot_product_attention(x, x, x, implementation="cudnn")

        wide = jax.ShapeDtypeStruct((1, 64, 8, 256), jnp.bfloat16)
        with traced_for(Cluster.parse("h100:1x1")):
            assert "fmha" in text(lower(attend, wide))
        a100 = Cluster.parse("a100:1x1")
        with traced_for(a100), pytest.raises(Exception, match=r"(?i)head dim"):
            lower(attend, wide)
