"""Overlaps of communication and computation in compiled JAX training steps.

Example:
    >>> import lagom_jax
    >>> lagom_jax.Cluster.parse("h100:8x8").devices
    64
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lagom_jax import decompose as decompose
    from lagom_jax import mesh as mesh
    from lagom_jax import regions as regions
    from lagom_jax.api import analyze as analyze
    from lagom_jax.api import analyze_dump as analyze_dump
    from lagom_jax.api import find_settings as find_settings
    from lagom_jax.api import find_settings_of_dump as find_settings_of_dump
    from lagom_jax.cluster import Cluster as Cluster
    from lagom_jax.environment import init as init
    from lagom_jax.errors import LagomError as LagomError
    from lagom_jax.plan import Plan as Plan
    from lagom_jax.planner import Budget as Budget
    from lagom_jax.planner import make_plan as make_plan
    from lagom_jax.report import CollectiveReport as CollectiveReport
    from lagom_jax.report import Report as Report
    from lagom_jax.runtime.tune import tune as tune
    from lagom_jax.runtime.tune_all import tune_all as tune_all
    from lagom_jax.settings.tuning import Tuning as Tuning

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
    "decompose",
    "find_settings",
    "find_settings_of_dump",
    "init",
    "make_plan",
    "mesh",
    "regions",
    "tune",
    "tune_all",
]

# Each process needs a part of it: one that compiles none of what makes a plan.
_MODULES = {
    "Budget": "planner",
    "Cluster": "cluster",
    "CollectiveReport": "report",
    "LagomError": "errors",
    "Plan": "plan",
    "Report": "report",
    "Tuning": "settings.tuning",
    "analyze": "api",
    "analyze_dump": "api",
    "find_settings": "api",
    "find_settings_of_dump": "api",
    "init": "environment",
    "make_plan": "planner",
    "tune": "runtime.tune",
    "tune_all": "runtime.tune_all",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is first asked for."""
    if name in _MODULES:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
        globals()[name] = found = getattr(module, name)
        return found
    # A room, as if it had been imported with the package.
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """All names, those that nobody asked for yet among them."""
    return sorted({*globals(), *__all__})
