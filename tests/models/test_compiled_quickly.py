"""What is spared in a compile changes nothing that is read of it."""

import re

import pytest

import lagom_models
from lagom_jax.cluster import Cluster
from lagom_jax.compile import Compiler, assembler, compile_step, kernels, lower

CASES = [
    (name, parallelism)
    for name in lagom_models.names()
    for parallelism in lagom_models.parallelisms(name)
]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """With a stand-in for the assembler, and kernels kept from one to the next."""
    with Compiler(store=tmp_path_factory.mktemp("store")) as compiler:
        yield compiler


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "parallelism"), CASES)
def test_every_model(name, parallelism, quick, monkeypatch):
    on_model_axis = None if parallelism in ("dp", "fsdp") else 4
    step = lagom_models.build(
        name, devices=16, parallelism=parallelism, model_axis=on_model_axis, tiny=True
    )
    lowered, cluster = lower(step.function, *step.arguments), Cluster.parse("h100:2x8")
    fast = compile_step(lowered, cluster, capture=True, compiler=quick)
    monkeypatch.setattr(assembler, "_made", lambda *_: False)
    monkeypatch.setattr(kernels, "asked_by_user", lambda _: True)
    with Compiler(store=False) as compiler:
        whole = compile_step(lowered, cluster, capture=True, compiler=compiler)
    assert fast.schedule_fingerprint == whole.schedule_fingerprint
    assert fast.memory == whole.memory
    assert without_ids(fast.module_bytes) == without_ids(whole.module_bytes)
    assert without_ids(fast.scheduled_bytes) == without_ids(whole.scheduled_bytes)


def without_ids(module):
    """A module as text; how many a process has compiled before is no part of it.

    Nor are the numbers that the compiler gives to names, and the hash that it writes of
    the module before its scheduler: with everything done anew they differ from one
    compile of a step to the next, too. Names are counted as they come.
    """
    from jaxlib import _hlo

    text = _hlo.HloModule.from_serialized_hlo_module_proto(module).to_string()
    text = re.sub(r'fingerprint_before_lhs="\w+"', "", text)
    numbers: dict[str, int] = {}

    def counted(name: re.Match[str]) -> str:
        return f"{name[1]}.{numbers.setdefault(name[0], len(numbers))}"

    return re.sub(r"([a-zA-Z_][a-zA-Z_\-]*?)(?:[._](?:\d+|clone))+\b", counted, text)
