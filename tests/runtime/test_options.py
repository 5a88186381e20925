import pytest

import lagom_jax
from lagom_jax.errors import ClusterError, KernelTableError
from lagom_jax.hlo.stated_kernels import StatedKernel
from lagom_jax.planner import Budget
from lagom_jax.runtime.options import NAMES, OptionError, Options, resolve


def test_nothing_asked():
    assert resolve({}, {}) == Options()


def test_arguments_beat_flags_beat_the_environment(flags):
    environ = {"LAGOM_MODE": "report", "LAGOM_COMPILES": "3", "LAGOM_VERIFY": "measure"}
    flags(["binary", "--lagom=load", "--lagom_compiles=5"])
    found = resolve({"mode": "tune"}, environ)
    assert (found.mode, found.budget.compiles, found.verify) == ("tune", 5, "measure")
    assert resolve({}, environ).mode == "load"


def test_a_binary_with_the_flags_does_nothing_unasked(flags):
    flags(["binary"])
    assert resolve({}, {}).mode == "off"
    assert resolve({}, {"LAGOM_MODE": "tune"}).mode == "tune"
    assert resolve({"mode": "tune"}, {}).mode == "tune"


def test_flags_that_nobody_parsed(flags):
    assert resolve({}, {}).mode == "off"


def test_every_name_has_a_flag(flags):
    for name in NAMES:
        assert ("lagom" if name == "mode" else f"lagom_{name}") in flags


def test_all_of_the_environment():
    found = resolve(
        {},
        {
            "LAGOM_CLUSTER": "h100:2x8",
            "LAGOM_LEVERS": "options, costs",
            "LAGOM_SECONDS": "30",
            "LAGOM_MEMORY_FRACTION": "0.5",
            "LAGOM_PLAN": "plan.json",
            "LAGOM_CACHE": "off",
            "LAGOM_DETERMINISTIC": "1",
            "LAGOM_STRICT": "yes",
            "LAGOM_PROGRESS": "true",
            "LAGOM_PATIENCE": "7.5",
        },
    )
    assert found == Options(
        cluster="h100:2x8",
        levers=("options", "costs"),
        budget=Budget(seconds=30, memory_fraction=0.5),
        plan="plan.json",
        cache=False,
        deterministic=True,
        strict=True,
        progress=True,
        patience=7.5,
    )


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"LAGOM_MODE": "fast"}, "mode='fast': one of off, report, tune, load"),
        ({"LAGOM_VERIFY": "no"}, "verify='no': one of model, measure"),
        ({"LAGOM_COMPILES": "many"}, "LAGOM_COMPILES=many: "),
        ({"LAGOM_STRICT": "perhaps"}, "LAGOM_STRICT=perhaps: neither true nor false"),
        ({"LAGOM_PATIENCE": "0"}, "patience=0.0: must be above 0"),
        ({"LAGOM_LEVERS": "magic"}, "no lever 'magic'"),
    ],
)
def test_what_cannot_be_understood(environ, told):
    with pytest.raises(OptionError, match=told):
        resolve({}, environ)


def test_a_wrong_cluster_is_known_at_once():
    with pytest.raises(ClusterError, match="h200"):
        lagom_jax.tune(lambda x: x, cluster="h1000:8")


def test_a_budget_is_taken_whole():
    budget = Budget(compiles=2)
    assert resolve({"budget": budget}, {"LAGOM_COMPILES": "5"}).budget is budget


def test_kernels_of_a_file(tmp_path):
    table = tmp_path / "kernels.json"
    table.write_text('{"kernels": [{"name": "te_*", "seconds": 0.5}]}')
    found = resolve({}, {"LAGOM_KERNELS": str(table)})
    assert found.kernels == (StatedKernel("te_*", seconds=0.5),)
    with pytest.raises(KernelTableError, match="cannot read the kernels"):
        resolve({"kernels": tmp_path / "none.json"}, {})
