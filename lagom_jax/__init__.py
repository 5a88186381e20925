"""Overlaps of communication and computation in compiled JAX training steps.

Example:
    >>> import lagom_jax
    >>> lagom_jax.Cluster.parse("h100:8x8").devices
    64
"""

from lagom_jax import regions as regions
from lagom_jax.analysis import analyze as analyze
from lagom_jax.analysis import analyze_dump as analyze_dump
from lagom_jax.cluster import Cluster as Cluster
from lagom_jax.environment import init as init
from lagom_jax.errors import LagomError as LagomError
from lagom_jax.plan import Plan as Plan
from lagom_jax.planning import Budget as Budget
from lagom_jax.planning import make_plan as make_plan
from lagom_jax.report import CollectiveReport as CollectiveReport
from lagom_jax.report import Report as Report
from lagom_jax.runtime.tune import tune as tune
from lagom_jax.search.tuning import Tuning as Tuning
from lagom_jax.settings import find_settings as find_settings
from lagom_jax.settings import find_settings_of_dump as find_settings_of_dump

__version__ = "0.1.0"
__all__ = [
    "Budget",
    "Cluster",
    "CollectiveReport",
    "LagomError",
    "Plan",
    "Report",
    "Tuning",
    "analyze",
    "analyze_dump",
    "find_settings",
    "find_settings_of_dump",
    "init",
    "make_plan",
    "regions",
    "tune",
]
