"""Forms of a collective and the matmul next to it: what each exposes, by the model.

    python scripts/bench_commfuse.py                     # prints the tables
    python scripts/bench_commfuse.py --case mlp --json OUT
    python scripts/bench_commfuse.py --from OUT --docs   # rewrites the page
    python scripts/bench_commfuse.py --case stack --form plain --planned

The shapes are those of the CommFuse paper (d = 4096, four ranks, forward), and a stack
of 16 layers with eight ranks, forward and backward. Each form is compiled by XLA's GPU
compiler and replayed; nothing runs on a GPU. `--planned` makes a plan for each form as
well (options, orders, settings), within the compiles that it may use.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from planned_cases import write_page

from lagom_jax.api import analyze
from lagom_jax.commands.terminal import import_jax
from lagom_jax.decompose import PLAIN, Form, rings
from lagom_jax.planner import LEVERS, Budget, Planner, Request
from lagom_jax.planner.rewrite_ways import apart, ways_of

PAGE = Path(__file__).parents[1] / "docs/reference/benchmarks/commfuse.md"
OPTIONS = {
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_collective_permute_combine_threshold_bytes": 0,
}
WINDOWED = {
    "xla_gpu_threshold_for_windowed_einsum_mib": 0,
    "xla_gpu_operand_bytes_threshold_for_windowed_einsum": 0,
    "xla_gpu_multi_streamed_windowed_einsum": True,
}
COPIED = {"xla_gpu_collective_permute_mode": "COLLECTIVES_SYMMETRIC_MEMORY"}
BY_COPY_ENGINES = ", copy engines"
IN_SLICES = ", weights in slices"
REWRITTEN = "plain, rewritten as rings"
EACH_PLACE = "plain, a form for each place by "
FORMS: dict[str, Form | None] = {
    "plain": PLAIN,
    "2 chunks": Form("chunks", slices=2),
    "4 chunks": Form("chunks", slices=4),
    "8 chunks": Form("chunks", slices=8),
    "partitioned": None,
    "XLA's own": None,
    "ring": Form("ring"),
    "ring, both ways": Form("ring", both_ways=True),
    "direct": Form("direct"),
    f"ring{BY_COPY_ENGINES}": Form("ring"),
    f"ring, sums as short{BY_COPY_ENGINES}": Form("ring", wide_sums=False),
    f"{REWRITTEN}{BY_COPY_ENGINES}": PLAIN,
    f"{EACH_PLACE}the likeliest model": PLAIN,
    f"{EACH_PLACE}all models": PLAIN,
    f"2 chunks{IN_SLICES}": Form("chunks", slices=2, whole_weights=False),
    f"4 chunks{IN_SLICES}": Form("chunks", slices=4, whole_weights=False),
    f"direct, sums as short{IN_SLICES}{BY_COPY_ENGINES}": Form(
        "direct", wide_sums=False, whole_weights=False
    ),
    f"ring, sums in matmuls{IN_SLICES}{BY_COPY_ENGINES}": Form(
        "ring", wide_sums=False, sums_in_matmul=True, whole_weights=False
    ),
}
# Rows (batch x sequence) of the paper's MLP, 4096 to 4096 to 4096.
PAPER_ROWS = {"mlp": 32 * 4096, "mlp, short": 32 * 256}
PAPER_ATTENTION = {"attention": (16, 4096), "attention, long": (4, 8192)}
STACK = (16, 4 * 4096, 4096, 14336)


@dataclasses.dataclass(frozen=True)
class Row:
    """One form of one case."""

    case: str
    form: str
    cluster: str
    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    peak_bytes: int | None
    permutes: int
    synchronous: int
    """Collectives that computation cannot hide at all."""
    versions: str
    planned_seconds: float | None = None
    """With the best plan for this form; none was made if None."""
    bound_seconds: float | None = None
    """Computation alone, or the busiest link alone, of this form."""
    planned_exposed_seconds: float | None = None
    """With that plan."""


def sharded(f: Callable[..., Any], mesh: Any, ins: Any, out: Any) -> Any:
    import jax

    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=out))


def shapes(mesh: Any, *given: tuple[tuple[int, ...], Any]) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

    return tuple(
        jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for s, spec in given
    )


def mlp(form: Form | None, rows: int) -> tuple[Any, tuple[Any, ...]]:
    """The paper's MLP with sequence parallelism over four ranks, forward."""
    import jax
    from jax.sharding import AbstractMesh
    from jax.sharding import PartitionSpec as P

    from lagom_jax.decompose.sharded_layers import feed_forward

    mesh, d = AbstractMesh((4,), ("t",)), 4096
    ins = (P("t"), P(None, "t"), P("t"))
    given = shapes(mesh, *zip(((rows, d), (d, d), (d, d)), ins, strict=True))
    if form is None:
        from jax.sharding import NamedSharding

        out = NamedSharding(mesh, P("t"))

        # The partitioner's own: nothing but shardings. Without one for what is in the
        # middle it would gather the weights, which here are smaller.
        def plain(x: Any, up: Any, down: Any) -> Any:
            wide = jax.lax.with_sharding_constraint(
                jax.nn.gelu(x @ up), NamedSharding(mesh, P(None, "t"))
            )
            return wide @ down

        return jax.jit(plain, out_shardings=out), given
    f = functools.partial(
        feed_forward, axis_name="t", activation=jax.nn.gelu, form=form
    )
    return sharded(lambda x, up, down: f(x, (up,), down), mesh, ins, P("t")), given


