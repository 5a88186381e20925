"""A profile as GPUs write them, of a step that was thought up."""

from written_profile import profile


def step_of_two_gpus(steps=3, late=5.0, module="jit_step"):
    """A step on two GPUs: a gather beside a matmul of two kernels, then a fusion.

    The second GPU is `late` microseconds behind, for which the first one's gather waits.
    """
    planes = {}
    for gpu in range(2):
        compute, communication = [], []
        for step in range(steps):
            start = 1000.0 * step + late * gpu
            wait = late * (1 - gpu)

            def of(op, **more):
                return {"hlo_op": op, "hlo_module": module, "correlation_id": 7, **more}

            communication.append(
                (
                    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                    start,
                    50.0 + step + wait,
                    of("start"),
                )
            )
            compute += [
                ("nvjet_hsh_128x256", start, 20.0, of("%work")),
                ("splitKreduce_kernel", start + 21, 4.0, of("%work")),
                ("loop_add_fusion_1", start + 70, 8.0, {"correlation_id": 9}),
                ("Memset", start + 90, 1.0, {}),
            ]
        planes[f"/device:GPU:{gpu}"] = {
            "Stream #13(Compute)": compute,
            "Stream #14(Collective)": communication,
            "XLA Ops": compute,
        }
    planes["/host:CPU"] = {"python": [("PjitFunction(step)", 0.0, 900.0, {})]}
    planes["Task Environment"] = {}
    return profile(planes)
