"""Runs cases on 8 virtual CPU devices, in a process of its own.

The number of devices must be known before jax starts. One case a line, as JSON, comes
in, and its answer goes out: the largest error of every result and gradient beside the
plain form's, as a share of its largest value, or the text of an error.
"""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=16"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import lagom_jax
from lagom_jax import decompose
from lagom_jax.errors import LagomError
from lagom_jax.plan import Rewrite, SiteForm
from tests.forked import Forked
from tests.kept_programs import kept_programs
from tests.plan.plans import made_by_hand


class Devices:
    """The process, as its parent sees it."""

    def __init__(self):
        self._process = Forked(
            [__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={
                **os.environ,
                **kept_programs(),
                # Hundreds of small programs: compiling takes longer than running.
                "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
        )

    def answer(self, **case):
        """What becomes of a case."""
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def mesh_of(ranks, outer=1):
    """A mesh of so many devices with the axis `t`, and perhaps another, `d`."""
    kinds = (jax.sharding.AxisType.Auto,) * 2
    devices = jax.devices()[: outer * ranks]
    return jax.make_mesh((outer, ranks), ("d", "t"), devices=devices, axis_types=kinds)


PLAIN = {}
"""By case without its form: what the results are held against, and its gradients'."""
ACTIVATIONS = {None: lambda y: y, "tanh": jnp.tanh}


def plain(kind, axis, dimension, activation):
    """The forms that the sliced ones have to equal."""
    made = {
        "gather": lambda x, w: lax.all_gather(x, axis, axis=dimension, tiled=True) @ w,
        "scatter": lambda x, w: lax.psum_scatter(
            x @ w, axis, scatter_dimension=dimension, tiled=True
        ),
        "reduce": lambda x, w: lax.psum(x @ w, axis),
        "weight": lambda x, w: x @ lax.all_gather(w, axis, axis=1, tiled=True),
    }[kind]
    return lambda x, w, b: ACTIVATIONS[activation](made(x, w) + b)


def cut(kind, axis, dimension, activation, form):
    """The same in slices."""
    if kind == "weight":
        return lambda x, w, b: ACTIVATIONS[activation](
            decompose.gathered_weight_matmul(x, w, axis, form=form) + b
        )
    fused = {
        "gather": decompose.all_gather_matmul,
        "scatter": decompose.matmul_reduce_scatter,
        "reduce": decompose.matmul_all_reduce,
    }[kind]
    return lambda x, w, b: fused(
        x,
        w,
        axis,
        dimension=dimension,
        form=form,
        bias=b,
        activation=activation and ACTIVATIONS[activation],
    )


def specs(kind, dimension, rank, first):
    """How the case's arrays lie on the mesh: what comes in, and the result."""
    d = (first,) if first else ()
    rows = P(*d, *("t" if n == dimension else None for n in range(len(d), rank)))
    last = P(*d, *(None,) * (rank - 1 - len(d)), "t")
    return {
        "gather": ((rows, P(None, "t"), P("t")), last),
        "scatter": ((last, P("t", None), P()), rows),
        "reduce": ((last, P("t", None), P()), P(*d)),
        # Each rank has rows of its own, as under FSDP.
        "weight": ((rows, P(None, "t"), P()), rows),
    }[kind]


def within(transform, f):
    """`f` under one of jax's transformations; its result is as `f`'s."""
    if transform == "remat":
        return jax.checkpoint(f)
    if transform == "scan":

        def looped(x, w, b):
            def body(carry, one):
                return carry, f(x, one, b)

            return lax.scan(body, 0.0, jnp.stack([w, 2 * w]))[1].sum(0)

        return looped
    if transform == "vmap over rows":
        return lambda x, w, b: jax.vmap(f, (0, None, None))(
            jnp.stack([x, 2 * x]), w, b
        ).sum(0)
    if transform == "vmap over weights":
        return lambda x, w, b: jax.vmap(f, (None, 0, None))(
            x, jnp.stack([w, 2 * w]), b
        ).sum(0)
    return f


def drawing(case):
    """Draws arrays of a case; jax would compile something for each of their shapes."""
    generator = np.random.default_rng(case.get("seed", 0))
    return lambda shape, dtype, scale=1.0: (
        scale * generator.standard_normal(shape)
    ).astype(dtype)


def errors(case):
    """The largest errors of results and gradients, by name."""
    n, kind, outer = case["ranks"], case["kind"], case.get("outer", 1)
    dimension, dtype = case.get("dimension", 0), jnp.dtype(case.get("dtype", "float32"))
    form = decompose.Form(**case.get("form", {}))
    shape = tuple(case["shape"])
    mesh, activation = mesh_of(n, outer), case.get("activation")
    draw = drawing(case)
    x = draw(shape, dtype)
    # Activations then see values that they tell apart.
    w = draw((shape[-1], case["outputs"]), dtype, shape[-1] ** -0.5)
    b = draw((case["outputs"],), dtype)
    ins, out = specs(kind, dimension, len(shape), "d" if outer > 1 else None)

    def mapped(f):
        return jax.shard_map(
            within(case.get("transform"), f),
            mesh=mesh,
            in_specs=ins,
            out_specs=out,
            check_vma=case.get("checked", True),
        )

    def both(f, x, w, b, ct):
        y, back = jax.vjp(f, x, w, b)
        return (y, *back(ct))

    run = jax.jit(both, static_argnums=0)
    asked = json.dumps({name: case[name] for name in case.keys() - {"form", "axis"}})
    if asked not in PLAIN:
        f = mapped(plain(kind, "t", dimension, activation))
        y = jax.eval_shape(f, x, w, b)
        ct = draw(y.shape, y.dtype)
        PLAIN[asked] = ct, run(f, x, w, b, ct)
    ct, expected = PLAIN[asked]
    f = mapped(cut(kind, case.get("axis", "t"), dimension, activation, form))
    named = zip(("y", "dx", "dw", "db"), expected, run(f, x, w, b, ct), strict=True)
    return {name: _error(one, two) for name, one, two in named}


def _error(one, two):
    assert one.dtype == two.dtype
    assert one.shape == two.shape
    one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
    return float(np.abs(one - two).max() / max(np.abs(one).max(), 1e-30))


def main():
    """Answers cases until there are no more."""
    for line in sys.stdin:
        case = json.loads(line)
        try:
            found = {"equal": errors, **EXTRA}[case.pop("ask", "equal")](case)
        except LagomError as error:
            found = {"error": str(error)}
        print(json.dumps(found), flush=True)


def uneven(case):
    """Scatters rows that do not divide."""
    mesh = mesh_of(case["ranks"])
    f = jax.shard_map(
        lambda x, w: decompose.matmul_reduce_scatter(x, w, "t"),
        mesh=mesh,
        in_specs=(P(None, "t"), P("t", None)),
        out_specs=P("t"),
    )
    jax.eval_shape(f, jnp.ones((case["rows"], 8)), jnp.ones((8, 8)))


def nearer(case):
    """Mean squared errors of a ring's sums in float32 and in the type itself."""
    ranks, shape = case["ranks"], tuple(case["shape"])
    draw = drawing(case)
    x, w = draw(shape, jnp.bfloat16), draw((shape[-1], 32), jnp.bfloat16)
    exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    found = {}
    for wide in (True, False):
        form = decompose.Form(wide_sums=wide)
        f = jax.shard_map(
            functools.partial(
                decompose.matmul_reduce_scatter, axis_name="t", form=form
            ),
            mesh=mesh_of(ranks),
            in_specs=(P(None, "t"), P("t")),
            out_specs=P("t"),
        )
        made = np.asarray(jax.jit(f)(x, w), np.float64)
        found["wide" if wide else "short"] = float(np.square(made - exact).mean())
    return found


def by_kind(f, forms):
    """A form for each kind of collective."""
    chosen = {kind: decompose.Form(**form) for kind, form in forms.items()}
    return decompose.with_forms(f, lambda site: chosen.get(site.kind))


CHANGES = {
    "forms": by_kind,
    "sliced": decompose.sliced,
    "rings": decompose.rings,
    "half batches": decompose.half_batch_loops,
}


def gated_layers(case):
    """Two gated layers with their gradients, and their arguments."""
    scattered = case["way"] == "tp-sp"
    mesh, rows = mesh_of(case.get("ranks", 4)), P(None, "t") if scattered else P()
    weights = (P(None, None, "t"), P(None, None, "t"), P(None, "t"))

    def layer(x, ws):
        gate, up, down = ws
        full = lax.all_gather(x, "t", axis=1, tiled=True) if scattered else x
        z = (jax.nn.silu(full @ gate) * (full @ up)) @ down
        if scattered:
            return x + lax.psum_scatter(z, "t", scatter_dimension=1, tiled=True)
        return x + lax.psum(z, "t")

    one = jax.checkpoint(layer) if case["remat"] else layer

    def stack(ws, x):
        if case["scan"]:
            x, _ = lax.scan(lambda x, w: (one(x, w), None), x, ws)
        else:
            for n in range(2):
                x = one(x, jax.tree.map(lambda w, n=n: w[n], ws))
        return jnp.sum(jnp.square(x.astype(jnp.float32)))

    def both(ws, x):
        value, found = jax.value_and_grad(stack, (0, 1))(ws, x)
        return lax.psum(value, "t") if scattered else value, *found

    f = jax.jit(
        jax.shard_map(
            both,
            mesh=mesh,
            in_specs=(weights, rows),
            out_specs=(P(), weights, rows),
            check_vma=case.get("checked", True),
        )
    )
    dtype = jnp.dtype(case.get("dtype", "float32"))
    batch, sequence, width, hidden = case.get("sizes", (2, 20, 8, 12))
    wide, narrow = (2, width, hidden), (2, hidden, width)
    draw = drawing(case)
    shapes = ((batch, sequence, width), wide, wide, narrow)
    x, *ws = (draw(shape, dtype, 1 / 3) for shape in shapes)
    return f, (tuple(ws), x)


def wrapped(case):
    """The layers under the wrapper, with a plan that names a form for each place."""
    f, args = gated_layers(case)
    ring = decompose.Form("ring", whole_weights=False)
    cut = decompose.with_forms(f, lambda site: ring)
    cut.trace(*args)
    forms = {(s.line, s.kind): SiteForm(s.line, s.kind, ring) for s in cut.sites}
    rewrite = Rewrite("with_forms", 1, False, (), "", 0.0, 0, (*forms.values(),))
    plan = dataclasses.replace(made_by_hand(), rewrite=rewrite)
    tuned = lagom_jax.tune(f, plan=plan, rewrite=True, mode="off")
    found = zip(jax.tree.leaves(f(*args)), jax.tree.leaves(tuned(*args)), strict=True)
    return {
        "error": max(_error(one, two) for one, two in found),
        "forms": len(forms),
        "permutes": tuned.lower(*args).as_text().count("collective_permute"),
    }


def rewritten(case):
    """The layers as they are and rewritten."""
    f, args = gated_layers(case)
    cut = CHANGES[case["change"]](f, **case.get("options", {}))
    found = zip(jax.tree.leaves(f(*args)), jax.tree.leaves(cut(*args)), strict=True)
    before, after = str(f.trace(*args).jaxpr), str(cut.trace(*args).jaxpr)
    return {
        "error": max(_error(one, two) for one, two in found),
        "before": communications(before),
        "after": communications(after),
        "permutes": after.count("ppermute["),
        "matmuls": [text.count("dot_general[") for text in (before, after)],
        "sites": [site.kind for site in cut.sites],
    }


def widened(x, up):
    """A matmul whose result is cut by columns."""
    return x @ up


def narrowed(h, down):
    """A matmul whose sums the partitioner adds up over ranks."""
    return h @ down


def partitioned(case):
    """Layers whose collectives are the partitioner's, cut at one line."""
    mesh = mesh_of(case["ranks"], case.get("outer", 1))
    batch, sequence, width, hidden = case.get("sizes", (4, 6, 8, 16))

    def on(*axes):
        return jax.NamedSharding(mesh, P(*axes))

    def layer(x, ws):
        x = lax.with_sharding_constraint(x, on("d"))
        h = lax.with_sharding_constraint(widened(x, ws[0]), on("d", None, "t"))
        y = lax.with_sharding_constraint(narrowed(jnp.tanh(h), ws[1]), on("d"))
        return x + y, None

    one = jax.checkpoint(layer) if case.get("remat") else layer

    def stack(ws, x):
        if case.get("scan"):
            return lax.scan(one, x, ws)[0]
        for n in range(2):
            x, _ = one(x, jax.tree.map(lambda w, n=n: w[n], ws))
        return x

    def loss(ws, x):
        return jnp.square(stack(ws, x)).mean()

    f = jax.jit(stack if case.get("forward") else jax.value_and_grad(loss, (0, 1)))
    draw = drawing(case)
    up, down, x = (
        jax.device_put(draw(shape, np.float32, 1 / 3), cut)
        for shape, cut in zip(
            ((2, width, hidden), (2, hidden, width), (batch, sequence, width)),
            (on(None, None, "t"), on(None, "t"), on("d")),
            strict=True,
        )
    )
    chosen, slices = CHOSEN[case["chosen"]], case["slices"]
    line = f"{Path(__file__).name}:{chosen.__code__.co_firstlineno + 2}"
    if case["way"] == "forms":
        form = decompose.Form("chunks", slices=slices)
        cut = decompose.with_forms(f, {(line, "dot_general"): form})
    else:
        whole = case["way"] == "sliced"
        cut = decompose.sliced(f, slices=slices, whole_sums=whole, sites=[line])
    args = ((up, down), x)
    found = zip(jax.tree.leaves(f(*args)), jax.tree.leaves(cut(*args)), strict=True)
    before, after = (added_up(g.lower(*args).compile().as_text()) for g in (f, cut))
    return {
        "error": max(_error(one, two) for one, two in found),
        "before": before,
        "after": after,
        "lines": len({site.line for site in cut.sites}),
    }


def added_up(text):
    """Arrays that all-reduces of a program add up, several in one or not."""
    calls = re.findall(r" all-reduce(?:-start)?\(([^)]*)\)", text)
    return sum(call.count("%") for call in calls)


CHOSEN = {"widened": widened, "narrowed": narrowed}


def communications(text):
    """Collectives of a function, but for messages between two."""
    names = ("psum_invariant[", "psum[", "all_gather[", "reduce_scatter[")
    return sum(text.count(name) for name in names)


def attend(q, k, v, positions):
    """Causal attention of some queries: (batch, queries, heads, width)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    later = jnp.arange(k.shape[1])[None] > positions[:, None]
    shares = jax.nn.softmax(jnp.where(later, -1e30, scores))
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v)


def attention(case):
    """Attention cut over heads or over the sequence, beside that of one device."""
    mesh = mesh_of(4)
    draw = drawing(case)
    q, k, v = (draw((2, 20, 8, 3), np.float32) for _ in range(3))
    out, ct = draw((24, 10), np.float32, 1 / 5), draw((2, 20, 10), np.float32)
    positions = jnp.arange(20)
    if case["layer"] == "ulysses":

        def layer(q, k, v, out):
            mixed = decompose.ulysses_attention(q, k, v, "t", attend, **case["options"])
            return mixed.reshape(2, -1, 24) @ out

        cut, last = P(None, "t"), P()
    else:

        def joined(q, k, v, positions):
            return attend(q, k, v, positions).reshape(2, q.shape[1], -1)

        def layer(q, k, v, out):
            form = decompose.Form(**case["options"])
            return decompose.attention_output(q, k, v, out, "t", joined, form=form)

        cut, last = P(None, None, "t"), P("t")
    f = jax.shard_map(
        layer,
        mesh=mesh,
        in_specs=(cut, cut, cut, last),
        out_specs=P(None, "t"),
    )

    def plain(q, k, v, out):
        return attend(q, k, v, positions).reshape(2, 20, 24) @ out

    def both(f):
        y, back = jax.vjp(f, q, k, v, out)
        return (y, *back(ct))

    found = zip(
        jax.jit(both, static_argnums=0)(plain),
        jax.jit(both, static_argnums=0)(f),
        strict=True,
    )
    named = zip(("y", "dq", "dk", "dv", "dw"), found, strict=True)
    return {name: _error(*pair) for name, pair in named}


EXTRA = {
    "uneven": uneven,
    "nearer": nearer,
    "rewritten": rewritten,
    "partitioned": partitioned,
    "wrapped": wrapped,
    "attention": attention,
}

if __name__ == "__main__":
    main()
