"""The choice of a plan for a step, the same in all its processes.

Three rounds, of which the processes learn together how each ended: the first process
offers a plan; all build its program and see whether it communicates alike; and where
the plan has rules for NCCL, all let them hold. An order of instructions that is not met
where the step runs leads to a second offer, without one.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import lagom_jax
from lagom_jax.cluster import Cluster
from lagom_jax.compile import Toolchain
from lagom_jax.errors import LagomError, PlanError, RefusedError, TunerError
from lagom_jax.nccl_plugin import Rules, pack, rules_by_size, rules_of, unpack
from lagom_jax.nccl_plugin.installed import CONTROL, PLUGIN, is_ours
from lagom_jax.nccl_plugin.library import built as built_plugin
from lagom_jax.nccl_plugin.process_here import ProcessHere
from lagom_jax.plan import Plan, Setting, from_json, load, to_json
from lagom_jax.plan.check import require
from lagom_jax.plan.pinned import Pinned
from lagom_jax.planner import Budget, Planner, Request
from lagom_jax.program.build import build_program
from lagom_jax.runtime import say
from lagom_jax.runtime.allowance import ALLOWANCE
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.coordination import Talk, told
from lagom_jax.runtime.nccl import Nccl
from lagom_jax.runtime.options import Options
from lagom_jax.runtime.programs import Built
from lagom_jax.runtime.protocol import Word
from lagom_jax.runtime.say import LOG
from lagom_jax.units import counted, in_bytes, in_seconds
from xla_flags import known

# They make programs for CPUs, or name processes of one host.
_OF_THE_HOST: Final = ("xla_cpu_", "xla_force_host_")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A plan that all processes of a step have built the program of."""

    plan: Plan
    rules: Rules | None
    """None where NCCL gets no rules."""
    collectives: str
    """A hash of what its program communicates."""
    how: str
    """Its origin, in words."""
    parts: Mapping[str, str]
    """The key that it is kept under."""

    @functools.cached_property
    def program(self) -> str:
        """The same for plans that ask the compiler for the same program."""
        return program_of(self.plan)


def program_of(plan: Plan | None) -> str:
    """The same for plans that ask the compiler for the same program.

    Args:
        plan: A plan; None for the step as it is.
    """
    options = {} if plan is None else plan.compiler_options()
    text = repr((sorted(options.items()), None if plan is None else plan.order))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclasses.dataclass(frozen=True)
class Case:
    """A step for which a plan is looked for."""

    planner: Planner
    options: Options
    budget: Budget
    """The user's, with the memory that this process's devices have."""
    cache: Cache
    """The place where decisions are kept; only the first process looks."""
    nccl: Nccl | None
    """The means to give NCCL rules here; None where the step does not run on GPUs, and
    the plan is for elsewhere."""
    measured_only: bool = False
    """Looks for a plan that was measured and found faster, and for no other."""

    @functools.cached_property
    def compared(self) -> dict[str, str]:
        """Properties that must be the same in all processes, by name."""
        planner, options = self.planner, self.options
        versions = sorted(Toolchain.probe().versions.items())
        return {
            "program": planner.fingerprint,
            "cluster": f"{planner.cluster.name} {_content(planner.cluster)}",
            "versions": ", ".join(f"{n} {v}" for n, v in versions),
            "lagom_jax": f"{lagom_jax.__version__} {code()}",
            "pinned": ", ".join(map(str, filter(_changes_program, planner.pinned))),
            "levers": ", ".join(options.levers),
            "deterministic": str(options.deterministic),
            "kernels": ", ".join(map(str, options.kernels)),
        }

    def word(self) -> Word:
        """This process's part in the first round."""
        # No part of what is decided, and yet of what runs: programs that take turns in
        # one process only would wait for each other.
        said = {**self.compared, "verify": self.options.verify}
        lines = "\n".join(f"{name} {value}" for name, value in said.items())
        return Word(lines, self.nccl.objection() if self.nccl is not None else "")


