"""Small sliced programs, compiled for GPUs that are not here."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax import decompose
from lagom_jax.program.build import build_program
from lagom_jax.scheduled import compile_scheduled

OPTIONS = {
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_collective_permute_combine_threshold_bytes": 0,
}


def written(
    function, form, cluster="", weights=1, options=None, ranks=4, taken=lambda y: y
):
    """As users write it, with a form for each place: rows gathered, sums scattered.

    Products with what is gathered are `taken` somehow.
    """

    def gathers(x, *ws):
        rows = jax.lax.all_gather(x, "t", tiled=True)
        return tuple(taken(rows @ w) for w in ws)

    def scatters(x, w):
        return jax.lax.psum_scatter(x @ w, "t", tiled=True)

    mesh = AbstractMesh((ranks,), ("t",))
    rows, columns = P("t"), P(None, "t")
    f, ins, out = {
        "gather": (gathers, (rows, *[columns] * weights), columns),
        "scatter": (scatters, (columns, rows), rows),
    }[function]
    step = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=out))
    shapes = [(8192, 1024), *[(1024, 2048)] * weights]
    args = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, ins, strict=True)
    ]
    return compile_scheduled(
        decompose.with_forms(step, lambda site: form),
        *args,
        cluster=cluster or f"h100:1x{ranks}",
        compiler_options=OPTIONS | (options or {}),
    )


def program(function, form, cluster="", ranks=4, options=None, **more):
    """The scheduled entry computation of one collective matmul, and its module.

    `more` is passed on to it.
    """
    mesh = AbstractMesh((ranks,), ("t",))
    rows, columns = P("t"), P(None, "t")
    ins, out = {
        "gather": ((rows, columns), columns),
        "scatter": ((columns, rows), rows),
    }[function]
    call = {
        "gather": decompose.all_gather_matmul,
        "scatter": decompose.matmul_reduce_scatter,
    }[function]
    f = jax.shard_map(
        functools.partial(call, axis_name="t", form=form, **more),
        mesh=mesh,
        in_specs=ins,
        out_specs=out,
    )
    args = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip([(8192, 1024), (1024, 2048)], ins, strict=True)
    ]
    return compile_scheduled(
        jax.jit(f),
        *args,
        cluster=cluster or f"h100:1x{ranks}",
        compiler_options=OPTIONS | (options or {}),
    )


def layer(form, cluster="h100:1x4", ranks=4, examples=1):
    """A feed-forward layer and its gradients, scheduled; with examples before rows."""
    mesh = AbstractMesh((ranks,), ("t",))
    before = (None,) if examples > 1 else ()
    ins = (P(*before, "t"), P(None, "t"), P("t"))

    def both(*args):
        y, back = jax.vjp(
            lambda x, up, down: decompose.feed_forward(
                *(x, (up,), down, "t"),
                activation=jax.nn.gelu,
                dimension=len(before),
                form=form,
            ),
            *args,
        )
        return y, *back(jnp.tanh(y))

    f = jax.shard_map(both, mesh=mesh, in_specs=ins, out_specs=(ins[0], *ins))
    rows = (examples, 8192 // examples) if before else (8192,)
    shapes = ((*rows, 1024), (1024, 2048), (2048, 1024))
    args = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, ins, strict=True)
    ]
    return compile_scheduled(
        jax.jit(f), *args, cluster=cluster, compiler_options=OPTIONS
    )


def forward(form, options, ranks=4):
    """The same layer without examples and gradients."""
    mesh = AbstractMesh((ranks,), ("t",))
    ins = (P("t"), P(None, "t"), P("t"))
    f = jax.shard_map(
        lambda x, up, down: decompose.feed_forward(
            x, (up,), down, "t", activation=jax.nn.gelu, form=form
        ),
        mesh=mesh,
        in_specs=ins,
        out_specs=ins[0],
    )
    shapes = ((8192, 1024), (1024, 2048), (2048, 1024))
    args = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, ins, strict=True)
    ]
    return compile_scheduled(
        jax.jit(f),
        *args,
        cluster=f"h100:1x{ranks}",
        compiler_options=OPTIONS | options,
    )


def workspace(module):
    """Bytes of cuBLAS's own workspace in a program."""
    return max(
        part.byte_size
        for one in module.entry.sequence
        for part in one.shape.elements
        if part.type == "s8"
    )


def added_to(module):
    """For each matmul of a program, in order, whether it adds to something."""
    return [
        len(one.operand_ids) > 2
        for one in module.entry.sequence
        if "matmul" in one.proto.custom_call_target
    ]


def walk(module):
    """What a program does, in order: start, done, matmul; and whether it waits."""
    # jax 0.12 writes a permute as an `async-start` with the permute inside.
    sites = {site.name: site for site, _, _ in build_program(module).collectives()}
    found = []
    for one in module.entry.sequence:
        if one.name in sites:
            found.append(("synchronous " if sites[one.name].is_sync else "") + "start")
        elif one.opcode.endswith("-done"):
            found.append("done")
        elif _multiplies(module, one):
            found.append("matmul")
    return found


def _multiplies(module, one):
    """True for a matmul, also for one in a fusion with what it reads from."""
    inside = module.called(one) if one.opcode == "fusion" else ()
    return "matmul" in one.proto.custom_call_target or any(
        "matmul" in inner.proto.custom_call_target
        for computation in inside
        for inner in computation.instructions.values()
    )
