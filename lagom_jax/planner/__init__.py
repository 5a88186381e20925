"""From a training step to a plan: compile in several ways, look at each, decide."""

from lagom_jax.planner.budget import Budget as Budget
from lagom_jax.planner.make import Planner as Planner
from lagom_jax.planner.make import make_plan as make_plan
from lagom_jax.planner.request import LEVERS as LEVERS
from lagom_jax.planner.request import LeverError as LeverError
from lagom_jax.planner.request import Request as Request
from lagom_jax.planner.workload import SizedPlan as SizedPlan
from lagom_jax.planner.workload import SizedWorkload as SizedWorkload
from lagom_jax.planner.workload import plan_workload as plan_workload
