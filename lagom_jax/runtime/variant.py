"""One set of arguments of a step: its plan, and the program that runs for it."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from typing import Any

import jax

from lagom_jax.analysis import analyze
from lagom_jax.cluster import Cluster
from lagom_jax.errors import LagomError
from lagom_jax.plan import Measured, Plan
from lagom_jax.report.plan import in_words
from lagom_jax.report.units import in_percent, in_seconds
from lagom_jax.runtime import guard, nccl, place, programs, say
from lagom_jax.runtime.agreement import Peers
from lagom_jax.runtime.arguments import devices_of
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.decision import (
    GRACE_SECONDS,
    Choice,
    Decision,
    agree,
    decide,
    reasons,
    share,
)
from lagom_jax.runtime.jitted import UnknownArgumentsError
from lagom_jax.runtime.options import AUTO, Options
from lagom_jax.runtime.programs import Run, Source
from lagom_jax.runtime.say import LOG
from lagom_jax.tuner import InDoubtError, Rules


class Variant:
    """What was decided for one set of arguments; until then, the program as it is."""

    def __init__(self, source: Source, options: Options, cache: Cache) -> None:
        """Takes what programs are made of; nothing happens yet."""
        self._source = source
        self._options = options
        self._cache = cache
        self._usual = source.usual()
        self._guarded: _Guarded | None = None
        self._on_gpus = False
        self._limit: int | None = None
        self._told: Rules | None = None
        self._first = True
        self._measuring = threading.Lock()
        self.run: Run = self._usual
        self.plan: Plan | None = None
        self.leaves_all_alone = False
        """Whether no arguments whatever could have a plan here."""

    @property
    def settled(self) -> bool:
        """Whether `run` stays what it is."""
        return self._guarded is None

    def decide(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Looks for a plan and builds its program; nothing is executed.

        Raises:
            LagomError: There is none, and the user wants to be told so; or processes
                may have told NCCL different things, so that they must stop.
        """
        peers = Peers(0, 1)
        try:
            peers = Peers.here()
            self._first = peers.index == 0
            self._decide(args, kwargs, peers)
        except InDoubtError:
            # To go on would be worse than to stop.
            raise
        except Exception as error:
            if self._options.strict and isinstance(error, LagomError):
                raise
            LOG.debug("no plan is used", exc_info=True)
            say.warn_once(
                f"the program as it was runs, since {reasons(error)}",
                first=peers.index == 0,
            )

    def run_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the step."""
        # Two at a time tell nothing of how long one takes. Nobody waits for the other:
        # a step may call itself from the host.
        if self._guarded is not None and self._measuring.acquire(blocking=False):
            try:
                if self._guarded is not None:
                    return self._measured(self._guarded, args, kwargs)
            finally:
                self._measuring.release()
        if self._guarded is not None:
            return self._source.call(self._usual, args, kwargs)
        if self.plan is None:
            return self._source.call(self.run, args, kwargs)
        try:
            return self.run(*args, **kwargs)
        except UnknownArgumentsError:
            # jax's caches were cleared.
            self._rebuild(self.plan, args, kwargs)
        return self._source.call(self.run, args, kwargs)

    def _rebuild(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        try:
            self.run = self._built(plan, args, kwargs).run
        except Exception as error:
            # No reason to stop a training that has come so far, strict or not.
            self.plan, self.run = None, self._usual
            say.warn_once(
                f"the program as it was runs, since {reasons(error)}", first=self._first
            )

    def lower(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Lowers the program that runs."""
        return self._source.call(_lower_of(self.run), args, kwargs)

    def clear_cache(self) -> None:
        """Forgets compiled programs."""
        _release(self._usual)
        _release(self.run)

    def _decide(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], peers: Peers
    ) -> None:
        devices = devices_of(args, kwargs, self._source.shardings)
        devices = devices or tuple(jax.devices()[:1])
        self._on_gpus = place.on_gpus(devices)
        cluster = self._cluster(devices)
        if cluster is None:
            return
        try:
            traced = self._source.trace(args, kwargs)
        except LagomError:
            raise
        except Exception:
            # The step's own error, which it will raise again when it runs.
            LOG.debug("the step cannot be traced", exc_info=True)
            return
        if self._options.mode == "report":
            _report(traced, cluster, peers)
            return
        told = nccl.HERE if self._on_gpus else None
        decision = decide(traced, self._options, cluster, peers, self._cache, told)
        if self._on_gpus:
            self._limit = self._options.budget.memory(cluster.gpu.memory_bytes)
        self._take(decision, args, kwargs, peers)

    def _cluster(self, devices: tuple[Any, ...]) -> Cluster | None:
        """What to plan for; None where there is nothing to plan."""
        asked = self._options.cluster
        if isinstance(asked, Cluster):
            return asked
        if asked != AUTO:
            return Cluster.parse(asked)
        if not self._on_gpus:
            # The first batch may lie on the CPU where the next ones do not.
            self.leaves_all_alone = not place.any_gpus()
            LOG.info(
                "the step runs on %s, where there is nothing to tune; name a cluster "
                "to plan for one (cluster='h100:1x8', --lagom_cluster)",
                devices[0].device_kind,
            )
            return None
        if len(devices) == 1:
            LOG.info("the step runs on one device: there is nothing to communicate")
            return None
        return place.cluster_of(devices)

    def _take(
        self,
        decision: Decision,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        peers: Peers,
    ) -> None:
        """Builds the first plan that can be built everywhere."""
        failures: list[str] = []
        for choice in decision.choices:
            plan = choice.plan
            if not plan.levers and not plan.settings:
                if peers.index == 0:
                    LOG.info(
                        "%s: nothing would be gained; %s",
                        plan.holds_for.program,
                        decision.how,
                    )
                return
            if plan.evidence.measured is not None and not plan.evidence.measured.kept:
                if peers.index == 0:
                    LOG.info("the plan was measured before, and was not faster")
                return
            try:
                run = self._built_everywhere(plan, args, kwargs, peers)
                self._tell(choice.rules, peers)
            except LagomError as error:
                failures.append(reasons(error))
                continue
            if peers.index == 0:
                LOG.info("%s", say.summary(plan, decision.how))
            self.plan, self.run = plan, run
            measured = plan.evidence.measured is not None
            if self._options.verify == "measure" and not measured:
                self._guarded = _Guarded(run, choice, decision, self._cache, peers)
            return
        raise LagomError("; ".join(dict.fromkeys(failures)) or "there is no plan")

    def _built_everywhere(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], peers: Peers
    ) -> Run:
        built: list[programs.Built] = []

        def say_what() -> str:
            built.append(self._built(plan, args, kwargs))
            return f"collectives {built[0].collectives}"

        seconds = self._options.budget.seconds + GRACE_SECONDS
        agree(peers, "the compiled program", say_what, seconds)
        return built[0].run

    def _tell(self, rules: Rules | None, peers: Peers) -> None:
        """Tells NCCL what belongs to the program that runs next."""
        if rules is self._told:
            return
        if not nccl.HERE.tell(self, rules, peers):
            raise LagomError("not all processes could tell NCCL what the plan says")
        self._told = rules

    def _built(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> programs.Built:
        return programs.build(
            self._source,
            plan,
            args,
            kwargs,
            on_gpus=self._on_gpus,
            memory_limit=self._limit,
        )

    def _measured(
        self, guarded: _Guarded, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the step, and takes its time."""
        side = guarded.next_side
        run = self._usual if side == "baseline" else guarded.tuned
        try:
            self._tell(None if side == "baseline" else guarded.rules, guarded.peers)
        except InDoubtError:
            raise
        except LagomError as error:
            self._leave(guarded, error)
            return self._source.call(self.run, args, kwargs)
        # What earlier steps still do is not this one's.
        jax.block_until_ready((args, kwargs))
        start = time.perf_counter()
        result = self._source.call(run, args, kwargs)
        jax.block_until_ready(result)
        guarded.add(side, time.perf_counter() - start)
        if guarded.complete:
            self._conclude(guarded)
        return result

    def _conclude(self, guarded: _Guarded) -> None:
        try:
            measured = guarded.conclude()
            self._tell(guarded.rules if measured.kept else None, guarded.peers)
        except InDoubtError:
            raise
        except Exception as error:
            self._leave(guarded, error)
            return
        assert self.plan is not None
        if guarded.peers.index == 0:
            LOG.info("%s: %s", self.plan.holds_for.program, in_words(measured))
        evidence = dataclasses.replace(self.plan.evidence, measured=measured)
        plan = dataclasses.replace(self.plan, evidence=evidence)
        guarded.keep(plan)
        if measured.kept:
            self._guarded, self.plan = None, plan
            _release(self._usual)
        else:
            self._leave(guarded)

    def _leave(self, guarded: _Guarded, error: Exception | None = None) -> None:
        """Goes back to the program as it was, in all processes alike."""
        if error is not None:
            say.warn_once(
                f"the program as it was runs, since {reasons(error)}",
                first=guarded.peers.index == 0,
            )
        self._guarded, self.plan, self.run = None, None, self._usual
        _release(guarded.tuned)


class _Guarded:
    """A plan whose program takes turns with the one it is to replace."""

    def __init__(
        self,
        tuned: Run,
        choice: Choice,
        decision: Decision,
        cache: Cache,
        peers: Peers,
    ) -> None:
        self.tuned = tuned
        self.rules = choice.rules
        self.peers = peers
        self._decision = decision
        self._cache = cache
        self._steps = guard.schedule()
        self._times: list[tuple[guard.Side, float]] = []

    @property
    def next_side(self) -> guard.Side:
        return self._steps[len(self._times)]

    @property
    def complete(self) -> bool:
        return len(self._times) == len(self._steps)

    def add(self, side: guard.Side, seconds: float) -> None:
        self._times.append((side, seconds))

    def conclude(self) -> Measured:
        """What the first process measured, which decides for all.

        Raises:
            NoAgreementError: Not all processes know it.
        """

        def measured() -> bytes:
            # The first step of each side came with what happens only once.
            counted = self._times[2:]
            baseline = [t for side, t in counted if side == "baseline"]
            tuned = [t for side, t in counted if side == "tuned"]
            verdict = guard.judge(baseline, tuned)
            record = Measured(
                verdict.baseline_seconds,
                verdict.tuned_seconds,
                verdict.noise_seconds,
                verdict.steps,
                verdict.faster,
            )
            return json.dumps(dataclasses.asdict(record)).encode()

        def read(data: bytes) -> Measured:
            return Measured(**json.loads(data))

        return share(self.peers, "what was measured", measured, read, GRACE_SECONDS)

    def keep(self, plan: Plan) -> None:
        """Writes the plan with what was measured."""
        if self.peers.index == 0:
            first = self._decision.choices[0].plan
            part = "whole" if plan.holds_for == first.holds_for else "rest"
            self._cache.keep({**self._decision.parts, "part": part}, plan)


def _release(run: Run) -> None:
    """Gives the memory of a program back that will not run again."""
    if hasattr(run, "clear_cache"):
        run.clear_cache()


def _lower_of(run: Run) -> Run:
    lower = getattr(run, "lower", None)
    if lower is None:
        raise LagomError("this program was compiled already; lower the function itself")
    return lower


def _report(traced: Any, cluster: Cluster, peers: Peers) -> None:
    """Says what could be gained; nothing is changed, so nobody has to agree."""
    if peers.index:
        return
    report = analyze(traced, cluster=cluster)
    LOG.info(
        "%s on %s: predicted %s a step, of which %s (%s) wait for communication",
        report.program,
        cluster.name,
        in_seconds(report.step_seconds),
        in_seconds(report.exposed_seconds),
        in_percent(report.exposed_seconds, report.step_seconds),
    )
    LOG.debug("%s", report)