def decide(
    case_of: Callable[[], Case],
    talk: Talk,
    build: Callable[[Plan], Built],
    tell: Callable[[Rules | None], None],
) -> Choice | None:
    """Finds or makes a plan for a step, and builds its program in every process.

    Args:
        case_of: The step; fails where this process cannot even say what it is.
        talk: The processes that run it.
        build: Builds a plan's program here.
        tell: Lets rules of NCCL hold in all processes.

    Returns:
        The plan, ready to run; None where nothing would be gained.

    Raises:
        RefusedError: All processes leave the step as it is.
        InDoubtError: This process cannot know what the others run.
        LagomError: There is no plan, where there is but one process.
    """
    try:
        case = case_of()
    except Exception as error:
        # The others are not to wait for this process.
        if talk.group.coordinator is not None:
            talk.agree(Word("", told(error), refuses=True), lambda words: "")
        raise
    word, without_order = case.word(), False
    while True:
        offer = functools.partial(_offer, case, without_order=without_order)
        content = talk.agree(word, offer, binding=False)
        found = json.loads(content)
        plan = from_json(found["plan"], "the plan of the first process")
        if not plan.levers and not plan.settings:
            if talk.group.leads:
                name = plan.holds_for.program
                say.visibly(f"{name}: nothing would be gained; {found['how']}")
            return None
        measured = plan.evidence.measured
        if measured is not None and not measured.kept:
            if talk.group.leads:
                say.visibly("the plan was measured before, and was not faster")
            return None
        try:
            return _built(case, talk, plan, found, build, tell)
        except LagomError as error:
            again = plan.order is not None and not without_order
            if not again or not isinstance(error, RefusedError | PlanError):
                raise
            LOG.info("the plan's order is left out: %s", error)
            without_order = True


def _built(
    case: Case,
    talk: Talk,
    plan: Plan,
    found: Mapping[str, Any],
    build: Callable[[Plan], Built],
    tell: Callable[[Rules | None], None],
) -> Choice:
    rules, collectives = None, ""
    try:
        check_plan(plan, case)
        rules = rules_in(found["rules"])
        collectives = build(plan).collectives
        word = Word(f"collectives {collectives}")
    except Exception as error:
        if talk.group.coordinator is None:
            raise
        LOG.debug("the plan's program is not built", exc_info=True)
        word = Word("", told(error), refuses=True)
    talk.agree(word, lambda words: "")
    tell(rules)
    return Choice(plan, rules, collectives, found["how"], found["parts"])


def _offer(case: Case, words: tuple[Word, ...], *, without_order: bool) -> str:
    """A plan, with its rules, as the first process offers it."""
    objections = [word.own for word in words if word.own]
    for objection in objections[:1]:
        LOG.info("NCCL is told nothing by a tuner: %s", objection)
    controls = "caps" if objections else "tuner"
    levers = case.options.levers
    if without_order:
        levers = tuple(one for one in levers if one not in ("order", "streams"))
    parts = {
        **case.compared,
        "levers": ", ".join(levers),
        "controls": controls,
        "budget": _limits(case.options.budget),
        "set": ", ".join(map(str, filter(_matters, case.planner.pinned))),
    }
    plan, how = _found(case, parts, levers, controls)
    if case.cache.ended_a_job(plan):
        if plan.order is not None and not without_order:
            return _offer(case, words, without_order=True)
        raise PlanError(
            "a job with this plan ended in its first step: it is not tried again. "
            f"Remove {case.cache.mark_of(plan)} to try it"
        )
    tells = case.nccl is not None and not objections
    rules = rules_image(case, plan) if tells else ""
    found = {"plan": to_json(plan), "rules": rules, "how": how, "parts": parts}
    return json.dumps(found)


def plan_given(plan: Plan | str | Path) -> Plan:
    """The plan that a user gives, itself or the name of its file.

    Raises:
        PlanError: The file cannot be read, or is no plan.
    """
    return plan if isinstance(plan, Plan) else load(plan)


