"""The catalogue as data: complete records, and a page that says the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from lagom_jax.hlo.kinds import KINDS
from xla_flags import (
    Flag,
    FlagError,
    find,
    flags,
    known,
    nearest,
    parse_flag,
    print_flag,
    recipes,
)
from xla_flags.catalogue import hint, removed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("flag", flags(), ids=lambda flag: flag.name)
def test_a_record_is_whole(flag):
    assert flag.binds.endswith(".")
    assert flag.sources
    assert flag.seen or flag.holder == "nccl"
    assert set(flag.kinds) <= {*KINDS}
    assert not set(flag.seen) & set(flag.absent)
    assert (flag.routes == ("environment",)) == (flag.holder == "nccl")
    assert not flag.replaced_by or (flag.replaced_by in known() and flag.absent)
    assert all(hazard.endswith(".") for hazard in flag.hazards)


@pytest.mark.parametrize("flag", flags(), ids=lambda flag: flag.name)
def test_a_name_with_a_slip_is_found(flag):
    assert nearest(flag.name + "s") == flag.name
    assert nearest(flag.name.lower().replace("_", "-")) == flag.name


def test_a_name_without_a_relative_has_no_hint():
    assert nearest("rematerialise") is None
    assert hint("rematerialise") == ""
    with pytest.raises(FlagError, match=r"not in the catalogue$"):
        find("rematerialise")


def test_what_is_gone_is_not_in_the_catalogue():
    assert not set(removed()) & set(known())


def test_records_that_make_no_sense_are_refused():
    whole = {
        "name": "x",
        "holder": "xla",
        "group": "g",
        "type": "enum",
        "binds": "",
        "scope": "process",
        "changes": "program",
        "seen": {},
        "sources": (),
    }
    with pytest.raises(FlagError, match="without choices"):
        Flag(**whole)
    with pytest.raises(FlagError, match="scope cannot be"):
        Flag(**whole | {"type": "bool", "scope": "world"})
    with pytest.raises(FlagError, match="0 bits"):
        Flag(**whole | {"type": "int"})


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
def test_a_recipe_can_be_set(recipe):
    assert recipe.source.startswith("https://")
    assert recipe.settings
    assert set(recipe.given) <= set(removed())
    for name, value in recipe.settings.items():
        flag = known()[name]
        if flag.routes != ("compiler_options",):
            assert parse_flag(flag, print_flag(flag, value)) == value
    assert set(recipe.for_version("0.12.0.1")) <= set(recipe.settings)


def test_the_page_says_what_the_catalogue_says():
    page = ROOT / "docs" / "reference" / "flags.md"
    before = page.read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "write_flags.py", "--print"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )
    assert done.stdout == before, "run python scripts/write_flags.py"
