"""Docstrings name the thing first, and no two things have one name."""

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lagom_jax"
RIDDLE = re.compile(r"(What|Whether|Who|Whose|Where|How|Which|That|Why|When)\b")
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def trees():
    """The modules' trees; every worker imports this file, and one runs it."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def docstrings(tree):
    """Those of modules, classes and functions, and those below fields."""
    for scope in ast.walk(tree):
        if isinstance(scope, SCOPES):
            for node in scope.body:
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    yield node.lineno, str(node.value.value).strip()


def riddles(tree):
    return [line for line, text in docstrings(tree) if RIDDLE.match(text)]


@pytest.mark.parametrize("text", ["What it is.", "Whether it holds.", "How it goes."])
def test_a_riddle_is_seen_wherever_it_stands(text):
    for source in (
        f'"""{text}"""',
        f'def one():\n    """{text}"""',
        f'class One:\n    field: int\n    """{text}"""',
    ):
        assert riddles(ast.parse(source))
        assert not riddles(ast.parse(source.replace(text, f"Name. {text}")))


def test_no_docstring_opens_with_a_question():
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path, tree in trees().items()
        if (lines := riddles(tree))
    }
    assert not found


def test_no_two_classes_have_one_name():
    names = Counter(
        node.name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []
