"""`lagom doctor`: whether this machine can compile for GPUs, and what is missing."""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.commands import VERBS
from lagom_jax.commands.findings import as_rows, print_findings
from lagom_jax.commands.terminal import console, import_jax, writing
from lagom_jax.compile.files import own_folder
from lagom_jax.compile.store import VARIABLE, Store
from lagom_jax.compile.toolchain import Toolchain
from lagom_jax.errors import Finding, LagomError, ToolchainError
from lagom_jax.nccl_plugin.installed import findings as tuner_findings
from lagom_jax.units import counted, in_bytes
from xla_flags import pinned_here

_TRIAL = "h100:1x2"


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "doctor",
        help=VERBS["doctor"],
        description="Looks at the installed parts of XLA's GPU compiler, at NCCL's "
        "tuner plugin and at what is set that binds it, and compiles a small program. "
        "Exits with 3 if the compiler is not as it must be.",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.add_argument(
        "--no-compile", action="store_true", help="look only, compile nothing"
    )
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    toolchain = Toolchain.probe()
    findings = list(toolchain.findings)
    findings += tuner_findings(os.environ, pinned_here())
    findings.append(_store())
    healthy = all(finding.severity != "error" for finding in findings)
    if healthy and not arguments.no_compile:
        findings.append(_trial())
        healthy = findings[-1].severity != "error"
    with writing():
        if arguments.json:
            _print_json(toolchain, findings, healthy)
        else:
            _print(findings, healthy)
    return 0 if healthy else ToolchainError.exit_code


def _store() -> Finding:
    """The store of compiled steps and orders, and its size."""
    store = Store.usual()
    if store is None:
        return Finding("ok", f"compiled steps and orders are not kept ({VARIABLE}=off)")
    try:
        kept = store.entries()
        if store.folder.exists():
            own_folder(store.folder)
    except OSError as error:
        return Finding(
            "warning",
            f"compiled steps and orders are not kept: {error}",
            f"set {VARIABLE} to a folder of your own, or to off",
        )
    size = sum(status.st_size for _, status in kept)
    steps = sum(file.suffix == ".compile" for file, _ in kept)
    return Finding(
        "ok",
        f"{counted(steps, 'compiled step')} and "
        f"{counted(len(kept) - steps, 'order')} kept in {store.folder}: "
        f"{in_bytes(size)} of at most {in_bytes(store.most_bytes)}",
    )


def _trial() -> Finding:
    """Compiles a sharded matmul and looks whether its collective is asynchronous."""
    import_jax()
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

    from lagom_jax.compile import Compiler, compile_step, lower
    from lagom_jax.hlo import read_module
    from lagom_jax.program.build import build_program

    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    cut = NamedSharding(mesh, PartitionSpec("x"))

    def step(weights: Any, x: Any) -> Any:
        # The gather of each weight can hide behind the matmul before it.
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x

    weights = [jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16, sharding=cut)] * 4
    x = jax.ShapeDtypeStruct((4096, 2048), jnp.bfloat16, sharding=cut)
    try:
        # From nothing: this is about the compiler, not about what it once made.
        with Compiler(store=False) as compiler:
            compiled = compile_step(
                lower(step, weights, x), Cluster.parse(_TRIAL), compiler=compiler
            )
        program = build_program(read_module(compiled.module_bytes))
    except LagomError as error:
        return Finding("error", f"a trial compile failed: {error}", "see above")
    found = list(program.collectives())
    asynchronous = [c.kind for c, _, synchronous in found if not synchronous]
    text = (
        f"trial compile for {_TRIAL} in {compiled.compile_seconds:.1f} s: "
        f"{counted(len(found), 'collective')}, {len(asynchronous)} asynchronous"
    )
    if asynchronous:
        return Finding("ok", text)
    return Finding(
        "error",
        text + "; XLA should have made at least one asynchronous",
        "unset XLA_FLAGS and try again; else install another version of jax",
    )


def _print(findings: list[Finding], healthy: bool) -> None:
    screen = console()
    screen.print(f"Python {platform.python_version()} on {platform.platform()}")
    print_findings(screen, findings)
    verdict = (
        "This machine can compile for GPUs." if healthy else "Not usable as it is."
    )
    screen.print(verdict, style="bold green" if healthy else "bold red")


def _print_json(toolchain: Toolchain, findings: list[Finding], healthy: bool) -> None:
    document = {
        "healthy": healthy,
        "python": platform.python_version(),
        "versions": toolchain.versions,
        "findings": as_rows(findings),
    }
    print(json.dumps(document, indent=2))
