"""A search among programs of a step by the steps that a job makes anyway.

The way of a step time: `steps` takes drift out of it, `belief` lets it narrow what the
ensemble of models left open, `evidence` tests with a fixed error rate, and `search`
says which candidate runs next; `turns` compares two programs and no more. All of it is
pure: it knows no clock, no process and no jax; `lagom_jax.runtime` feeds it with what a
job measures, and does what it says.
"""
