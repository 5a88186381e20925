"""A plan as lines for a shell, as far as variables can say it."""

from __future__ import annotations

import shlex

from lagom_jax.plan.plan import Plan


def shell_lines(plan: Plan) -> list[str]:
    """Lines that add the options of a plan to `XLA_FLAGS`.

    Args:
        plan: The plan.

    Returns:
        Lines for a POSIX shell; comments say what no variable can.
    """
    lines = [_comment(f"{plan.holds_for.program} on {plan.holds_for.cluster}")]
    for name, value in plan.environment().items():
        # What was set before stays, and where both name an option the later counts.
        before = f'"${{{name}:+${name} }}"' if name == "XLA_FLAGS" else ""
        lines.append(f"export {name}={before}{shlex.quote(value)}")
    lines += [_comment(f"  {one.name}: {one.why}") for one in plan.variables]
    beyond = plan.beyond_environment()
    if beyond:
        lines.append("# No environment variable can say these:")
        lines += [_comment(f"  {part.what}: {part.why}") for part in beyond]
    return lines


def _comment(words: str) -> str:
    """One line, whatever the file holds: a shell would run a second one."""
    return "# " + "".join(c if c.isprintable() else "?" for c in words)