def attention(form: Form | None, batch: int, sequence: int) -> Any:
    """The paper's attention, 32 heads over four ranks, forward."""
    import jax.numpy as jnp
    from jax import nn
    from jax.sharding import AbstractMesh
    from jax.sharding import PartitionSpec as P

    from lagom_jax.decompose.sharded_layers import attention_output

    if form is None:
        return None
    mesh, d, width = AbstractMesh((4,), ("t",)), 4096, 128
    ins = (P(None, "t"), P(None, "t"), P("t"))
    given = shapes(
        mesh, *zip(((batch, sequence, d), (d, 3 * d), (d, d)), ins, strict=True)
    )

    def layer(x: Any, w: Any, out: Any) -> Any:
        from lagom_jax.decompose import all_gather_matmul

        q, k, v = all_gather_matmul(x, jnp.split(w, 3, 1), "t", dimension=1, form=form)
        q, k, v = (t.reshape(batch, sequence, -1, width) for t in (q, k, v))

        def attend(q: Any, k: Any, v: Any, positions: Any) -> Any:
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
            weights = nn.softmax(scores * width**-0.5)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
            return mixed.reshape(batch, q.shape[1], -1)

        return attention_output(q, k, v, out, "t", attend, form=form)

    return sharded(layer, mesh, ins, P(None, "t")), given


