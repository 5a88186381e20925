"""Findings against a plan here: its program, cluster, compiler and environment."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from lagom_jax.cluster import Cluster
from lagom_jax.errors import Finding, PlanError
from lagom_jax.plan.pinned import Pinned, stated
from lagom_jax.plan.plan import Plan
from lagom_jax.plan.unmet import ProcessFacts, unmet
from lagom_jax.units import counted
from xla_flags import known, names_dump, pinned_by_options, pinned_by_xla_flags

_AGAIN = "make the plan again here"
# What schedules a program; of the other parts of the compiler the plan knows nothing.
_SCHEDULES = ("jax", "jaxlib", "jax-cuda")
_OPTIONS = "compiler_options"


def check(
    plan: Plan,
    *,
    fingerprint: str | None = None,
    cluster: str | Cluster | None = None,
    versions: Mapping[str, str] | None = None,
    pinned: Iterable[Pinned] | None = None,
    with_options: bool = False,
    process: ProcessFacts | None = None,
) -> tuple[Finding, ...]:
    """Findings against the use of a plan in a given place.

    Whatever is None is not looked at. Settings that say the same as the plan itself
    are never held against it, so that its own environment may be in effect already.

    Args:
        plan: The plan.
        fingerprint: `LoweredStep.fingerprint` of the step that it is to be used for.
        cluster: What the step will run on.
        versions: Of the installed parts of the compiler, by distribution.
        pinned: The user's own settings.
        with_options: Whether the step's own `compiler_options` are among `pinned`;
            if not, those that the plan knows of are taken to be as they were.
        process: The variables of the process, and what NCCL and driver it has.

    Returns:
        Findings, errors first: `error` where the plan cannot be trusted, `warning`
        where its figures may be off. Empty if nothing speaks against it.

    Raises:
        ClusterError: No such cluster.
    """
    found = (
        *_program(plan, fingerprint),
        *_cluster(plan, cluster),
        *_versions(plan, versions),
        *_pinned(plan, pinned, with_options),
        *unmet(plan, process),
    )
    return tuple(sorted(found, key=lambda finding: finding.severity != "error"))


def require(
    plan: Plan,
    *,
    fingerprint: str | None = None,
    cluster: str | Cluster | None = None,
    versions: Mapping[str, str] | None = None,
    pinned: Iterable[Pinned] | None = None,
    with_options: bool = False,
    process: ProcessFacts | None = None,
) -> tuple[str, ...]:
    """Refuses a plan that does not hold here; the arguments are those of `check`.

    Returns:
        Words about what may make its figures wrong.

    Raises:
        PlanError: The plan cannot be trusted here.
        ClusterError: No such cluster.
    """
    found = check(
        plan,
        fingerprint=fingerprint,
        cluster=cluster,
        versions=versions,
        pinned=pinned,
        with_options=with_options,
        process=process,
    )
    errors = [f"{one.text}: {one.remedy}" for one in found if one.severity == "error"]
    if errors:
        raise PlanError("the plan does not hold here: " + "; ".join(errors))
    return tuple(one.text for one in found)


def _program(plan: Plan, fingerprint: str | None) -> Iterator[Finding]:
    made_for = plan.holds_for.fingerprint
    if fingerprint is not None and fingerprint != made_for:
        yield Finding(
            "error",
            f"the plan was made for {plan.holds_for.program} ({_short(made_for)}), "
            f"this is another program ({_short(fingerprint)}): its code, shapes or "
            "shardings differ",
            _AGAIN,
        )


def _short(fingerprint: str) -> str:
    return f"fingerprint {fingerprint[:12] or 'unknown'}"


def _cluster(plan: Plan, cluster: str | Cluster | None) -> Iterator[Finding]:
    if cluster is None:
        return
    here = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
    if here.devices != plan.holds_for.devices:
        yield Finding(
            "error",
            f"the plan was made for {counted(plan.holds_for.devices, 'device')} "
            f"({plan.holds_for.cluster}), {here.name} has {here.devices}",
            _AGAIN,
        )
    elif here.name != plan.holds_for.cluster:
        yield Finding(
            "error",
            f"the plan was made for {plan.holds_for.cluster}, this is {here.name}",
            _AGAIN,
        )


def _versions(plan: Plan, versions: Mapping[str, str] | None) -> Iterator[Finding]:
    if versions is None:
        return
    # Orders and costs go by the names of one compiler's instructions.
    bound = plan.order is not None or plan.costs is not None
    for package, version in plan.holds_for.versions:
        here = versions.get(package)
        if here == version:
            continue
        schedules = package.startswith(_SCHEDULES)
        text = f"the plan was made with {package} {version}, here it is " + (
            "not installed" if here is None else here
        )
        if schedules and bound:
            yield Finding(
                "error",
                f"{text}; its {_bound_parts(plan)} fit that compiler only",
                f"pip install {package}=={version}, or {_AGAIN}",
            )
        else:
            yield Finding(
                "warning",
                f"{text}; "
                + (
                    "the compiler may refuse its options, or do other things"
                    if schedules
                    else "kernels may take other times"
                ),
                f"pip install {package}=={version}, or {_AGAIN}",
            )


def _bound_parts(plan: Plan) -> str:
    parts = {"costs": plan.costs, "order": plan.order}
    return " and ".join(name for name, part in parts.items() if part is not None)


def _pinned(
    plan: Plan, pinned: Iterable[Pinned] | None, with_options: bool
) -> Iterator[Finding]:
    if pinned is None:
        return
    here = {one.name: one for one in pinned}
    # Plans of earlier versions name folders for dumps.
    pinned_then = (p for p in plan.holds_for.pinned if not names_dump(p.name))
    before = {one.name: one for one in pinned_then}
    own = _own(plan)
    for name in sorted({*before, *here}):
        was, is_now = before.get(name), here.get(name)
        if is_now is None and was and was.place == _OPTIONS and not with_options:
            continue
        usual = {*own.get(name, ()), *((was.value,) if was else ())}
        if is_now and is_now.value in usual:
            continue
        yield _changed(name, was, is_now, own.get(name))


def _own(plan: Plan) -> dict[str, set[str]]:
    """The plan's own values, as `stated` writes them, by name."""
    options = pinned_by_options(plan.compiler_options())
    flags = pinned_by_xla_flags(plan.environment().get("XLA_FLAGS", ""))
    found: dict[str, set[str]] = {}
    for one in itertools.chain(stated(options), stated(flags)):
        found.setdefault(one.name, set()).add(one.value)
    for variable in plan.variables:
        found.setdefault(variable.name, set()).add(variable.value)
    return found


def _changed(
    name: str, was: Pinned | None, is_now: Pinned | None, own: set[str] | None
) -> Finding:
    if own and is_now:
        return Finding(
            "error" if is_now.place == _OPTIONS else "warning",
            f"{is_now.place} sets {name}={is_now.value}, the plan {name}={min(own)}",
            f"take {name} out of {is_now.place}",
        )
    flag = known().get(name)
    changes = flag is not None and flag.changes == "program"
    text, remedy = f"{name} was {_shown(was)} and is {_shown(is_now)}", _AGAIN
    if was:
        place = was.place or "the environment"
        remedy = f"set {name}={was.value} in {place}, or {_AGAIN}"
    elif is_now:
        remedy = f"take {name} out of {is_now.place or 'the environment'}, or {_AGAIN}"
    if changes:
        return Finding("error", f"{text}: the compiler makes another program", remedy)
    return Finding("warning", f"{text}: times may differ", remedy)


def _shown(pinned: Pinned | None) -> str:
    if pinned is None:
        return "not set"
    return f"{pinned.value} in {pinned.place}" if pinned.place else pinned.value
