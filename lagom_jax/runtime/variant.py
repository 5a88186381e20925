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
from lagom_jax.plan import MeasuredSteps, Plan
from lagom_jax.report.plan import in_words
from lagom_jax.runtime import guard, nccl, place, programs, say
from lagom_jax.runtime.agreement import Peers
from lagom_jax.runtime.arguments import devices_of
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.decision import (
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
from lagom_jax.typed_json import typed
from lagom_jax.units import in_percent, in_seconds


class Variant:
    """What was decided for one set of arguments; until then, the program as it is."""

    def __init__(self, source: Source, options: Options, cache: Cache) -> None:
        """Takes what programs are made of; nothing happens yet."""
        self._source = source
        self._options = options
        self._cache = cache
        self._usual = source.usual()
        self._guarded: _Guarded | None = None
        self._peers = Peers(0, 1)
        self._tried = False
        self._on_gpus = False
        self._limit: int | None = None
        self._told: Rules | None = None
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
        try:
            self._peers = Peers.here()
            self._decide(args, kwargs, self._peers)
        except InDoubtError:
            # To go on would be worse than to stop.
            raise
        except Exception as error:
            if self._options.strict:
                if isinstance(error, LagomError):
                    raise
                raise LagomError(reasons(error)) from error
            LOG.debug("no plan is used", exc_info=True)
            self._warn(error)

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
        return self._tuned(self.plan, args, kwargs)

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
                self._tell(choice.rules)
            except InDoubtError:
                raise
            except LagomError as error:
                failures.append(reasons(error))
                continue
            if peers.index == 0:
                how = decision.how
                if not self._on_gpus:
                    how += "; here, without GPUs, it changes nothing"
                LOG.info("%s", say.summary(plan, how))
            self.plan, self.run = plan, run
            measured = plan.evidence.measured is not None
            if self._options.verify == "measure" and not measured:
                patience = self._options.patience
                self._guarded = _Guarded(choice, decision, self._cache, peers, patience)
            return
        raise LagomError("; ".join(dict.fromkeys(failures)) or "there is no plan")

    def _built_everywhere(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], peers: Peers
    ) -> Run:
        built: list[programs.Built] = []

        def say_what() -> dict[str, str]:
            built.append(self._built(plan, args, kwargs))
            return {"collectives": built[0].collectives}

        seconds = self._options.budget.seconds + self._options.patience
        agree(peers, "the compiled program", say_what, seconds)
        return built[0].run

    def _tell(self, rules: Rules | None) -> None:
        """Tells NCCL what belongs to the program that runs next."""
        if rules is self._told:
            return
        if not nccl.HERE.tell(self, rules, self._peers):
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

    def _tuned(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the plan's program, or that as it was where it fails at once."""
        try:
            try:
                result = self.run(*args, **kwargs)
            except UnknownArgumentsError:
                # jax's caches were cleared.
                if not self._rebuilt(plan, args, kwargs):
                    return self._source.call(self._usual, args, kwargs)
                result = self._source.call(self.run, args, kwargs)
            if not self._tried:
                # What fails on a device is not known before.
                jax.block_until_ready(result)
                self._tried = True
        except (LagomError, jax.errors.JaxRuntimeError) as error:
            # Other processes may be inside a collective, and wait there for this one.
            last = self._tried or self._peers.count > 1 or self._options.strict
            if last or _some_deleted(args, kwargs):
                raise
            result = self._source.call(self._usual, args, kwargs)
            # Had that failed, too, it would not be the plan's fault.
            self._warn(error)
            self._leave(None)
        return result

    def _rebuilt(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Builds the plan's program again; if it cannot be, that as it was runs."""
        self._tried = False
        try:
            self.run = self._built(plan, args, kwargs).run
        except Exception as error:
            # No reason to stop a training that has come so far, strict or not.
            self._warn(error)
            self._leave(None)
            return False
        return True

    def _warn(self, error: Exception) -> None:
        say.warn_once(
            f"the program as it was runs, since {reasons(error)}",
            first=self._peers.index == 0,
        )

    def _leave(self, kept: Plan | None) -> None:
        """Goes on with one program; a device's memory may have no room for two."""
        tuned = self.run
        self.plan, self._guarded = kept, None
        if kept is None:
            self.run = self._usual
        _release(tuned if kept is None else self._usual)

    def _measured(
        self, guarded: _Guarded, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the step, and takes its time."""
        side = guarded.next_side
        plan = self.plan
        assert plan is not None
        try:
            self._tell(None if side == "baseline" else guarded.rules)
        except InDoubtError:
            raise
        except LagomError as error:
            self._warn(error)
            self._leave(None)
            return self._source.call(self.run, args, kwargs)
        # What earlier steps still do is not this one's.
        jax.block_until_ready((args, kwargs))
        start = time.perf_counter()
        if side == "baseline":
            result = self._source.call(self._usual, args, kwargs)
        else:
            result = self._tuned(plan, args, kwargs)
        jax.block_until_ready(result)
        guarded.add(side, time.perf_counter() - start)
        if guarded.complete and self._guarded is guarded:
            self._conclude(guarded, plan)
        return result

    def _conclude(self, guarded: _Guarded, plan: Plan) -> None:
        try:
            measured = guarded.conclude()
            self._tell(guarded.rules if measured.kept else None)
        except InDoubtError:
            raise
        except Exception as error:
            self._warn(error)
            self._leave(None)
            return
        if self._peers.index == 0:
            LOG.info("%s: %s", plan.holds_for.program, in_words(measured))
        plan = dataclasses.replace(
            plan, evidence=dataclasses.replace(plan.evidence, measured=measured)
        )
        guarded.keep(plan)
        self._leave(plan if measured.kept else None)


class _Guarded:
    """A plan whose program takes turns with the one it is to replace."""

    def __init__(
        self,
        choice: Choice,
        decision: Decision,
        cache: Cache,
        peers: Peers,
        patience: float,
    ) -> None:
        self.rules = choice.rules
        self._peers = peers
        self._patience = patience
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

    def conclude(self) -> MeasuredSteps:
        """What the first process measured, which decides for all.

        Raises:
            NoAgreementError: Not all processes know it.
        """

        def measured() -> bytes:
            # The first step of each side came with what happens only once.
            counted = self._times[2:]
            baseline = [t for side, t in counted if side == "baseline"]
            tuned = [t for side, t in counted if side == "tuned"]
            record = guard.judge(baseline, tuned)
            return json.dumps(dataclasses.asdict(record)).encode()

        def read(data: bytes) -> MeasuredSteps:
            return typed(MeasuredSteps, json.loads(data))

        return share(
            self._peers,
            "what was measured",
            measured,
            read,
            making=0.0,
            patience=self._patience,
        )

    def keep(self, plan: Plan) -> None:
        """Writes the plan with what was measured."""
        if self._peers.index == 0:
            first = self._decision.choices[0].plan
            part = "whole" if plan.holds_for == first.holds_for else "rest"
            self._cache.keep({**self._decision.parts, "part": part}, plan)


def _release(run: Run) -> None:
    """Gives the memory of a program back that will not run again."""
    if hasattr(run, "clear_cache"):
        run.clear_cache()


def _some_deleted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the step cannot be run again: it has taken what was donated."""
    arrays = jax.tree.leaves((args, kwargs))
    return any(isinstance(x, jax.Array) and x.is_deleted() for x in arrays)


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
