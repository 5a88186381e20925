"""The GitHub Action of docs/how-to/ci.md: its form, its shell, and the commands in it."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from lagom_jax.cli import parser

yaml = pytest.importorskip("yaml", reason="no yaml: pip install pyyaml")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ci.md"


@pytest.fixture(scope="module")
def job():
    text = re.search(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)[1]
    workflow = yaml.safe_load(text)
    # YAML 1.1 reads `on` as true.
    assert workflow.get("on", workflow.get(True)) == "pull_request"
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    return workflow["jobs"]["overlap"]


def scripts(job):
    return [step["run"] for step in job["steps"] if "run" in step]


def test_each_step_runs_or_uses_something(job):
    assert job["runs-on"] == "ubuntu-latest"
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])


def test_the_shell_can_read_it(job):
    for script in scripts(job):
        # What GitHub puts in is a word by then.
        plain = re.sub(r"\$\{\{.*?\}\}", "word", script)
        done = subprocess.run(
            ["bash", "-n"], input=plain, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_every_variable_is_given(job):
    given = {"GITHUB_REPOSITORY", "RUNNER_TEMP", *job["env"]}
    for step in job["steps"]:
        own = given | step.get("env", {}).keys()
        named = set(re.findall(r"\$\{?([A-Z_]+)", step.get("run", "")))
        assert named <= own


def test_its_commands_take_these_options(job):
    lines = "\n".join(scripts(job)).replace("\\\n", " ").splitlines()
    commands = [line.strip() for line in lines if line.strip().startswith("lagom ")]
    assert {shlex.split(one)[1] for one in commands} == {"report", "diff"}
    for command in commands:
        words = shlex.split(command.partition(">")[0])[1:]
        parser(words).parse_args(words)
    for option in ("--markdown", "--max-slower", "--json", "--html"):
        assert any(option in command for command in commands)