def stack(form: Form | None) -> Any:
    """16 feed-forward layers with eight ranks, forward and backward."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import AbstractMesh
    from jax.sharding import PartitionSpec as P

    from lagom_jax.decompose.sharded_layers import feed_forward

    if form is None:
        return None
    layers, rows, d, hidden = STACK
    mesh = AbstractMesh((8,), ("t",))
    w = (P(None, None, "t"), P(None, None, "t"), P(None, "t", None))
    given = shapes(
        mesh,
        ((rows, d), P("t")),
        ((layers, d, hidden), w[0]),
        ((layers, d, hidden), w[1]),
        ((layers, hidden, d), w[2]),
    )

    def gated(gate: Any, up: Any) -> Any:
        return jax.nn.silu(gate) * up

    def plain(x: Any, gate: Any, up: Any, down: Any) -> Any:
        """As users write it, with a line for each collective."""
        rows = lax.all_gather(x, "t", tiled=True)
        made = gated(rows @ gate, rows @ up) @ down
        return lax.psum_scatter(made, "t", tiled=True)

    @jax.checkpoint
    def layer(x: Any, weights: Any) -> Any:
        if form == PLAIN:
            return x + plain(x, *weights), None
        up, down = weights[:2], weights[2]
        return x + feed_forward(x, up, down, "t", activation=gated, form=form), None

    def loss(weights: Any, x: Any) -> Any:
        y, _ = lax.scan(layer, x, weights)
        return jnp.sum(y.astype(jnp.float32) ** 2)

    def step(x: Any, *weights: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, x)
        return lax.psum(value, "t"), gradient

    return sharded(step, mesh, (P("t"), *w), (P(), w)), given


CASES: dict[str, tuple[str, Callable[[Form | None], Any]]] = {
    **{
        name: ("h100:1x4", functools.partial(mlp, rows=rows))
        for name, rows in PAPER_ROWS.items()
    },
    **{
        name: (
            "h100:1x4",
            functools.partial(attention, batch=shape[0], sequence=shape[1]),
        )
        for name, shape in PAPER_ATTENTION.items()
    },
    "stack": ("h100:1x8", stack),
}


def rows_of(
    case: str, forms: list[str], compiles: int, levers: tuple[str, ...]
) -> Iterator[Row]:
    """A row for each form; with plans of so many compiles, 0 for none."""
    cluster, make = CASES[case]
    for name in forms:
        made = make(FORMS[name])
        if made is None:
            continue
        step, given = made
        if name.startswith((REWRITTEN, EACH_PLACE)) and case != "stack":
            # Its own rules are opaque where no gradient is taken.
            continue
        if name.startswith(REWRITTEN):
            step = rings(step)
        extra: dict[str, Any] = {}
        if name.startswith(EACH_PLACE):
            by = name.removeprefix(EACH_PLACE)
            found = each_place(step, given, cluster, by, levers)
            if found is None:
                continue
            step, extra = found
        options = OPTIONS | (WINDOWED if name == "XLA's own" else {})
        options |= extra
        options |= COPIED if name.endswith(BY_COPY_ENGINES) else {}
        report = analyze(step, *given, cluster=cluster, compiler_options=options)
        sites = report.collectives
        plan = None
        if compiles:
            planner = Planner(step, *given, cluster=cluster, compiler_options=options)
            budget = Budget(compiles=compiles)
            plan = planner.plan(Request(levers, budget=budget, progress=progress))
        yield Row(
            case,
            name,
            cluster,
            report.step_seconds,
            report.compute_seconds,
            report.communication_seconds,
            report.exposed_seconds,
            report.peak_memory_bytes,
            int(sum(s.executions for s in sites if s.kind == "collective-permute")),
            int(sum(s.executions for s in sites if s.sync)),
            ", ".join(f"{n} {v}" for n, v in sorted(report.versions.items())),
            None if plan is None else plan.evidence.tuned.step_seconds,
            None if plan is None else plan.evidence.bound_seconds,
            None if plan is None else plan.evidence.tuned.exposed_seconds,
        )


def each_place(
    step: Any,
    given: tuple[Any, ...],
    cluster: str,
    by: str,
    levers: tuple[str, ...],
) -> tuple[Any, dict[str, Any]] | None:
    """The step with the form that prices find best at each place, and its options.

    None where nothing pays, or where all models choose what the likeliest does.
    """
    planner = Planner(step, *given, cluster=cluster, compiler_options=OPTIONS)
    planner.plan(Request(levers, budget=Budget(compiles=1)))
    ways = ways_of(planner.finished)
    way = next((way for way in ways if way.title.endswith(by)), None)
    if way is None:
        return None
    for one in way.forms:
        progress(one.code)
    return way.of(step), dict(apart(way).options)


def progress(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    """A row for each form of a case."""
    lines = [
        "| case | form | step | exposed | of plain | computation | permutes | peak "
        "| planned | exposed, planned | bound |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    plain = {row.case: row for row in rows if row.form == "plain"}
    for row in rows:
        beside = plain.get(row.case)
        share = (
            "" if beside is None else f"{row.step_seconds / beside.step_seconds:.2f}"
        )
        cells = (
            row.case,
            row.form,
            f"{1e3 * row.step_seconds:.2f} ms",
            f"{1e3 * row.exposed_seconds:.2f} ms",
            share,
            f"{1e3 * row.compute_seconds:.2f} ms",
            str(row.permutes),
            "" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.2f} GB",
            milliseconds(row.planned_seconds),
            milliseconds(row.planned_exposed_seconds),
            milliseconds(row.bound_seconds),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2f} ms"


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", action="append", choices=tuple(CASES))
    parser.add_argument("--form", action="append", choices=tuple(FORMS))
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--from", dest="made", type=Path, metavar="JSON")
    parser.add_argument("--docs", action="store_true", help=f"rewrite {PAGE.name}")
    parser.add_argument("--planned", action="store_true", help="plan for each form")
    parser.add_argument("--compiles", type=int, default=Budget().compiles)
    parser.add_argument(
        "--levers",
        type=lambda text: tuple(text.split(",")),
        default=LEVERS,
        metavar="NAME,...",
        help=f"what plans may use (default: all): {', '.join(LEVERS)}",
    )
    asked = parser.parse_args()
    rows: list[Row] = []
    if asked.made:
        rows = [Row(**fields) for fields in json.loads(asked.made.read_text())]
    else:
        import_jax()
        for case in asked.case or CASES:
            compiles = asked.compiles if asked.planned else 0
            forms = asked.form or list(FORMS)
            for row in rows_of(case, forms, compiles, asked.levers):
                rows.append(row)
                print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)
                if asked.json:
                    listed = [dataclasses.asdict(one) for one in rows]
                    asked.json.write_text(json.dumps(listed, indent=1) + "\n")
    if asked.docs:
        write_page(PAGE, page(rows))
    print(table(rows))


def page(rows: list[Row]) -> str:
    versions = " and ".join(dict.fromkeys(row.versions for row in rows))
    lines = [
        "# Collectives in slices",
        "",
        f"Made by `python scripts/bench_commfuse.py --docs`: {versions}. All times are "
        "predicted, on schedules of XLA's real compiler, in its own order and with "
        "NCCL's own settings. `mlp` and `attention` are the paper's, forward "
        "over four H100s; `stack` is 16 layers, forward and backward, over eight. "
        "*Planned* is with `--planned` (some rows), *bound* that of the form, with "
        "all communication hidden.",
        "",
        table(rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
