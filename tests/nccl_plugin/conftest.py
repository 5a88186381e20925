import pytest

from lagom_jax.nccl_plugin.build import NAME, WARNINGS, compile_plugin

from .hosted import HERE, build


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """The plugin, compiled without a warning."""
    target = tmp_path_factory.mktemp("plugin") / NAME
    return compile_plugin(target, ("-O2", *WARNINGS, "-Werror"))


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    return build(tmp_path_factory.mktemp("host") / "host", HERE / "host.c", "-O1")
