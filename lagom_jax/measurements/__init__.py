"""The user's own measurements: profiles of real steps, tables, and calibrations."""

from lagom_jax.measurements.anchored import members_of as members_of
from lagom_jax.measurements.calibration import Calibration as Calibration
from lagom_jax.measurements.refine import Refined as Refined
from lagom_jax.measurements.refine import refine as refine
from lagom_jax.measurements.xplane import MeasuredStep as MeasuredStep
from lagom_jax.measurements.xplane import read_profile as read_profile
