"""Reports as JSON: what the schema says, there and back."""

import json
from pathlib import Path

import jsonschema
import pytest

from lagom_jax.plan import to_json as plan_to_json
from lagom_jax.report.document import from_json, to_json
from lagom_jax.report.json_schema import published
from lagom_jax.report.story import PageError

from ..plan.plans import made_by_hand
from .stories import reported

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
SCHEMAS = {name: json.loads(text) for name, text in published().items()}
REPORT, PLAN = SCHEMAS["report.schema.json"], SCHEMAS["plan.schema.json"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_schemas_are_fresh(name):
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    command = "python -m lagom_jax.report.json_schema docs/reference"
    assert (FOLDER / name).read_text() == published()[name], f"run: {command}"


def test_a_report_is_what_its_schema_says():
    jsonschema.validate(json.loads(to_json(reported())), REPORT)


def test_a_plan_is_what_its_schema_says():
    jsonschema.validate(json.loads(plan_to_json(made_by_hand())), PLAN)


@pytest.mark.parametrize(
    ("place", "value"),
    [("step_seconds", "long"), ("collectives", [{}]), ("more", 1), ("links", None)],
)
def test_the_schema_refuses_what_is_no_report(place, value):
    document = json.loads(to_json(reported())) | {place: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, REPORT)


def test_a_report_comes_back_as_it_was():
    report = reported()
    assert from_json(to_json(report)) == report


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "no JSON object"),
        ("{", "cut short"),
        ('{"format_version": 99}', "format 99"),
        ('{"format_version": 4}', "missing"),
    ],
)
def test_what_is_no_report_is_refused(text, words):
    with pytest.raises(PageError, match=words):
        from_json(text, "that file")
