"""Places in the user's source, beside the program and back in it."""

import importlib.util
import os

import jax
import jax.numpy as jnp
import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.compile import Compiler, compile_step, lower
from lagom_jax.compile.locations import Locations, SourceFrame, separated
from lagom_jax.hlo import read_module
from lagom_jax.hlo.config import source_line

PROGRAM = """\
import jax.numpy as jnp


def inner(x):
    return jnp.tanh(x @ x)


def step(x):
    return inner(x).sum()
"""


def step_of(folder, text):
    file = folder / "written.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(f"written_{len(text)}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.step


def lines_of(compiled):
    module = read_module(compiled.module_bytes)
    return {
        os.path.basename(line)
        for computation in module.computations.values()
        for instruction in computation.instructions.values()
        if (line := source_line(module, instruction))
    }


LIBRARY = """\
import jax
import jax.numpy as jnp


def layers(weights, x):
    body = lambda x, w: (jnp.tanh(x @ w) * jnp.sin(x).sum(0), None)
    return jax.lax.scan(body, x, weights)[0]
"""


def test_inside_a_library_s_loop_the_line_is_its_caller_s(tmp_path):
    """jax writes frames of a loop's body from there on; the user's is further out."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    file = installed / "library.py"
    file.write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location("library_of_layers", file)
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)

    def step(weights, x):
        return library.layers(weights, x).sum()

    weights, x = jnp.ones((3, 64, 64)), jnp.ones((64, 64))
    lines = lines_of(compile_step(lower(step, weights, x), Cluster.parse("h100:1x1")))
    here = os.path.basename(__file__)
    assert lines
    assert {line.partition(":")[0] for line in lines} == {here}


@pytest.fixture
def moved(tmp_path):
    """The same program at two places, three lines apart."""
    (tmp_path / "other").mkdir()
    comment = "# A comment.\n" * 3
    one = step_of(tmp_path, PROGRAM)
    other = step_of(tmp_path / "other", comment + PROGRAM)
    return [lower(step, jnp.ones((64, 64))) for step in (one, other)]


def test_where_a_program_was_written_is_no_part_of_it(moved):
    one, other = moved
    assert one.digest == other.digest
    assert one.fingerprint == other.fingerprint
    assert one.stablehlo == other.stablehlo
    assert one.locations != other.locations


def test_who_calls_is_no_part_of_a_program():
    def caller():
        return lower(jnp.tanh, jnp.ones(3))

    assert caller().digest == lower(jnp.tanh, jnp.ones(3)).digest


def test_names_are_part_of_a_program():
    def scoped(name):
        def step(x):
            with jax.named_scope(name):
                return jnp.tanh(x)

        return lower(step, jnp.ones(3))

    assert scoped("a").digest != scoped("b").digest
    assert scoped("a").fingerprint == scoped("b").fingerprint


def test_what_was_kept_names_the_lines_of_today(moved, h100, tmp_path):
    one, other = moved
    with Compiler(store=tmp_path / "store") as compiler:
        made = compile_step(one, h100, compiler=compiler)
        found = compile_step(other, h100, compiler=compiler)
    assert found.stored
    assert "written.py:5" in lines_of(made)
    assert "written.py:8" in lines_of(found)
    assert "written.py:5" not in lines_of(found)


def test_the_frames_of_a_call_are_kept(moved):
    frames = [
        [(os.path.basename(frame.file), frame.line, frame.function) for frame in place]
        for place in moved[0].locations.places
    ]
    assert any(
        place[:2] == [("written.py", 5, "inner"), ("written.py", 9, "step")]
        for place in frames
    )


@pytest.mark.parametrize(
    "known",
    [
        '#loc1 = loc("a.py":1:2 to :9)',
        '#loc1 = loc(fused<"x">[#loc2])\n#loc2 = loc("a.py":1:2)',
    ],
)
def test_forms_of_places(known):
    found = separated(f"{known}\nmodule {{ add loc(#loc1) }}")
    assert found is not None
    assert found[1].places == ((SourceFrame("a.py", 1),),)


def test_a_form_that_is_not_known_leaves_the_program_as_it_is():
    assert separated("#loc1 = loc(something new)\nadd loc(#loc1)") is None


def test_names_that_look_like_places_stay():
    text = '#loc1 = loc("a.py\\22:1:2")\nadd loc(#loc1)'
    assert separated(text) == (text, Locations(()))


def test_a_module_without_places_is_returned_as_it_is():
    assert Locations((((SourceFrame("a", 1)),),)).restored(b"") == b""
    assert Locations().restored(b"anything") == b"anything"
