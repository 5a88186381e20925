"""Plans: the options and settings chosen for a step, with the evidence."""

from lagom_jax.plan.check import check as check
from lagom_jax.plan.evidence import Evidence as Evidence
from lagom_jax.plan.evidence import MeasuredSteps as MeasuredSteps
from lagom_jax.plan.evidence import PlanCandidate as PlanCandidate
from lagom_jax.plan.evidence import Status as Status
from lagom_jax.plan.interval import Interval as Interval
from lagom_jax.plan.interval import Uncertainty as Uncertainty
from lagom_jax.plan.order import ScheduleEdit as ScheduleEdit
from lagom_jax.plan.pinned import Pinned as Pinned
from lagom_jax.plan.plan import HoldsFor as HoldsFor
from lagom_jax.plan.plan import Lever as Lever
from lagom_jax.plan.plan import Plan as Plan
from lagom_jax.plan.plan import PlanControls as PlanControls
from lagom_jax.plan.plan import SiteSetting as SiteSetting
from lagom_jax.plan.plan_file import from_json as from_json
from lagom_jax.plan.plan_file import load as load
from lagom_jax.plan.plan_file import save as save
from lagom_jax.plan.plan_file import to_json as to_json
from lagom_jax.plan.process_needs import Needs as Needs
from lagom_jax.plan.process_needs import ProcessVariable as ProcessVariable
from lagom_jax.plan.rewrite import Rewrite as Rewrite
from lagom_jax.plan.setting import Call as Call
from lagom_jax.plan.setting import Cap as Cap
from lagom_jax.plan.setting import Setting as Setting
from lagom_jax.plan.step_parts import StepParts as StepParts
from lagom_jax.plan.transport import Refusal as Refusal
