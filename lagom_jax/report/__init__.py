"""Reports for people, as text and JSON."""

from typing import TYPE_CHECKING

from lagom_jax.later import later

if TYPE_CHECKING:
    from lagom_jax.report.figures import CollectiveReport, KindTotal, Report
    from lagom_jax.report.overlap import report_program

__all__ = [
    "CollectiveReport",
    "KindTotal",
    "Report",
    "report_program",
]

__getattr__ = later(
    __name__,
    {
        "CollectiveReport": "figures",
        "KindTotal": "figures",
        "Report": "figures",
        "report_program": "overlap",
    },
)
