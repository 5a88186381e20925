"""Installations that work, and those that must be refused."""

from pathlib import Path

import pytest

from lagom_jax.compile import Toolchain
from lagom_jax.errors import ToolchainError

PTXAS = Path("/env/site-packages/nvidia/cuda_nvcc/bin/ptxas")
LIBDEVICE = Path("/env/site-packages/nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc")


def toolchain(ptxas=PTXAS, libdevice=LIBDEVICE, **versions):
    installed = {
        "jax": "0.10.2",
        "jaxlib": "0.10.2",
        "jax-cuda12-plugin": "0.10.2",
        "jax-cuda12-pjrt": "0.10.2",
    } | {name.replace("_", "-"): version for name, version in versions.items()}
    found = {name: version for name, version in installed.items() if version}
    return Toolchain(found, ptxas, None, libdevice)


def severities(tools):
    return {finding.severity for finding in tools.findings}


def test_a_complete_one():
    assert severities(toolchain()) == {"ok"}
    assert toolchain().require() == toolchain()


def test_this_one():
    assert Toolchain.probe().require().ptxas


@pytest.mark.parametrize("package", ["jaxlib", "jax_cuda12_plugin", "jax_cuda12_pjrt"])
def test_mixed_versions_are_refused(package):
    with pytest.raises(ToolchainError, match="every collective synchronous"):
        toolchain(**{package: "0.12.0.1"}).require()


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"jax_cuda12_plugin": None}, r"jax\[cuda12-local\]==0.10.2"),
        ({"jax_cuda12_pjrt": None}, r"jax\[cuda12-local\]==0.10.2"),
        ({"ptxas": None}, "pip install nvidia-cuda-nvcc-cu12"),
        ({"jaxlib": None}, "jaxlib is not installed"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(change, remedy):
    with pytest.raises(ToolchainError, match=remedy):
        toolchain(**change).require()


@pytest.mark.parametrize(
    "change",
    [
        {"libdevice": None},
        {"ptxas": Path("/usr/local/cuda/bin/ptxas")},
        {"jax": "0.99"},
        {"jax_cuda13_plugin": "0.10.2", "jax_cuda13_pjrt": "0.10.2"},
    ],
)
def test_what_is_doubtful_is_said_and_let_through(change):
    tools = toolchain(**change)
    assert severities(tools) == {"ok", "warning"}
    assert all(f.remedy for f in tools.findings if f.severity == "warning")
    tools.require()


def test_the_cuda_root_comes_before_the_path(tmp_path):
    for folder in ("root/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
        tool = tmp_path / folder / "ptxas"
        tool.touch(mode=0o755)
    environ = {"CUDA_ROOT": str(tmp_path / "root"), "PATH": str(tmp_path / "path")}
    assert Toolchain.probe(environ).ptxas == tmp_path / "root/bin/ptxas"
    (tmp_path / "root/bin/ptxas").chmod(0o644)
    assert Toolchain.probe(environ).ptxas == tmp_path / "path/ptxas"


def test_the_version_of_what_is_missing():
    with pytest.raises(ToolchainError, match="jaxlib is not installed: pip install"):
        Toolchain({}, None, None, None).version("jaxlib")


@pytest.mark.parametrize(
    ("jax", "said"), [("0.11.2", ["; plans leave the order to XLA"]), ("0.99", [""])]
)
def test_a_jax_without_orders_is_said_to_be_one(jax, said):
    known = f"jax {jax} has not been tried with lagom_jax"
    texts = [f.text for f in toolchain(jax=jax).findings]
    assert [t.removeprefix(known) for t in texts if t.startswith(known)] == said
