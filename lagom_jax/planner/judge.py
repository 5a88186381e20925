"""Evaluation of a compiled program: its replay with the best settings of its own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence

from lagom_jax.cluster import Cluster
from lagom_jax.compile.store import Store
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import replay
from lagom_jax.cost.timeline import Timeline
from lagom_jax.decompose.cutting_advice import advise, form_savings, sites_to_cut
from lagom_jax.decompose.form_savings import FormPrices
from lagom_jax.decompose.matmul_beside import MatmulsBeside
from lagom_jax.hlo import Module
from lagom_jax.hlo.collective import Collective
from lagom_jax.measurements import Calibration, members_of
from lagom_jax.options import StepStructure, structure_of
from lagom_jax.order import Ordering, find_order
from lagom_jax.order.robust_order import ModelBeside, robust_order
from lagom_jax.order.streams import most_sms_held
from lagom_jax.plan.form import Form
from lagom_jax.plan.rewrite import CollectiveCut
from lagom_jax.plan.setting import Cap, Setting
from lagom_jax.plan.transport import CtaPolicy
from lagom_jax.planner.kept_orders import Circumstances, KeptOrders
from lagom_jax.planner.orders_found import OrdersFound, digest_of
from lagom_jax.planner.regret import Scored
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Program
from lagom_jax.report.program_notes import unknown_in_words
from lagom_jax.scheduled import Scheduled
from lagom_jax.settings.controls import FINE, Controls
from lagom_jax.settings.doubt import Doubt, EnsembleMember
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.policy import Found
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage
from lagom_jax.settings.tuning import Tuning, describe

_WORTH_A_POLICY = 1e-3
"""Less than this share of the step is not worth a variable of the process."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class View:
    """A compiled program as the model sees it."""

    scheduled: Scheduled
    program: Program
    timeline: Timeline
    """With NCCL's own choices."""
    structure: StepStructure
    tuning: Tuning
    stage: Stage
    """The program under that policy, set up for many replays."""
    found: Found
    """The choice of settings that `tuning` describes."""
    usual: Stage
    """The program under the default policy."""
    policy: CtaPolicy = "default"
    """The process's, under which these times hold."""
    without_policy: float | None = None
    """Seconds of a step with these settings where that policy is not set; None where
    it is the default."""

    @property
    def default_seconds(self) -> float:
        """With everything left to NCCL."""
        return self.tuning.before.step_seconds

    @property
    def tuned_seconds(self) -> float:
        """With the settings that were found for it."""
        return self.tuning.after.step_seconds


