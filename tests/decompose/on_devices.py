"""Runs cases on 8 virtual CPU devices, in a process of its own.

The number of devices must be known before jax starts. One case a line, as JSON, comes
in, and its answer goes out: the largest error of every result and gradient beside the
plain form's, as a share of its largest value, or the text of an error.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from lagom_jax import decompose
from lagom_jax.errors import LagomError


class Devices:
    """The process, as its parent sees it."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                # Hundreds of small programs: compiling takes longer than running.
                "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
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


def mesh_of(ranks):
    """A mesh of so many devices, with the axis `t`."""
    kinds = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh(
        (ranks,), ("t",), devices=jax.devices()[:ranks], axis_types=kinds
    )


def plain(kind, axis, dimension):
    """The forms that the sliced ones have to equal."""
    return {
        "gather": lambda x, w: lax.all_gather(x, axis, axis=dimension, tiled=True) @ w,
        "scatter": lambda x, w: lax.psum_scatter(
            x @ w, axis, scatter_dimension=dimension, tiled=True
        ),
        "reduce": lambda x, w: lax.psum(x @ w, axis),
        "weight": lambda x, w: x @ lax.all_gather(w, axis, axis=1, tiled=True),
    }[kind]


def cut(kind, axis, dimension, form):
    """The same in slices."""
    given = {"dimension": dimension, "form": form}
    return {
        "gather": lambda x, w: decompose.all_gather_matmul(x, w, axis, **given),
        "scatter": lambda x, w: decompose.matmul_reduce_scatter(x, w, axis, **given),
        "reduce": lambda x, w: decompose.matmul_all_reduce(x, w, axis, **given),
        "weight": lambda x, w: decompose.gathered_weight_matmul(x, w, axis, form=form),
    }[kind]


def specs(kind, dimension, rank):
    """How the case's arrays lie on the mesh."""
    rows = P(*("t" if d == dimension else None for d in range(rank)))
    last = P(*(None,) * (rank - 1), "t")
    return {
        "gather": ((rows, P(None, "t")), last),
        "scatter": ((last, P("t", None)), rows),
        "reduce": ((last, P("t", None)), P()),
        # Each rank has rows of its own, as under FSDP.
        "weight": ((P("t"), P(None, "t")), P("t")),
    }[kind]


def within(transform, f):
    """`f` under one of jax's transformations; its result is as `f`'s."""
    if transform == "remat":
        return jax.checkpoint(f)
    if transform == "scan":

        def looped(x, w):
            def body(carry, one):
                return carry, f(x, one)

            return lax.scan(body, 0.0, jnp.stack([w, 2 * w]))[1].sum(0)

        return looped
    if transform == "vmap":
        return lambda x, w: jax.vmap(f, (None, 0))(x, jnp.stack([w, 2 * w])).sum(0)
    return f


def errors(case):
    """The largest errors of results and gradients, by name."""
    n, kind = case["ranks"], case["kind"]
    dimension, dtype = case.get("dimension", 0), jnp.dtype(case.get("dtype", "float32"))
    form = decompose.Form(**case.get("form", {}))
    shape = tuple(case["shape"])
    mesh = mesh_of(n)
    keys = jax.random.split(jax.random.key(case.get("seed", 0)), 3)
    x = jax.random.normal(keys[0], shape, dtype)
    w = jax.random.normal(keys[1], (shape[-1], case["outputs"]), dtype)
    ins, out = specs(kind, dimension, len(shape))
    runs = []
    for make in (
        plain(kind, "t", dimension),
        cut(kind, case.get("axis", "t"), dimension, form),
    ):
        f = jax.shard_map(
            within(case.get("transform"), make),
            mesh=mesh,
            in_specs=ins,
            out_specs=out,
            check_vma=case.get("checked", True),
        )

        def both(x, w, f=f):
            y, back = jax.vjp(f, x, w)
            ct = jax.random.normal(keys[2], y.shape, y.dtype)
            return (y, *back(ct))

        runs.append(jax.jit(both)(x, w))
    named = zip(("y", "dx", "dw"), *runs, strict=True)
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


