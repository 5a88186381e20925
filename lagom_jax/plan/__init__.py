"""What a tuning decided, with its evidence: readable, comparable, replayable."""

from lagom_jax.plan.plan import Candidate as Candidate
from lagom_jax.plan.plan import Evidence as Evidence
from lagom_jax.plan.plan import HoldsFor as HoldsFor
from lagom_jax.plan.plan import Lever as Lever
from lagom_jax.plan.plan import Measured as Measured
from lagom_jax.plan.plan import Plan as Plan
from lagom_jax.plan.plan import SiteSetting as SiteSetting
from lagom_jax.plan.plan import Status as Status
from lagom_jax.plan.plan_file import from_json as from_json
from lagom_jax.plan.plan_file import load as load
from lagom_jax.plan.plan_file import save as save
from lagom_jax.plan.plan_file import to_json as to_json