def _found(
    case: Case, parts: Mapping[str, str], levers: tuple[str, ...], controls: str
) -> tuple[Plan, str]:
    options = case.options
    if options.plan is not None:
        given = options.plan
        how = "given" if isinstance(given, Plan) else f"from {given}"
        return plan_given(given), how
    plan = case.cache.find(parts, measured_only=case.measured_only)
    if plan is not None:
        try:
            check_plan(plan, case)
        except PlanError as error:
            # Somebody has moved files about, or there is less memory.
            LOG.warning("a decision that was kept is not used: %s", error)
        else:
            return plan, "kept from before"
    if options.mode == "load" or case.measured_only:
        raise PlanError(
            "there is no plan to load: name one (plan=, --lagom_plan), or let one be "
            "made first (mode='tune')"
        )
    with ALLOWANCE.rest_of(case.budget) as budget:
        online = options.verify == "online"
        waits = "the job trains meanwhile" if online else "the step waits for it"
        say.visibly(
            f"planning for {case.planner.cluster.name}: up to "
            f"{counted(budget.compiles, 'compile')}, none begun after "
            f"{in_seconds(budget.seconds)}; {waits}"
        )
        quiet = functools.partial(LOG.debug, "%s")
        plan = case.planner.plan(
            Request(
                levers,
                controls,
                budget,
                deterministic=options.deterministic,
                progress=say.visibly if options.progress else quiet,
            )
        )
    case.cache.keep(parts, plan)
    evidence = plan.evidence
    how = f"{counted(evidence.compiles, 'compile')} in {in_seconds(evidence.seconds)}"
    return plan, how


def rules_image(case: Case, plan: Plan) -> str:
    """The rules for NCCL's tuner plugin, as base64 text; empty where there are none."""
    if not any(isinstance(one.setting, Setting) for one in plan.settings):
        return ""
    rules = rules_by_size(plan)
    if rules is None:
        options = plan.compiler_options()
        scheduled, _ = case.planner.compile(options, plan.order)
        program = build_program(scheduled.module)
        made = rules_of(plan, program, case.planner.cluster)
        for note in made.notes:
            LOG.info("the plan: %s", note)
        rules = made.rules
    return base64.b64encode(pack(rules)).decode()


def rules_in(text: str) -> Rules | None:
    """The rules that `rules_image` has made text of."""
    image = base64.b64decode(text)
    return unpack(image, "what the first process said") if image else None


def check_plan(plan: Plan, case: Case) -> None:
    """Raises PlanError where a plan is for something else."""
    doubts = require(
        plan,
        fingerprint=case.planner.fingerprint,
        cluster=case.planner.cluster,
        versions=Toolchain.probe().versions,
        # What is a host's own, or our own, is nothing that a plan holds for.
        pinned=[*filter(_matters, case.planner.pinned), *_own(plan)],
        with_options=True,
        process=ProcessHere.probe() if case.nccl is not None else None,
    )
    for doubt in doubts:
        LOG.info("the plan: %s", doubt)
    peak = plan.evidence.tuned_peak
    allowed = case.budget.memory(case.planner.cluster.gpu.memory_bytes)
    limit = memory_limit(allowed, plan)
    if peak is not None and peak > limit:
        raise PlanError(
            f"the plan takes {in_bytes(peak)} on a device, and may take "
            f"{in_bytes(limit)}"
        )


def memory_limit(allowed: int, plan: Plan) -> int:
    """Bytes that a plan's program may take: never less than the step as it is."""
    return max(allowed, plan.evidence.default_peak or 0)


def _own(plan: Plan) -> Iterator[Pinned]:
    return (one for one in plan.holds_for.pinned if not _matters(one))


def _limits(budget: Budget) -> str:
    """Limits as they were asked for: a plan that was made elsewhere is found here."""
    stated = dataclasses.asdict(dataclasses.replace(budget, at_once=0))
    return ", ".join(f"{name} {value}" for name, value in sorted(stated.items()))


def _matters(pinned: Pinned) -> bool:
    """True if a plan for GPUs depends on it."""
    if pinned.name == PLUGIN:
        with contextlib.suppress(TunerError):
            if is_ours(pinned.value, built_plugin()):
                return False
    return pinned.name != CONTROL and not pinned.name.startswith(_OF_THE_HOST)


def _changes_program(pinned: Pinned) -> bool:
    """True if the compiler makes another program of it, as far as is known."""
    flag = known().get(pinned.name)
    if flag is None:
        return not pinned.name.startswith("NCCL") and _matters(pinned)
    return flag.changes in ("program", "not tried") and _matters(pinned)


def _content(cluster: Cluster) -> str:
    return hashlib.sha256(repr(cluster).encode()).hexdigest()[:12]


@functools.cache
def code() -> str:
    """A digest of lagom_jax itself: what it would decide, it decides by its code."""
    digest = hashlib.sha256()
    root = Path(lagom_jax.__file__).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def reasons(error: BaseException) -> str:
    """The reasons why nothing came of it, for a warning."""
    return str(error) if isinstance(error, LagomError) else told(error)