class Judge:
    """Looks at programs for one cluster, with one model and the same controls."""

    def __init__(
        self,
        cluster: Cluster,
        controls: Controls,
        calibration: Calibration | None = None,
        *,
        models: Ensemble | None = None,
        streams: bool = False,
        policies: tuple[CtaPolicy, ...] = ("default",),
        store: Store | None = None,
    ) -> None:
        """Sets the model up.

        Args:
            cluster: What the programs run on.
            controls: The parts of a setting that can be set.
            calibration: Corrections to the model.
            models: All that may hold; by default what is known of the cluster.
            streams: Whether collectives may have a second stream in another order.
            policies: Of the process, that a plan may ask for; the default first.
            store: Where orders stay for other plans; None for nowhere.
        """
        self._streams = streams
        self._policies = policies
        self._ensemble = models or Ensemble.of(cluster)
        self.model = self._ensemble.likeliest
        self._models = {one: self.model.with_policy(one) for one in policies}
        self._cluster, self._calibration = cluster, calibration
        self._controls = controls
        self._store = store
        self._kept = KeptOrders(
            store, Circumstances(cluster, self.model.digest, calibration, streams)
        )
        self._orders_found = OrdersFound(self._kept)
        self._correction = calibration and calibration.apply(
            self.model, cluster, self.model.digest
        )
        self._members = members_of(self._ensemble, calibration)
        self._members_under: dict[CtaPolicy, list[EnsembleMember]] = {}
        self.pricing = self.model.source
        if calibration is not None:
            self.pricing = calibration.pricing(self.pricing)

    def calibrated(self, calibration: Calibration) -> Judge:
        """The judge with the model corrected by measurements."""
        return self._with(self._ensemble, calibration)

    def led_by(self, number: int) -> Judge:
        """The judge that takes another model of its ensemble for the likeliest.

        Args:
            number: The model's place.
        """
        return self._with(self._ensemble.led_by(number), self._calibration)

    def _with(self, models: Ensemble, calibration: Calibration | None) -> Judge:
        return Judge(
            *(self._cluster, self._controls, calibration),
            models=models,
            streams=self._streams,
            policies=self._policies,
            store=self._store,
        )

    def coarsest(self) -> Judge:
        """The judge with the coarsest controls; itself where there are none coarser."""
        controls = self._controls
        while (fewer := controls.coarser()) is not None:
            controls = fewer
        if controls is self._controls:
            return self
        other = copy.copy(self)
        other._controls = controls
        return other

    def correct(self, prices: Prices) -> Prices:
        """The model's prices, corrected by the user's own measurements."""
        if self._correction is None:
            return prices
        return dataclasses.replace(self._correction, base=prices)

    def seconds(self, site: Collective) -> float:
        """Seconds of a collective alone with NCCL's own choice."""
        return self.correct(self.model).collective(site).seconds

    def look(self, scheduled: Scheduled) -> View:
        """Replays a program, and finds the settings that make it shortest.

        Another policy of the process than the default one is only taken where it gains,
        and where nothing is lost if nobody sets it.
        """
        program = build_program(scheduled.module)
        best = self._under("default", scheduled, program)
        for policy in self._policies[1:]:
            model = self._models[policy]
            if not _moved(program, self.model, model):
                continue
            view = self._under(policy, scheduled, program, best.stage)
            without = self._seconds_of(view)
            gains = view.tuned_seconds < best.tuned_seconds * (1 - _WORTH_A_POLICY)
            if gains and without <= best.default_seconds:
                best = dataclasses.replace(view, without_policy=without)
        return best

    def cuts(self, view: View) -> Iterator[CollectiveCut]:
        """Places that would expose less in slices, under a view's settings.

        Slices themselves are priced with NCCL's own settings.
        """
        model = self._set(view, self._models[view.policy])
        prices = self.correct(model)
        timeline = replay(view.program, prices, model.contention())
        by = self._of_forms(prices, model)
        for one in advise(view.program, timeline, by):
            if one.pays:
                yield one

    def form_savings(
        self, view: View
    ) -> dict[Collective, dict[Form, tuple[float, ...]]]:
        """Seconds of a step that each form would save at each collective, by model.

        The likeliest comes first, and says which places are worth it. What is exposed
        is so under a view's settings; a report, which has none, takes NCCL's own.
        """
        likeliest = EnsembleMember(self._models[view.policy], self.correct)
        matmuls: dict[Collective, MatmulsBeside] | None = None
        by_model: list[dict[Collective, dict[Form, float]]] = []
        for member in (likeliest, *self._under_policy(view.policy)):
            model = self._set(view, member.model)
            prices = member.correct(model)
            timeline = replay(view.program, prices, model.contention())
            if matmuls is None:
                matmuls = sites_to_cut(view.program, timeline)
            by = self._of_forms(prices, model)
            by_model.append(form_savings(matmuls, timeline, by))
        first, *_ = by_model
        return {
            site: {
                form: tuple(saved[site][form] for saved in by_model) for form in forms
            }
            for site, forms in first.items()
        }

    def _of_forms(self, prices: Prices, model: CostModel) -> FormPrices:
        """Prices where messages may go by copy engines, if that may be asked for."""
        return FormPrices(prices, model.contention(), len(self._policies) > 1)

    def _seconds_of(self, view: View) -> float:
        """A step with the settings of a view, under the default policy."""
        model = self._set(view, self.model)
        timeline = replay(view.program, self.correct(model), model.contention())
        return timeline.step_seconds

    def _set(self, view: View, model: CostModel) -> CostModel:
        """A model under the settings of a view."""
        chosen = {
            name: group.chosen for group in view.tuning.groups for name in group.sites
        }
        settings: dict[Collective, Setting] = {}
        for site, _, _ in view.program.collectives():
            setting = chosen.get(site.name)
            if isinstance(setting, Cap):
                setting = setting.of(model.usual(site))
            if setting is not None:
                settings[site] = setting
        return model.under(settings)

    def _under(
        self,
        policy: CtaPolicy,
        scheduled: Scheduled,
        program: Program,
        usual: Stage | None = None,
    ) -> View:
        model = self._models[policy]
        timeline = replay(program, self.correct(model), model.contention())
        version = model.constants.nccl
        space = space_of(
            program, self._cluster, self._controls, FINE, version, model.carried
        )
        stage = Stage(program, space, model, self.correct)
        found = Lagom().choose(stage)
        tuning = self._described(scheduled, stage, found)
        structure = structure_of(program)
        return View(
            *(scheduled, program, timeline, structure, tuning, stage, found),
            usual=usual or stage,
            policy=policy,
        )

    def doubt(self, stage: Stage, policy: CtaPolicy) -> Doubt:
        """A program under all models that may hold.

        Args:
            stage: Of a view, under one policy of the process.
            policy: That policy.
        """
        return Doubt(stage, self._under_policy(policy))

    def _under_policy(self, policy: CtaPolicy) -> list[EnsembleMember]:
        """All other models under a policy; programs share what these remember."""
        known = self._members_under.get(policy)
        if known is None:
            known = self._members_under[policy] = [
                member._replace(model=member.model.with_policy(policy))
                for member in self._members
            ]
        return known

    def sms_lacking(self, view: View) -> int:
        """SMs that collectives of a program need together and the GPU does not have."""
        held = most_sms_held(view.program, view.stage.sms_of(view.found.choice))
        return max(0, held - self._cluster.gpu.sm_count)

    def restated(self, view: View, found: Found) -> View:
        """A program with another choice of settings."""
        tuning = self._described(view.scheduled, view.stage, found)
        view = dataclasses.replace(view, tuning=tuning, found=found)
        if view.without_policy is None:
            return view
        return dataclasses.replace(view, without_policy=self._seconds_of(view))

    def untouched(self, view: View) -> View:
        """A program with everything left to NCCL, under the default policy."""
        found = Found(view.usual.untouched, 0)
        return dataclasses.replace(
            view,
            tuning=self._described(view.scheduled, view.usual, found),
            stage=view.usual,
            found=found,
            policy="default",
            without_policy=None,
        )

    def _described(self, scheduled: Scheduled, stage: Stage, found: Found) -> Tuning:
        return describe(
            stage,
            found,
            self._cluster,
            controls=self._controls,
            policies=[Lagom()],
            pricing=self.pricing,
            name=scheduled.name or stage.program.name,
            description=scheduled.description,
            versions=tuple(sorted(scheduled.versions.items())),
            notes=(*_without(stage.program), *scheduled.notes),
        )

    def order(
        self,
        module: Module,
        *,
        spare_bytes: int | None,
        evaluations: int,
        policy: CtaPolicy = "default",
    ) -> Ordering:
        """Looks for another order of a module that XLA's scheduler has left.

        Args:
            module: The module as the scheduler left it.
            spare_bytes: What the program may take more than it does.
            evaluations: Orders that may be tried.
            policy: Of the process.
        """

        def find() -> Ordering:
            return find_order(
                module,
                self._cluster,
                self._models[policy],
                controls=self._controls,
                grid=FINE,
                correct=self.correct,
                spare_bytes=spare_bytes,
                evaluations=evaluations,
                streams=self._streams,
            )

        def same(other: CtaPolicy) -> bool:
            program = build_program(module)
            return not _moved(program, self._models[other], self._models[policy])

        question = digest_of(module), self._controls, evaluations
        return self._orders_found.answer(
            question, spare_bytes, policy, same=same, find=find
        )

    def robust_order(
        self,
        module: Module,
        begin: Ordering,
        *,
        beside: Scored,
        members: Sequence[int] | None = None,
        spare_bytes: int | None,
        evaluations: int,
        policy: CtaPolicy = "default",
    ) -> Ordering:
        """Looks for an order that is behind another step by none of some models.

        Args:
            module: The module as XLA's scheduler left it.
            begin: An order of it, where the search begins.
            beside: Times of the other step.
            members: Places in the ensemble of those that may be asked beside the
                likeliest; by default all. A few are, that find the beginning the
                furthest behind.
            spare_bytes: As for `order`.
            evaluations: Orders that may be tried, each by all of these models.
            policy: Of the process.
        """
        likeliest = ModelBeside(self._models[policy], self.correct, beside.seconds)
        known = self._under_policy(policy)
        places = range(len(known)) if members is None else members
        others = [ModelBeside(*known[n], beside.by_model[n]) for n in places]

        def find() -> Ordering:
            return robust_order(
                module,
                self._cluster,
                [likeliest, *others],
                begin,
                controls=self._controls,
                grid=FINE,
                spare_bytes=spare_bytes,
                evaluations=evaluations,
            )

        question = {
            "module": digest_of(module),
            "begin": begin,
            "beside": beside,
            "members": tuple(places),
            "controls": self._controls,
            "evaluations": evaluations,
            "spare": spare_bytes,
            "policy": policy,
        }
        return self._kept.order(question, find)


def _moved(program: Program, model: CostModel, other: CostModel) -> bool:
    """True if collectives are carried otherwise by another model."""
    return any(
        other.carried(site) != model.carried(site)
        for site, _, _ in program.collectives()
    )


def _without(program: Program) -> tuple[str, ...]:
    """A remark on what a plan's gain is claimed without."""
    unknown = program.called_kernels("custom")
    return (unknown_in_words(unknown),) if unknown else ()