def in_slices(case):
    """A layer of tensor parallelism in slices, with its gradients."""
    mesh = mesh_of(4)
    scattered = case["way"] == "tp-sp"
    rows = P(None, "t") if scattered else P()

    def layer(x, up, down):
        if scattered:
            x = lax.all_gather(x, "t", axis=1, tiled=True)
        y = jax.nn.silu(x @ up) @ down
        if scattered:
            return lax.psum_scatter(y, "t", scatter_dimension=1, tiled=True)
        return lax.psum(y, "t")

    f = jax.shard_map(
        layer, mesh=mesh, in_specs=(rows, P(None, "t"), P("t")), out_specs=rows
    )

    def both(*args):
        y, back = jax.vjp(f, *args)
        return (y, *back(jnp.cos(y)))

    keys = jax.random.split(jax.random.key(0), 3)
    args = [
        jax.random.normal(key, shape)
        for key, shape in zip(keys, [(4, 8, 8), (8, 16), (16, 8)], strict=True)
    ]
    cut = decompose.sliced(both)
    found = zip(jax.jit(both)(*args), jax.jit(cut)(*args), strict=True)
    return {
        "error": max(_error(one, two) for one, two in found),
        "before": communications(both, args),
        "after": communications(cut, args),
    }


def communications(f, args):
    """Collectives of a function."""
    text = str(jax.make_jaxpr(f)(*args))
    names = ("psum_invariant[", "all_gather[", "reduce_scatter[")
    return sum(text.count(name) for name in names)


def in_rings(case):
    """Two layers with tensor and sequence parallelism in rings, with their gradients."""
    mesh, rows = mesh_of(4), P(None, "t")
    weights = (P(None, None, "t"), P(None, None, "t"), P(None, "t"))

    def layer(x, ws):
        gate, up, down = ws
        full = lax.all_gather(x, "t", axis=1, tiled=True)
        y = jax.nn.silu(full @ gate) * (full @ up)
        z = lax.psum_scatter(y @ down, "t", scatter_dimension=1, tiled=True)
        return x + z

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
        return lax.psum(value, "t"), *found

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
    keys = jax.random.split(jax.random.key(0), 4)
    x, *ws = (
        (jax.random.normal(key, shape) / 3).astype(dtype)
        for key, shape in zip(
            keys, [(2, 20, 8), (2, 8, 12), (2, 8, 12), (2, 12, 8)], strict=True
        )
    )
    cut = decompose.rings(f, **case.get("options", {}))
    found = zip(
        jax.tree.leaves(f(tuple(ws), x)),
        jax.tree.leaves(cut(tuple(ws), x)),
        strict=True,
    )
    text = str(cut.trace(tuple(ws), x).jaxpr)
    return {
        "error": max(_error(one, two) for one, two in found),
        "left": text.count("all_gather[") + text.count("reduce_scatter["),
        "permutes": text.count("ppermute["),
        "sites": [site.kind for site in cut.sites],
    }


def attend(q, k, v, positions):
    """Causal attention of some queries: (batch, queries, heads, width)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    later = jnp.arange(k.shape[1])[None] > positions[:, None]
    shares = jax.nn.softmax(jnp.where(later, -1e30, scores))
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v)


def attention(case):
    """Attention cut over heads or over the sequence, beside that of one device."""
    mesh = mesh_of(4)
    keys = jax.random.split(jax.random.key(0), 5)
    q, k, v = (jax.random.normal(key, (2, 20, 8, 3)) for key in keys[:3])
    out = jax.random.normal(keys[3], (24, 10)) / 5
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
        return (y, *back(jax.random.normal(keys[4], y.shape)))

    found = zip(
        jax.jit(both, static_argnums=0)(plain),
        jax.jit(both, static_argnums=0)(f),
        strict=True,
    )
    named = zip(("y", "dq", "dk", "dv", "dw"), found, strict=True)
    return {name: _error(*pair) for name, pair in named}


EXTRA = {
    "uneven": uneven,
    "sliced": in_slices,
    "rings": in_rings,
    "attention": attention,
}

if __name__ == "__main__":
    main()
