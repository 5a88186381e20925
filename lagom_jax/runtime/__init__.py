"""Around a jitted function: what makes plans take effect in a training job, safely.

The way of a call: `wrapper` meets arguments that it has not seen, `variant` has a plan
decided on for their program (`case`, `decision`, `offer`), `executables` keeps what is
compiled for it, and `steps` runs it. What a step runs is an `agenda`, which a guide
makes: the plan from the first step on, two programs in turn (`guard`), or what is found
while the job trains (`online`). Once nothing changes any more a call goes to jax's own
dispatch. Whatever goes wrong on that way, the program as it was runs.

All that processes decide together goes through rounds: `protocol` without a clock or a
network, `coordination` and `store` with them.
"""
