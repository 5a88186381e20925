"""What is written about the project is true of it."""

import ast
import importlib
import importlib.util
import inspect
import re
import tomllib
from pathlib import Path

import pytest
from write_api import pages as api_pages
from write_api import public_names, rooms
from write_outputs import outputs_of, run

import lagom_jax
from lagom_jax.cli import parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PARTS = ("tutorial", "how-to", "reference", "explanation")
INDEX = DOCS / "README.md"
LIBRARIES = DOCS / "how-to" / "libraries"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = [ROOT / "README.md", CONTRIBUTING, *sorted(DOCS.rglob("*.md"))]
SOURCES = [
    path
    for folder in ("lagom_jax", "xla_flags", "models", "scripts", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".c", ".h")
]


@pytest.mark.parametrize("name", lagom_jax.__all__)
def test_public_names_are_documented(name):
    thing = getattr(lagom_jax, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if callable(value) and not member.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_public_functions_have_examples():
    for name in lagom_jax.__all__:
        thing = getattr(lagom_jax, name)
        if inspect.isfunction(thing):
            assert "Example:" in (inspect.getdoc(thing) or ""), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_in_the_pages_exist(page):
    """Every `lagom ...` line of a code block is one the command line accepts."""
    for block in re.findall(
        r"```(?:sh|console|bash)\n(.*?)```", page.read_text(), re.S
    ):
        joined = block.replace("\\\n", " ")
        for line in joined.splitlines():
            words = line.strip().removeprefix("$ ").split("#")[0].split()
            if words[:1] == ["lagom"] and "|" not in words and ">" not in words:
                parser(words[1:]).parse_args(words[1:])


def test_the_readme_is_a_door():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 90
    assert len(re.findall(r"\]\(", text)) == 3


def test_every_page_is_in_one_of_four_parts():
    for path in DOCS.rglob("*"):
        if path.is_file() and path != INDEX:
            assert path.relative_to(DOCS).parts[0] in PARTS, path


def test_the_index_leads_to_every_page():
    listed = {
        (DOCS / target).resolve()
        for target in re.findall(r"\]\(([^)#\s]+)\)", INDEX.read_text())
    }
    api = DOCS / "reference" / "api"
    pages = {
        path
        for path in DOCS.rglob("*.md")
        if path != INDEX and (path.parent != api or path.name == "README.md")
    }
    assert pages <= listed


def test_pages_that_the_code_names_exist():
    for path in SOURCES:
        for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", path.read_text()):
            assert (ROOT / page).exists(), f"{path} names {page}"


def is_public(room, name):
    """Exported by a room, or a room itself."""
    if room == "lagom_jax" and importlib.util.find_spec(f"lagom_jax.{name}"):
        return True
    return name in public_names(importlib.import_module(room))


def python_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_the_pages_import_is_public(page):
    """From the package or from a room itself, never from a module inside of one."""
    for code in python_of(page):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom):
                if not (node.module or "").startswith("lagom_jax"):
                    continue
                assert (node.module or "").count(".") <= 1, node.module
                for alias in node.names:
                    assert is_public(node.module, alias.name), alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    # Other people's, each on the page that is about it.
                    if page.parent == LIBRARIES and not importlib.util.find_spec(root):
                        continue
                    importlib.import_module(alias.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_names_in_the_pages_exist(page):
    """Every `lagom_jax.this.that` of a page can be reached from its rooms."""
    for name in set(re.findall(r"`(lagom_jax(?:\.\w+)+)", page.read_text())):
        room, *rest = name.split(".")
        thing = importlib.import_module(room)
        for part in rest:
            try:
                thing = getattr(thing, part)
            except AttributeError:
                thing = importlib.import_module(f"{thing.__name__}.{part}")


def test_the_pages_of_the_api_are_fresh():
    there = {p.name: p.read_text() for p in (DOCS / "reference" / "api").glob("*.md")}
    made = api_pages()
    stale = {name for name in {*made, *there} if made.get(name) != there.get(name)}
    assert not stale, "run: python scripts/write_api.py"


def test_every_public_name_has_its_place_in_the_api():
    made = api_pages()
    for room in rooms():
        page = made[room.__name__.removeprefix("lagom_jax.") + ".md"]
        for name in public_names(room):
            assert f"## `{name}`\n" in page, f"{room.__name__}.{name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", DOCS / "tutorial" / "first-plan.md"],
    ids=lambda p: p.name,
)
def test_a_report_that_a_page_shows_is_what_is_printed(page, tmp_path):
    shown = [
        (command, output)
        for command, output in outputs_of(page.read_text())
        if command.startswith("lagom report") and "--plan" not in command
    ]
    assert shown
    for command, output in shown:
        assert run(command, tmp_path) == output, "run: python scripts/write_outputs.py"


def test_the_rooms_are_listed_as_they_are():
    text = CONTRIBUTING.read_text()
    block = text.partition("\nlagom_jax/\n")[2].partition("```")[0]
    rows = [line for line in block.splitlines() if line.startswith("  ")]
    listed = [room for row in rows for room in re.findall(r"(\w+)/(?= )", row)]
    rooms = {
        p.name for p in (ROOT / "lagom_jax").iterdir() if (p / "__init__.py").exists()
    }
    assert len(rows) <= 10
    assert set(listed) == rooms
    assert len(listed) == len(rooms)


def test_dependencies_are_explained():
    text = (DOCS / "reference" / "dependencies.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for needed in project["dependencies"]:
        name = re.match(r"[\w-]+", needed)[0]
        assert f"| **{name}** |" in text, f"no word on why {name}"
    for extra in project["optional-dependencies"]:
        assert f"`{extra}`" in text, f"no word on the extra {extra}"


def test_the_glossary_is_short_and_its_words_are_used():
    page = DOCS / "reference" / "glossary.md"
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", page.read_text(), re.M)
    assert len(words) == len(set(words)) <= 40
    others = " ".join(p.read_text().lower() for p in PAGES if p != page)
    for word in words:
        assert re.search(rf"\b{word}", others), f"no page uses {word}"


def test_every_module_can_be_imported():
    for path in (ROOT / "lagom_jax").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.endswith("__main__"):
            importlib.import_module(name.removesuffix(".__init__"))
