"""Kernels of other libraries, priced by what their user states."""

import dataclasses
import json

import pytest

from lagom_jax.cli import main
from lagom_jax.cluster import Cluster
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import load_constants
from lagom_jax.errors import KernelTableError
from lagom_jax.hlo import StatedKernel, load_kernels, read_bytes, read_module
from lagom_jax.program.build import build_program

H100 = Cluster.parse("h100:1x1")
DUMP = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[1024,1024])->f32[1024,1024]}

ENTRY %main (x: f32[1024,1024]) -> f32[1024,1024] {
  %x = f32[1024,1024]{1,0} parameter(0)
  %a = f32[1024,1024]{1,0} custom-call(%x), custom_call_target="te_norm", api_version=API_VERSION_TYPED_FFI
  ROOT %b = f32[1024,1024]{1,0} custom-call(%a), custom_call_target="own_kernel", api_version=API_VERSION_TYPED_FFI
}
"""


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "step.after_optimizations.txt"
    path.write_text(DUMP)
    return path


def table(folder, *rows):
    path = folder / "kernels.json"
    path.write_text(json.dumps({"kernels": rows}))
    return path


def prices(dump, *stated):
    module = read_module(read_bytes(dump).module)
    program = build_program(dataclasses.replace(module, stated=stated))
    constants = load_constants(H100)
    return {
        task.work.target: kernel_price(task.work, H100, constants).seconds
        for task, _, _ in program.tasks()
    }


def test_a_stated_time_is_the_price(dump):
    usual, stated = prices(dump), prices(dump, StatedKernel("te_*", seconds=0.5))
    assert stated == {**usual, "te_norm": 0.5}


def test_the_first_statement_that_fits_holds(dump):
    found = prices(
        dump, StatedKernel("te_*", seconds=0.5), StatedKernel("*", seconds=2)
    )
    assert found == {"te_norm": 0.5, "own_kernel": 2}


@pytest.mark.parametrize("more", [{"flops": 1e13}, {"flops": 1e3, "bytes": 1e10}])
def test_more_work_takes_more_time(dump, more):
    less = {name: value / 10 for name, value in more.items()}
    one = prices(dump, StatedKernel("te_norm", **less))["te_norm"]
    other = prices(dump, StatedKernel("te_norm", **more))["te_norm"]
    assert 5 * one < other < 11 * one


def test_the_command_states_them(dump, tmp_path, capsys):
    words = ["report", str(dump), "--cluster", "h100:1x1"]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "without the time of 2 kernels that nothing is known of (own_kernel, te_norm)"
        in shown
    )
    path = table(
        tmp_path, {"name": "*", "seconds": 0.5}, {"name": "gone", "seconds": 1}
    )
    assert main([*words, "--kernels", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "step 1.00 s" in shown
    assert "without the time" not in shown
    assert "--kernels states gone, and the program calls no such kernel" in shown


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"name": "a"}, "state its seconds"),
        ({"name": "a", "seconds": 1, "flops": 1}, "leave out flops"),
        ({"name": "a", "seconds": -1}, "no time"),
        ({"name": "a", "time": 1}, "time"),
        ({"seconds": 1}, "name"),
    ],
)
def test_what_a_table_cannot_say(tmp_path, row, told):
    with pytest.raises(KernelTableError, match=told):
        load_kernels(table(tmp_path, row))


def test_a_table_that_is_none(tmp_path):
    path = tmp_path / "kernels.json"
    path.write_text("name,seconds\na,1\n")
    with pytest.raises(KernelTableError, match="it is JSON such as"):
        load_kernels(path)
