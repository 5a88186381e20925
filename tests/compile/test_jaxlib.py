"""The compiling process does as jax would, without jax."""

import jax
import pytest
from jax._src import compiler as jax_compiler

from lagom_jax.compile import _jax_internals, _jaxlib, child
from lagom_jax.compile.deviceless import _request
from lagom_jax.compile.lowering import compiler_settings, lower
from tests.compile.conftest import TARGET_TEXT, Target

SETTINGS = [
    {},
    {"jax_optimization_level": "O1"},
    {"jax_memory_fitting_level": "O0"},
    {"jax_use_shardy_partitioner": False},
    {"jax_compiler_enable_remat_pass": False},
    {"jax_disable_most_optimizations": True},
    {"jax_xla_profile_version": 3},
]
OPTIONS = [
    {},
    {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False},
    {"optimization_level": 29, "memory_fitting_level": 9},
    {"fdo_profile": b"profile"},
]


@pytest.fixture
def configured():
    before = compiler_settings()
    yield jax.config.update
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "none")
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s) or "usual")
def test_compile_options_are_those_of_jax(configured, settings, options):
    for name, value in settings.items():
        configured(name, value)
    flags = dict(options)
    theirs = jax_compiler.get_compile_options(
        num_replicas=1,
        num_partitions=4,
        device_assignment=jax.numpy.array([[3, 2, 1, 0]]),
        fdo_profile=flags.pop("fdo_profile", None),
        env_options_overrides=flags,
        detailed_logging=False,
    )
    theirs.parameter_is_tupled_arguments = True
    build = theirs.executable_build_options
    build.allow_spmd_sharding_propagation_to_parameters = [True, False]
    build.allow_spmd_sharding_propagation_to_output = [True]
    ours = _jaxlib.compile_options(
        (3, 2, 1, 0),
        tuple_args=True,
        propagate_to_inputs=[True, False],
        propagate_to_outputs=[True],
        options=options,
        settings=compiler_settings(),
    )
    ours.executable_build_options.debug_options.xla_detailed_logging = False
    assert ours.SerializeAsString() == theirs.SerializeAsString()


def test_each_setting_reaches_the_compiler(configured):
    def serialised():
        return _jaxlib.compile_options(
            (0,),
            tuple_args=False,
            propagate_to_inputs=[],
            propagate_to_outputs=[],
            options={},
            settings=compiler_settings(),
        ).SerializeAsString()

    usual, before = serialised(), compiler_settings()
    for settings in SETTINGS[1:]:
        for name, value in settings.items():
            configured(name, value)
            assert serialised() != usual, name
            configured(name, before[name])
    assert serialised() == usual


def test_a_compile_imports_no_jax():
    said = "import sys; from lagom_jax.compile import worker; worker.main(); "
    said += "print('jax' in sys.modules, file=sys.stderr)"
    program = lower(jax.jit(lambda x: x * 2), 1.0)
    asking = child.Child(child.environment(), *child.processes.python("-c", said))
    request = _request(
        program, Target("h100:1x1", TARGET_TEXT, "1x1x1"), {}, None, True
    )
    answer = asking.ask(request, program.stablehlo, timeout_s=100)
    assert answer.header["ok"], answer.header
    asking._process.stdin.close()
    asking._process.wait(10)
    asking._stderr.seek(0)
    assert asking._stderr.read().split()[-1] == b"False"
    asking.close()


def test_what_jax_says_of_its_own_calls_is_passed_on():
    names = ("cusolver_getrf_ffi", "cu_lu_pivots_to_permutation", "my_kernel")
    assert _jax_internals.batch_partitionable(names) == names[:2]
    step = lower(
        jax.jit(jax.numpy.linalg.inv), jax.ShapeDtypeStruct((4, 8, 8), "float32")
    )
    assert set(step.batch_partitionable) >= {"cusolver_getrf_ffi"}
    assert set(step.batch_partitionable) <= set(step.custom_calls)
