"""No access outside, nothing undefined, no race: under the compiler's sanitizers."""

import functools
import os
import shutil
import subprocess

import pytest

from lagom_jax.nccl_plugin.build import NAME, SOURCES, WARNINGS, compile_plugin
from lagom_jax.nccl_plugin.image import save
from lagom_jax.nccl_plugin.rules import Answer, Rule, Rules, Scope

from .hosted import HERE, build
from .seeds import write_seeds
from .test_plugin import compare

SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
READER = [str(SOURCES / name) for name in ("rules.c", "places.c")]
ROUNDS = 20_000


def options(kind):
    return ("-g", "-O1", "-fno-omit-frame-pointer", *SANITIZERS[kind])


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    """The plugin by sanitizer, compiled when it is first asked for."""

    @functools.cache
    def sanitized(kind):
        target = tmp_path_factory.mktemp(kind) / NAME
        return compile_plugin(target, (*options(kind), *WARNINGS))

    return sanitized


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """The host that stands in for NCCL, in the same way."""

    @functools.cache
    def sanitized(kind):
        target = tmp_path_factory.mktemp(kind) / "host"
        return build(target, HERE / "host.c", *options(kind))

    return sanitized


@pytest.mark.slow
@pytest.mark.parametrize("kind", SANITIZERS)
@pytest.mark.parametrize("version", [6, 3])
def test_many_communicators_in_many_threads(tmp_path, plugins, hosts, kind, version):
    # A finding ends the host with another exit status, which `ask` does not accept.
    compare(
        hosts(kind),
        plugins(kind),
        tmp_path,
        version=version,
        threads=5,
        seed=7,
        count=8000,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", SANITIZERS)
def test_generations_under_threads(tmp_path, plugins, kind):
    fence = build(tmp_path / "fence", HERE / "fence.c", *options(kind))
    for channels in (3, 5):
        rule = Rule("all-gather", 1, 1 << 30, Answer(channels=channels))
        save(Rules((Scope(8, rules=(rule,)),)), tmp_path / f"{channels}")
    words = [fence, plugins(kind), tmp_path / "3", tmp_path / "5"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"


@pytest.mark.slow
def test_mutated_images_are_read_safely(tmp_path):
    fuzzer = build(
        tmp_path / "fuzzer",
        HERE / "fuzz.c",
        "-DALONE",
        "-g",
        "-O1",
        *SANITIZERS["address"],
        *READER,
    )
    seeds = write_seeds(tmp_path / "seeds")
    words = [fuzzer, "1", str(ROUNDS), *seeds]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Enough of them are accepted for the look-ups to be tried too.
    assert int(done.stdout) > ROUNDS * len(seeds) / 20


def libfuzzer(tmp_path):
    """The fuzzer of clang; None where there is no clang that has it."""
    for clang in ("clang", *(f"clang-{version}" for version in range(22, 13, -1))):
        if shutil.which(clang):
            words = [clang, "-std=c11", "-g", "-O1", "-I", str(SOURCES)]
            words += [
                "-fsanitize=fuzzer,address,undefined",
                "-fno-sanitize-recover=all",
            ]
            target = tmp_path / "libfuzzer"
            words += [str(HERE / "fuzz.c"), *READER, "-o", str(target)]
            if subprocess.run(words, capture_output=True).returncode == 0:
                return target
    return None


@pytest.mark.slow
def test_libfuzzer_finds_nothing(tmp_path):
    fuzzer = libfuzzer(tmp_path)
    if fuzzer is None:
        pytest.skip("no clang with libFuzzer; the mutations above stand for it")
    write_seeds(tmp_path / "seeds")
    words = [fuzzer, "-runs=200000", "-seed=1", "-max_total_time=20", "-max_len=65536"]
    done = subprocess.run(
        [*words, tmp_path / "seeds"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "DONE" in done.stderr or "Done" in done.stderr
