"""absl flags for training binaries: `from lagom_jax import flags`, and `--lagom=tune`.

Only binaries import this: a library that does would force the flags on its users.
"""

from __future__ import annotations

from typing import Final

from absl import flags

LAGOM: Final = flags.DEFINE_enum(
    "lagom",
    "off",
    ["off", "report", "tune", "load"],
    "What lagom_jax.tune does with the training step: nothing, say what could be "
    "gained, plan and use the plan, or use a plan that was made before.",
)
flags.DEFINE_string(
    "lagom_cluster",
    None,
    "What to plan for, such as h100:8x8; by default what the job runs on.",
)
flags.DEFINE_string("lagom_plan", None, "The plan to load, written by `lagom tune`.")
flags.DEFINE_string(
    "lagom_cache",
    None,
    "Where decisions are kept; `false` for nowhere. By default beside jax's "
    "compilation cache, or in ~/.cache/lagom_jax.",
)
flags.DEFINE_list(
    "lagom_levers",
    None,
    "Which levers a plan may use: options,costs,order,streams,settings.",
)
flags.DEFINE_integer("lagom_compiles", None, "Runs of the compiler for a plan.")
flags.DEFINE_float("lagom_seconds", None, "After so long no new compile is begun.")
flags.DEFINE_float(
    "lagom_memory_fraction", None, "The part of a GPU's memory that a step may take."
)
flags.DEFINE_boolean(
    "lagom_deterministic", None, "Leave alone what changes the order of sums."
)
flags.DEFINE_boolean(
    "lagom_strict", None, "Raise where the program as it is would run instead."
)
flags.DEFINE_enum(
    "lagom_verify",
    None,
    ["model", "measure", "online"],
    "Trust the model, measure the first steps and keep what is faster, or plan beside "
    "the training and go on measuring.",
)
flags.DEFINE_string("lagom_html", None, "The page that --lagom=report writes.")
flags.DEFINE_string(
    "lagom_trace", None, "The trace for Perfetto that --lagom=report writes."
)
flags.DEFINE_boolean("lagom_progress", None, "Say what is being compiled.")
flags.DEFINE_string(
    "lagom_kernels", None, "The file with the time or the work of unknown kernels."
)
flags.DEFINE_float(
    "lagom_patience", None, "For how many seconds processes wait for each other."
)
