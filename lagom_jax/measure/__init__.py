"""The user's own measurements: profiles of real steps, tables, and calibrations."""

from lagom_jax.measure.calibration import Calibration as Calibration
from lagom_jax.measure.refine import Refined as Refined
from lagom_jax.measure.refine import refine as refine
from lagom_jax.measure.xplane import MeasuredStep as MeasuredStep
from lagom_jax.measure.xplane import read_profile as read_profile
