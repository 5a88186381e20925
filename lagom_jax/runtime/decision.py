"""Which plans come into question for a step, agreed on by all processes."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from lagom_jax.cluster import Cluster
from lagom_jax.compile import Compiler, Toolchain
from lagom_jax.errors import LagomError, PlanError
from lagom_jax.plan import Plan, Setting, from_json, load, to_json
from lagom_jax.plan.check import require
from lagom_jax.planning import Planner
from lagom_jax.runtime.agreement import NoAgreementError, Peers, TooLateError
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.nccl import Nccl
from lagom_jax.runtime.options import Options
from lagom_jax.runtime.say import LOG
from lagom_jax.schedule.build import build_program
from lagom_jax.tuner import Rules, pack, rules_by_size, rules_of, unpack
from lagom_jax.units import counted, in_seconds

# Why this process no longer waits for others. One that has missed a decision would be a
# decision behind for ever, and each of the next would cost all of them their patience.
_late: list[str] = []

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A plan, and what it lets NCCL's tuner plugin say."""

    plan: Plan
    rules: Rules | None
    """None where NCCL is told nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """Plans for a step, the best first; none where it is to stay as it is."""

    choices: tuple[Choice, ...]
    how: str
    """Where they come from, in words."""
    parts: Mapping[str, str]
    """The key that they are kept under."""


def agree(
    peers: Peers, topic: str, say: Callable[[], Mapping[str, str]], seconds: float
) -> None:
    """Sees to it that all processes say the same.

    Args:
        peers: The processes.
        topic: What about.
        say: What this process says, by name. If it raises, all learn of it.
        seconds: How long to wait for the others.

    Raises:
        NoAgreementError: They say different things, or one could not say anything, or
            did not come, now or before. It is raised in all of them.

    Example:
        >>> agree(Peers(0, 1), "a", lambda: {"program": "0f"}, 1.0)
    """
    try:
        word = _Word(dict(say()))
    except Exception as error:
        if peers.count == 1:
            raise
        LOG.debug("%s failed here", topic, exc_info=True)
        word = _Word({}, f"{type(error).__name__}: {error}")
    text = json.dumps(dataclasses.asdict(word), sort_keys=True)
    words = [_Word(**json.loads(one)) for one in _heard(peers, topic, text, seconds)]
    for index, other in enumerate(words):
        if other.failure is not None:
            raise NoAgreementError(f"process {index}: {other.failure}")
    odd = next((i for i, other in enumerate(words) if other != words[0]), None)
    if odd is not None:
        one, other = words[0].said, words[odd].said
        raise NoAgreementError(
            f"processes differ in {topic}: process 0 has {_short(one, other)}"
            f", process {odd} has {_short(other, one)}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Word:
    """The part of one process in an agreement."""

    said: dict[str, str]
    failure: str | None = None
    """The reason why it cannot say anything."""


def _heard(peers: Peers, topic: str, said: str, seconds: float) -> tuple[str, ...]:
    """What all say, unless one was too late, now or before."""
    if _late and peers.count > 1:
        raise NoAgreementError(_late[0])
    try:
        return peers.gather(topic, said, seconds=seconds)
    except TooLateError as error:
        _late.append(str(error))
        raise


def _short(said: Mapping[str, str], other: Mapping[str, str], most: int = 200) -> str:
    """The entries that are not in another mapping."""
    own = "; ".join(
        f"{name} {value}"
        for name, value in sorted(said.items())
        if other.get(name) != value
    )
    own = own or "nothing more"
    return own if len(own) <= most else own[:most] + " ..."


def decide(
    traced: Any,
    options: Options,
    cluster: Cluster,
    peers: Peers,
    cache: Cache,
    nccl: Nccl | None,
) -> Decision:
    """Finds or makes plans for a traced step; every process gets the same.

    Args:
        traced: The step.
        options: What was asked of the wrapper.
        cluster: What it runs on.
        peers: The processes that run it.
        cache: Where decisions are kept; only the first process looks.
        nccl: What can be told to NCCL here; None where the step does not run on GPUs,
            and the plan is for elsewhere.

    Raises:
        LagomError: There is no plan, in any of the processes.
    """
    with Compiler(store=cache.folder is not None) as compiler:
        return _decide(traced, options, cluster, peers, cache, nccl, compiler)


def _decide(
    traced: Any,
    options: Options,
    cluster: Cluster,
    peers: Peers,
    cache: Cache,
    nccl: Nccl | None,
    compiler: Compiler,
) -> Decision:
    found: dict[str, Any] = {}
    patience = options.patience
    tells = nccl is not None and not any(
        _heard(peers, "NCCL's tuner", nccl.objection(), patience)
    )
    controls = "tuner" if tells or nccl is None else "caps"

    def say() -> dict[str, str]:
        planner = found["planner"] = Planner(traced, cluster=cluster, compiler=compiler)
        parts = found["parts"] = {**_parts(planner, options), "controls": controls}
        # No part of what is decided, and yet of what runs: programs that take turns in
        # one process only would wait for each other.
        return {**parts, "verify": options.verify}

    agree(peers, "the program and what it runs on", say, patience)
    planner: Planner = found["planner"]
    parts: dict[str, str] = found["parts"]

    def make() -> bytes:
        plans, how = _plans(planner, options, controls, cache, parts)
        told = [
            {"plan": to_json(plan), "rules": _image(planner, plan) if tells else ""}
            for plan in plans
        ]
        return json.dumps({"choices": told, "how": how}).encode()

    def read(data: bytes) -> Decision:
        told = json.loads(data)
        choices = [
            _choice(one) for one in cast("list[dict[str, str]]", told["choices"])
        ]
        for choice in choices:
            _check(choice.plan, planner, parts)
        return Decision(tuple(choices), told["how"], parts)

    planning = options.budget.seconds
    return share(peers, "the plans", make, read, making=planning, patience=patience)


def share(
    peers: Peers,
    topic: str,
    make: Callable[[], bytes],
    read: Callable[[bytes], T],
    *,
    making: float,
    patience: float,
) -> T:
    """What the first process makes, read by all, or by none.

    Args:
        peers: The processes.
        topic: What about.
        make: Makes it, in the first process.
        read: Reads it, in every process.
        making: How many seconds it may take to make it.
        patience: How many more to wait for others.

    Raises:
        NoAgreementError: It could not be made, or one of the processes has not got it,
            or could not read it. It is raised in all of them.

    Example:
        >>> share(Peers(0, 1), "a", lambda: b"1", int, making=1.0, patience=1.0)
        1
    """
    found: list[T] = []

    def say() -> dict[str, str]:
        # Where this fails the others hear of it, and do not wait in vain.
        data = peers.share(topic, make, seconds=making + patience)
        found.append(read(data))
        return {"sha256": hashlib.sha256(data).hexdigest()}

    agree(peers, topic, say, patience)
    return found[0]


def _parts(planner: Planner, options: Options) -> dict[str, str]:
    versions = Toolchain.probe().versions
    budget = options.budget
    return {
        "program": planner.fingerprint,
        "cluster": planner.cluster.name,
        "versions": ", ".join(f"{n} {v}" for n, v in sorted(versions.items())),
        "pinned": ", ".join(map(str, planner.pinned)),
        "levers": ", ".join(options.levers),
        "deterministic": str(options.deterministic),
        "budget": f"{budget.compiles} compiles, {budget.seconds:g} s, "
        f"{budget.memory(planner.cluster.gpu.memory_bytes)} bytes",
    }


def _plans(
    planner: Planner,
    options: Options,
    controls: str,
    cache: Cache,
    parts: Mapping[str, str],
) -> tuple[list[Plan], str]:
    """Plans, and where they come from."""
    if options.plan is not None:
        given = options.plan
        plan = given if isinstance(given, Plan) else load(given)
        return [plan], "given" if isinstance(given, Plan) else f"from {given}"
    kept = [cache.find({**parts, "part": part}) for part in ("whole", "rest")]
    if kept[0] is not None:
        found = [plan for plan in kept if plan is not None]
        try:
            for plan in found:
                _check(plan, planner, parts)
        except PlanError as error:
            # Somebody has moved files about.
            LOG.warning("a decision that was kept is not used: %s", error)
        else:
            return found, "kept from before"
    if options.mode == "load":
        raise PlanError(
            "there is no plan to load: name one (plan=, --lagom_plan), or let one be "
            "made first (mode='tune')"
        )
    said = LOG.info if options.progress else LOG.debug
    arguments: dict[str, Any] = {
        "budget": options.budget,
        "controls": controls,
        "deterministic": options.deterministic,
    }
    whole = planner.plan(
        levers=options.levers, progress=lambda what: said("%s", what), **arguments
    )
    plans = [whole]
    if whole.order is not None:
        # An order fits one schedule only. Should it not be met where the step runs,
        # the rest of what was found still holds.
        bound_to_it = ("order", "streams")
        rest = tuple(lever for lever in options.levers if lever not in bound_to_it)
        plans.append(planner.plan(levers=rest, **arguments))
    for part, plan in zip(("whole", "rest"), plans, strict=False):
        cache.keep({**parts, "part": part}, plan)
    evidence = whole.evidence
    return plans, (
        f"{counted(evidence.compiles, 'compile')} in {in_seconds(evidence.seconds)}"
    )


def _image(planner: Planner, plan: Plan) -> str:
    """What NCCL's tuner plugin is to say, as text."""
    if not any(isinstance(one.setting, Setting) for one in plan.settings):
        return ""
    rules = rules_by_size(plan)
    if rules is None:
        scheduled, _ = planner.compile(plan.compiler_options(), plan.order)
        made = rules_of(plan, build_program(scheduled.module), planner.cluster)
        for note in made.notes:
            LOG.info("the plan: %s", note)
        rules = made.rules
    return base64.b64encode(pack(rules)).decode()


def _choice(told: Mapping[str, str]) -> Choice:
    origin = "what process 0 said"
    image = base64.b64decode(told["rules"])
    return Choice(
        from_json(told["plan"], origin), unpack(image, origin) if image else None
    )


def _check(plan: Plan, planner: Planner, parts: Mapping[str, str]) -> None:
    """Raises PlanError where a plan is for something else."""
    doubts = require(
        plan,
        fingerprint=parts["program"],
        cluster=planner.cluster,
        versions=Toolchain.probe().versions,
        pinned=planner.pinned,
        with_options=True,
    )
    for doubt in doubts:
        LOG.info("the plan: %s", doubt)


def reasons(error: BaseException) -> str:
    """Why nothing came of it, for a warning."""
    if isinstance(error, LagomError):
        return str(error)
    return f"{type(error).__name__}: {error}".strip()
