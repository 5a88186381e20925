"""Programs from before the compiler, taken as steps."""

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lagom_jax
from lagom_jax.cli import main
from lagom_jax.compile import lower
from lagom_jax.dumped import step_in
from lagom_jax.errors import HloError
from lagom_jax.hlo.files import read_program
from tests.compile.test_lowering import text as text_of

CLUSTER = "h100:1x8"


def traced():
    """A small training step over eight devices, with donation."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

    def step(weights, batch):
        def loss(weights):
            hidden = jax.lax.with_sharding_constraint(
                jnp.tanh(batch @ weights), NamedSharding(mesh, P("data"))
            )
            return jnp.square(hidden @ weights.T).sum()

        gradient = jax.grad(loss)(weights)
        return weights - 0.1 * gradient, gradient.sum()

    def array(*shape, spec):
        return jax.ShapeDtypeStruct(
            shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec)
        )

    arguments = (array(512, 512, spec=P("data")), array(64, 512, spec=P("data")))
    # What is returned is cut along another dimension than what came in.
    results = NamedSharding(mesh, P(None, "data")), NamedSharding(mesh, P())
    return jax.jit(step, donate_argnums=0, out_shardings=results), arguments


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The step in every form that is not compiled."""
    folder = tmp_path_factory.mktemp("programs")
    step, arguments = traced()
    lowered = step.trace(*arguments).lower(lowering_platforms=("cuda",))
    (folder / "step.mlir").write_text(lowered.as_text())
    hlo = lowered.as_text("hlo").replace("HloModule jit_step,", _HEADER)
    (folder / "module_0001.jit_step.before_optimizations.txt").write_text(hlo)
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    (folder / "step.hlo.pb").write_bytes(proto)
    exported = export.export(step, platforms=["cuda"])(*arguments)
    (folder / "step.mlirbc").write_bytes(exported.mlir_module_serialized)
    return folder


# As XLA writes it into a dump, and jax's own text does not.
_HEADER = "HloModule jit_step, num_partitions=8,"
FORMS = ("step.mlir", "module_0001.jit_step.before_optimizations.txt", "step.hlo.pb")


@pytest.mark.parametrize("name", [*FORMS, "step.mlirbc"])
def test_the_step_is_found_in_a_file(written, name):
    step, arguments = traced()
    found = step_in(read_program(written / name))
    assert found is not None
    assert found.name == "step"
    assert found.device_count == 8
    assert found.mesh == (("data", 8),)
    assert found.argument_count == 2
    if name != "step.mlirbc":
        assert found.donated == (True, False)
    if name == "step.mlir":
        assert text_of(found) == text_of(lower(step, *arguments))
        assert found.fingerprint == lower(step, *arguments).fingerprint


@pytest.mark.slow
def test_all_forms_give_the_same_report(written):
    step, arguments = traced()
    usual = lagom_jax.analyze(step, *arguments, cluster=CLUSTER)
    for name in FORMS:
        report = lagom_jax.analyze_dump(written / name, CLUSTER)
        assert report.step_seconds == usual.step_seconds
        assert report.peak_memory_bytes == usual.peak_memory_bytes
        assert [row.bytes for row in report.collectives] == [
            row.bytes for row in usual.collectives
        ]


RESULT_IN_TWO_WORDS = """\
HloModule jit_step, num_partitions=8, \
allow_spmd_sharding_propagation_to_output={false}, \
frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["data"=8]>}}

ENTRY %main (p: f32[512,512]) -> (f32[512,512]) {
  %p = f32[512,512]{1,0} parameter(0), sharding={devices=[8,1]<=[8]}, \
frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"data\\"}, {}]>"}
  %twice = f32[512,512]{1,0} add(%p, %p)
  %said = f32[512,512]{1,0} custom-call(%twice), \
custom_call_target="xla.sdy.FuncResultSharding", custom_call_has_side_effect=true, \
frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, RESULT>]>"}
  %again = f32[512,512]{1,0} reshape(%said), sharding={devices=GSPMD<=[8]}
  ROOT %result = (f32[512,512]{1,0}) tuple(%again)
}
"""


@pytest.mark.parametrize(
    ("shardy", "gspmd", "kinds"),
    [
        ('[{}, {\\"data\\"}]', "[1,8]", ["all-to-all"]),
        ('[{\\"data\\"}, {}]', "[8,1]", []),
    ],
)
def test_shardings_of_results_are_kept(tmp_path, shardy, gspmd, kinds):
    path = tmp_path / "module_0001.jit_step.before_optimizations.txt"
    text = RESULT_IN_TWO_WORDS.replace("RESULT", shardy).replace("GSPMD", gspmd)
    path.write_text(text)
    found = step_in(read_program(path))
    assert found is not None
    assert found.mesh == (("data", 8),)
    # The compiler takes shardings from the dialect alone where it is given StableHLO.
    written = text_of(found)
    assert "xla.sdy." not in written
    assert 'sdy.mesh @mesh = <["data"=8]>' in written
    assert written.count("sdy.sharding = #sdy.sharding<@mesh") == 2
    report = lagom_jax.analyze_dump(path, CLUSTER)
    assert [one.kind for one in report.collectives] == kinds


@pytest.mark.slow
def test_a_plan_is_made_for_a_file(written, tmp_path):
    plan = tmp_path / "plan.json"
    words = ["tune", str(written / "step.mlir"), "--cluster", CLUSTER]
    assert main([*words, "--compiles", "2", "--output", str(plan)]) == 0
    step, arguments = traced()
    # It holds for the step itself.
    scheduled = lagom_jax.api.compile_scheduled(
        step, *arguments, cluster=CLUSTER, plan=plan
    )
    assert scheduled.plan is not None


def test_a_file_of_export_needs_its_library_and_the_right_platform(tmp_path):
    pytest.importorskip("flatbuffers")
    step, arguments = traced()
    here = export.export(step)(*arguments).serialize()
    (tmp_path / "step.export").write_bytes(here)
    with pytest.raises(lagom_jax.LagomError, match="exported for cpu"):
        step_in(read_program(tmp_path / "step.export"))
    there = export.export(step, platforms=["cuda"])(*arguments).serialize()
    (tmp_path / "step.export").write_bytes(there)
    found = step_in(read_program(tmp_path / "step.export"))
    assert (found.name, found.device_count) == ("step", 8)


def test_rules_in_python_do_not_travel(tmp_path):
    path = tmp_path / "step.mlir"
    path.write_text(
        "module @jit_f { func.func public @main(%arg0: tensor<8xf32>) -> tensor<8xf32> "
        "{ %0 = stablehlo.custom_call @CustomSPMDPartitioning(%arg0) "
        '{backend_config = "1"} : (tensor<8xf32>) -> tensor<8xf32> '
        "return %0 : tensor<8xf32> } }"
    )
    with pytest.raises(lagom_jax.LagomError, match="give the step itself"):
        step_in(read_program(path))


def test_what_is_damaged_is_refused(tmp_path):
    path = tmp_path / "step.mlir"
    path.write_text("module @jit_f { func.func @main(")
    with pytest.raises(lagom_jax.LagomError, match="cannot be read"):
        step_in(read_program(path))
    path.write_text("")
    with pytest.raises(HloError, match="empty"):
        read_program(path)
