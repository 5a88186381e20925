"""A small plan made by hand: no figure in it was predicted by anything."""

from lagom_jax.plan import (
    Candidate,
    Evidence,
    HoldsFor,
    Lever,
    Plan,
    SiteSetting,
)
from lagom_jax.search.tuning import StepParts

ALL_GATHER = "xla_gpu_enable_pipelined_all_gather"
THRESHOLD = "xla_gpu_all_gather_combine_threshold_bytes"
VERSIONS = (
    ("jax", "0.10.2"),
    ("jax-cuda12-pjrt", "0.10.2"),
    ("jax-cuda12-plugin", "0.10.2"),
    ("jaxlib", "0.10.2"),
    ("nvidia-cuda-nvcc-cu12", "12.9.86"),
)


def made_by_hand() -> Plan:
    """A plan with every part that a plan can have."""
    return Plan(
        holds_for=HoldsFor(
            program="train_step",
            fingerprint="0f" * 32,
            schedule="a1" * 32,
            cluster="h100:1x8",
            devices=8,
            versions=VERSIONS,
            pinned=(("xla_gpu_autotune_level", "0 [XLA_FLAGS]"),),
        ),
        levers=(
            Lever(
                ALL_GATHER,
                True,
                "the all-gather of a layer fits beside the layer before it",
                True,
                "12 all-gathers start one iteration earlier",
                -0.004,
                1 << 30,
                True,
            ),
            Lever(THRESHOLD, 1 << 26, "fewer calls", True, "", 0.0, 0, True),
            Lever(
                "xla_gpu_enable_while_loop_unrolling",
                "WHILE_LOOP_UNROLLING_FULL_UNROLL",
                "tried",
                False,
                "",
                None,
                None,
                True,
            ),
            Lever(
                "fdo_profile",
                None,
                "costs of this model",
                True,
                "3 starts moved",
                -0.001,
                0,
                True,
            ),
            Lever(
                "order",
                None,
                "reduce-scatters wait for the last matmul",
                True,
                "1 computation in another order",
                -0.002,
                None,
                False,
            ),
        ),
        costs='costs { name: "fusion.1" cost_us: 12.5 }\n',
        order={
            "fingerprint": "a1" * 32,
            "sequences": {"2": [0, 2, 1, 3]},
            "aside": {"2": [1]},
        },
        settings=(
            SiteSetting(
                "reduce-scatter",
                1 << 25,
                8,
                1,
                ("reduce-scatter of 33554432 bytes over 8 ranks in 1 domain",),
                ("reduce-scatter.7", "reduce-scatter.9"),
                "ring/simple/24/544/2097152",
                "ring/simple/8/544/1048576",
                "the kernels beside it gain more than it loses",
            ),
            SiteSetting(
                "all-to-all",
                1 << 22,
                8,
                1,
                (),
                ("all-to-all.1",),
                "p2p/simple/32/512/524288",
                "at most 8 channels",
                "it is hidden anyway",
            ),
        ),
        controls="tuner: a tuner plugin on a stock NCCL",
        evidence=Evidence(
            default=StepParts(0.100, 0.080, 0.004, 0.050, 0.018, 0.002),
            tuned=StepParts(0.090, 0.079, 0.003, 0.052, 0.010, 0.001),
            bound_seconds=0.076,
            bound="computation alone",
            default_peak=60 << 30,
            tuned_peak=61 << 30,
            memory_limit=80 << 30,
            candidates=(
                Candidate("as it is", (), "ok", "", 0.1, 0.098, 60 << 30, 4.5),
                Candidate(
                    "pipelined",
                    ((ALL_GATHER, True), ("fdo_profile", None)),
                    "ok",
                    "",
                    0.095,
                    0.09,
                    61 << 30,
                    5.25,
                ),
                Candidate(
                    "everything",
                    (("optimization_level", 19),),
                    "over memory",
                    "needs 93 GB of 86 GB",
                    None,
                    None,
                    93_000_000_000,
                    5.0,
                ),
            ),
            compiles=3,
            seconds=20.5,
        ),
        pricing="made by hand",
        notes=("how often the loop while.1 runs is not known; it is counted once",),
    )
