"""Reports for people, as text and JSON."""

from lagom_jax.report.figures import CollectiveReport as CollectiveReport
from lagom_jax.report.figures import KindTotal as KindTotal
from lagom_jax.report.figures import Report as Report
from lagom_jax.report.overlap import report_program as report_program
