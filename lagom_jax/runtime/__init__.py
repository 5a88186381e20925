"""Around a jitted function: what makes plans take effect in a training job, safely.

The way of a call: `wrapper` meets arguments that it has not seen, `decision` finds or
makes a plan for them, `compiled` builds the program that the plan asks for, `guard`
measures it against the program as it was, if that is wanted, and from then on the call
goes to jax's own function. Whatever goes wrong on that way, the program as it was runs.
"""
