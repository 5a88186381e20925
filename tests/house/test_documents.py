"""What is written about the project is true of it."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import lagom_jax
from lagom_jax.cli import parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


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
                parser().parse_args(words[1:])


def test_the_readme_shows_the_layout_as_it_is():
    text = (ROOT / "README.md").read_text()
    listed = set(re.findall(r"^  (\w+)/ ", text, re.M))
    rooms = {
        p.name for p in (ROOT / "lagom_jax").iterdir() if (p / "__init__.py").exists()
    }
    assert listed == rooms


def test_dependencies_are_explained():
    text = (ROOT / "README.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r"\ndependencies = \[(.*?)\]", project, re.S)
    assert needed
    for name in re.findall(r'"([\w-]+)', needed[1]):
        assert re.search(rf"\*\*{name}\*\*", text), f"README does not say why {name}"


def test_every_module_can_be_imported():
    for path in (ROOT / "lagom_jax").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.endswith("__main__"):
            importlib.import_module(name.removesuffix(".__init__"))
