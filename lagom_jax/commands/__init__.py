"""The verbs of the command line, a module each, and what each is for in a line."""

from typing import Final

VERBS: Final = {
    "report": "report the overlaps of a training step",
    "tune": "find what makes a training step shortest: XLA's options and NCCL's",
    "plan": "show a plan, compare two, or see whether one holds here",
    "diff": "what changed from one dump, report or plan to another",
    "assert-overlap": "exit with 1 if a dump exposes more communication than it may",
    "tuner": "the NCCL plugin: where it is, whether NCCL takes it, what it answers",
    "predict": "predict times of collectives, matmuls or a program",
    "validate": "compare the model with every measurement it knows",
    "calibrate": "fit the model to your own measurements",
    "mesh": "which mesh to train a model on, before a GPU is rented",
    "regions": "training across slow links: what they must carry, and how to train",
    "clusters": "list the known clusters, or one with the source of every figure",
    "flags": "list the options of XLA and variables of NCCL that matter for overlap",
    "doctor": "check that XLA's GPU compiler is installed and works here",
}
"""Purposes as `lagom --help` lists them; none of the modules is imported for that."""
