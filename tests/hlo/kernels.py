"""Modules of a few lines, and the work of what is in them."""

import dataclasses

from lagom_jax.hlo.work import work
from tests.texts import parse

ADD = """
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
"""


def work_of(text, name=None):
    """The work of a kernel, but for what its threads execute.

    Of the entry computation's root, or of the instruction named.
    """
    found = whole_work_of(text, name)
    return dataclasses.replace(found, executed=None, by_columns=False, strided=0)


def whole_work_of(text, name=None):
    """The work with what the kernel's threads execute."""
    module = parse(text)
    entry = module.entry
    found = [i for i in entry.instructions.values() if i.name == name]
    return work(module, entry, found[0] if found else entry.root)


def one(result, call, *operands):
    """A module whose entry is `call` on parameters of these shapes."""
    names = ", ".join(f"p{i}" for i in range(len(operands)))
    head, _, tail = call.partition("(")
    lines = [f"p{i} = {shape} parameter({i})" for i, shape in enumerate(operands)]
    lines.append(f"ROOT r = {result} {head}({names}{tail}")
    body = "\n  ".join(lines)
    return f"ENTRY e {{\n  {body}\n}}"


def fused(body, result, *operands, kind="kLoop"):
    """A module whose entry is one fusion of `body` on parameters of these shapes.

    The body's own parameters are called p0, p1, ... and have the same shapes.
    """
    inner = [f"p{i} = {shape} parameter({i})" for i, shape in enumerate(operands)]
    lines = "\n  ".join([*inner, body.strip()])
    names = ", ".join(f"p{i}" for i in range(len(operands)))
    calls = f"fusion({names}), kind={kind}, calls=body"
    text = one(result, f"fusion(), kind={kind}, calls=body", *operands)
    assert calls in text
    return f"body {{\n  {lines}\n}}\n{text}"
