"""Settings of a program's collectives, as a plan has them."""

from __future__ import annotations

from lagom_jax.cluster import Cluster
from lagom_jax.cost.arrays import usual_setting
from lagom_jax.cost.nccl_facts import nccl_facts
from lagom_jax.cost.span import span_of
from lagom_jax.hlo.collective import Collective
from lagom_jax.plan.plan import Plan
from lagom_jax.plan.setting import Cap, Setting
from lagom_jax.program.program import Program


def settings_of(
    plan: Plan, program: Program, cluster: Cluster, nccl: str = ""
) -> dict[Collective, Setting]:
    """The settings of a program that was compiled as a plan says.

    Args:
        plan: The plan.
        program: The program; a collective is known by its name in it.
        cluster: What it runs on.
        nccl: NCCL's version; by default that of the cluster's record.

    Returns:
        Settings of the collectives that the plan has some for.
    """
    by_name = {site: one.setting for one in plan.settings for site in one.sites}
    found: dict[Collective, Setting] = {}
    facts = nccl_facts(cluster, nccl)
    for collective, _, _ in program.collectives():
        setting = by_name.get(collective.name)
        if isinstance(setting, Cap):
            span = span_of(collective.groups, cluster)
            setting = setting.of(usual_setting(collective, span, facts))
        if setting is not None:
            found[collective] = setting
    return found


def missing_sites(plan: Plan, program: Program) -> tuple[str, ...]:
    """Collectives that a plan has settings for, and a program lacks."""
    there = {collective.name for collective, _, _ in program.collectives()}
    named = (site for setting in plan.settings for site in setting.sites)
    return tuple(site for site in named if site not in there)
