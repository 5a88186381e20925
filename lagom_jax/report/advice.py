"""Lines to copy: how a plan is used, or how one is made."""

from __future__ import annotations

import dataclasses
import pprint
import shlex
from collections.abc import Sequence

from lagom_jax.markup import LONGEST_NAME, printable
from lagom_jax.plan import Plan, to_json
from lagom_jax.plan.evidence import COSTS
from lagom_jax.plan.shell import shell_lines

_LONGEST_PLAN = 200_000


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """Something to do, with the text to copy."""

    title: str
    why: str
    text: str


def advice(
    plan: Plan | None, subject: Sequence[str], cluster: str
) -> tuple[Advice, ...]:
    """Next steps with a plan; without one, towards one.

    Args:
        plan: The plan.
        subject: The words of the command line that name the step, the first of them
            empty where it has no name.
        cluster: The cluster's name.
    """
    if plan is None:
        return _without_plan(subject, cluster)
    return tuple(_with_plan(plan))


def _without_plan(subject: Sequence[str], cluster: str) -> tuple[Advice, ...]:
    # It is run by whoever copies it, whatever the name holds.
    words = [shlex.quote(printable(word, LONGEST_NAME)) for word in subject]
    named = " ".join(words) if subject[0] else "STEP"
    where = shlex.quote(cluster)
    command = f"lagom tune {named} --cluster {where} --output plan.json"
    return (
        Advice(
            "See what would make it shorter",
            "Compiles the step in several ways, chooses settings of NCCL, and writes "
            "down what it decided. No GPU is needed, and nothing is set.",
            f"{command} --html tuned.html",
        ),
        Advice(
            "Or let the job find out",
            "The step runs as it is where nothing can be gained or anything is in "
            "doubt.",
            "step = lagom_jax.tune(jax.jit(train_step))",
        ),
    )


def _with_plan(plan: Plan) -> list[Advice]:
    found = [
        Advice(
            "In Python",
            "The whole plan: options, order of instructions, and NCCL's settings.",
            "import lagom_jax\n"
            'step = lagom_jax.tune(jax.jit(train_step), mode="load", plan="plan.json")',
        ),
        Advice(
            "In a job that uses absl's flags",
            "The same, without a change of code, where the binary imports "
            "lagom_jax.flags.",
            "--lagom=load --lagom_plan=plan.json",
        ),
    ]
    options = plan.compiler_options()
    options.pop(COSTS, None)
    if options:
        shown = pprint.pformat(options, width=76)
        found.append(
            Advice(
                "XLA's options alone",
                "For `lowered.compile(compiler_options=...)` or `jax.jit`.",
                f"compiler_options = {shown}",
            )
        )
    found.append(
        Advice(
            "In the environment",
            "As far as variables can say it; the comments name the rest.",
            "\n".join(shell_lines(plan)),
        )
    )
    text = to_json(plan)
    if len(text) <= _LONGEST_PLAN:
        found.append(Advice("The plan", "To be kept as plan.json.", text))
    return found
