"""The layout is the way of the data: a room imports only the rooms before it."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from ..command_line import write_dump

PACKAGE = Path(__file__).parents[2] / "lagom_jax"
FLAGS = PACKAGE.parent / "xla_flags"
ROOMS = (
    "errors",
    "files",
    "later",
    "markup",
    "processes",
    "typed_json",
    "units",
    "cluster",
    "regions",
    "plan",
    "compile",
    "hlo",
    "program",
    "cost",
    "decompose",
    "settings",
    "order",
    "options",
    "nccl_plugin",
    "environment",
    "measurements",
    "report",
    "dumped",
    "scheduled",
    "api",
    "planner",
    "mesh",
    "online",
    "flags",
    "runtime",
    "commands",
    "cli",
)
# Rooms that must work where jax is not installed or must not be touched. The measurements
# room imports it, but only to read a profile.
WITHOUT_JAX = (
    "errors",
    "files",
    "later",
    "markup",
    "processes",
    "typed_json",
    "units",
    "cluster",
    "plan",
    "hlo",
    "program",
    "cost",
    "settings",
    "order",
    "options",
    "nccl_plugin",
    "report",
    "mesh",
    "online",
)
LONGEST_FILES = {"lagom_jax": 472, "xla_flags": 400, "models": 400, "scripts": 452}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def sources() -> list[Path]:
    return [
        p
        for p in sorted(PACKAGE.rglob("*.py"))
        if p.parent != PACKAGE or p.stem in ROOMS
    ]


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_before_it(path):
    own = ROOMS.index(room_of(path))
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "lagom_jax" and len(parts) > 1 and parts[1] != "__version__":
            assert ROOMS.index(parts[1]) <= own, f"{path} imports {name}"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_does_not_know_jax(path):
    if room_of(path) in WITHOUT_JAX:
        used = {name.split(".")[0] for name in imports(path)}
        assert not used & {"jax", "flax", "optax"}


@pytest.mark.parametrize("path", sorted(FLAGS.rglob("*.py")), ids=lambda p: p.name)
def test_the_catalogue_of_flags_stands_alone(path):
    used = {name.split(".")[0] for name in imports(path)}
    assert used <= {*sys.stdlib_module_names, "xla_flags"}


def test_every_file_belongs_to_a_room():
    strays = {p.stem for p in PACKAGE.glob("*.py")} - {*ROOMS, "__init__", "__main__"}
    folders = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    assert not strays
    assert folders <= set(ROOMS)


@pytest.mark.parametrize(("folder", "most"), LONGEST_FILES.items())
def test_no_file_is_too_long_to_read(folder, most):
    for path in (PACKAGE.parent / folder).rglob("*.py"):
        assert len(path.read_text().splitlines()) <= most, path


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_changes_nothing():
    """No backend starts, no environment variable changes, nothing is printed."""
    printed = run_python(
        "import os, sys; before = dict(os.environ)\n"
        "import lagom_jax, lagom_jax.cli\n"
        "assert 'jax' not in sys.modules, 'lagom_jax imports jax'\n"
        "assert dict(os.environ) == before\n"
    )
    assert printed == ""


def test_a_command_imports_only_what_it_uses(tmp_path):
    """In one process, a command that needs more after those that need less."""
    plan = Path(__file__).parents[1] / "plan" / "old" / "format_6.json"
    dump = write_dump(tmp_path, 8)
    run_python(f"""
import sys
from lagom_jax.cli import main

def does_without(modules, *words):
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    # Where the compiler is not installed as it must be, that is what the doctor finds.
    assert code in ((0, 3) if words[0] == "doctor" else (0,)), (words, code)
    used = [name for name in modules if name in sys.modules]
    assert not used, f"{{words}} imports {{used}}"

modules = ["lagom_models", "jax", "jaxlib", "flax", "optax", "google.protobuf"]
modules += ["lagom_jax." + room for room in ("planner", "mesh", "runtime")]
programs = ["numpy", *("lagom_jax." + room for room in ("program", "cost", "settings"))]
for words in ("--help",), ("--version",):
    does_without([*modules, *programs, "rich", "lagom_jax.plan"], *words)
for words in ("clusters",), ("flags",):
    does_without([*modules, *programs, "lagom_jax.plan"], *words)
does_without([*modules, *programs], "doctor", "--no-compile")
does_without([*modules, *programs], "plan", "show", {str(plan)!r})
modules.remove("google.protobuf")
does_without(modules, "report", {str(dump)!r}, "--cluster", "h100:1x8")
""")


def test_no_name_that_is_imported_later_is_that_of_a_module():
    """The module would stand in its place as soon as anyone has imported it."""
    for folder in {path.parent for path in PACKAGE.glob("*/__init__.py")}:
        room = importlib.import_module(f"lagom_jax.{folder.name}")
        if hasattr(room, "__getattr__"):
            assert not {*room.__all__} & {path.stem for path in folder.glob("*.py")}


def test_importing_the_tracing_side_starts_no_backend():
    # Importing jax sets variables of its own.
    run_python(
        "import os, sys, jax; before = dict(os.environ)\n"
        "import lagom_jax.compile.deviceless, lagom_models\n"
        "assert 'lagom_jax.planner' not in sys.modules\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "assert dict(os.environ) == before\n"
    )
