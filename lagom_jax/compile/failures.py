"""Reasons of a failed compile, in a few lines that the user can act on."""

from __future__ import annotations

import re

from lagom_jax.compile.child import WorkerAnswer, signal_name
from lagom_jax.errors import (
    CompileError,
    CompileTimeoutError,
    LagomError,
    StepError,
    ToolchainError,
)
from xla_flags import catalogue

_LINES = 6
_LINE_LENGTH = 400

_CRASHES = {
    "SIGKILL": "something killed it, most likely for using too much memory: watch "
    "free memory, or compile fewer layers",
    "SIGFPE": "XLA divided by zero, which a target with a missing field makes it do",
    "SIGABRT": "an assertion of XLA failed",
    "SIGSEGV": "XLA crashed",
    "SIGINT": "it was interrupted",
    "SIGTERM": "it was asked to end",
}

_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): .*", re.M)
_UNKNOWN_OPTION = re.compile(r"No such compile option: '?([\w.]+)")

_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"GpuTargetConfigProto",
        "this XLA cannot read the target: one of its fields is unknown to this "
        "version.",
    ),
    (
        r"RESOURCE_EXHAUSTED.*[Ss]hared memory",
        "a kernel wants more shared memory than the target GPU has.",
    ),
    (
        r"RESOURCE_EXHAUSTED",
        "the step needs more memory than the target GPU has: shard it further, "
        "rematerialise, or take a smaller batch.",
    ),
    (
        r"No registered implementation for (?:untyped )?custom call",
        "the step calls a function that is registered in your process only: replace it "
        "for the analysis.",
    ),
    (
        r"Expected aliased input .* to have the same size",
        "what it donates is cut in another way than what it returns: give its "
        "arguments the shardings that out_shardings has.",
    ),
)

_BROKEN_TOOLCHAIN = re.compile(
    r"topology not implemented|Unknown backend|ptxas|nvlink|libdevice|"
    r"no (?:PJRT )?plugin|PjRt plugin|make_topology",
    re.IGNORECASE,
)


def lacks_tiles(answer: WorkerAnswer) -> bool:
    """True if XLA found no tiles for one of its own matmul kernels.

    Example:
        >>> refused = {"ok": False, "message": "INTERNAL: Couldn't find output tile "}
        >>> lacks_tiles(WorkerAnswer(refused, b"", 0, False, ()))
        True
    """
    header = answer.header
    return header is not None and "Couldn't find output tile" in str(
        header.get("message", "")
    )


def unknown_option(answer: WorkerAnswer) -> str | None:
    """The option that this XLA does not have; None where it is not about that.

    Example:
        >>> refused = {"ok": False, "message": "No such compile option: 'xla_gpu_x'"}
        >>> unknown_option(WorkerAnswer(refused, b"", 0, False, ()))
        'xla_gpu_x'
    """
    message = "" if answer.header is None else str(answer.header.get("message", ""))
    found = _UNKNOWN_OPTION.search(message)
    return found and found[1]


def explain(
    answer: WorkerAnswer, step: str, target: str, timeout_s: float
) -> LagomError:
    """The error to raise for an answer that holds no module.

    Args:
        answer: The child's answer, or the way in which it ended.
        step: The step's name.
        target: The target's name.
        timeout_s: The time it had.

    Returns:
        A `CompileError`, a `StepError` if what was asked for is to blame, or a
        `ToolchainError` if the installation is.

    Example:
        >>> said = "No such compile option: 'xla_gpu_autotune_leve'"
        >>> bogus = {"ok": False, "message": said}
        >>> answer = WorkerAnswer(bogus, b"", 0, False, ())
        >>> print(explain(answer, "jit_f", "h100:1x8", 9))
        XLA could not compile jit_f for h100:1x8: this XLA has no compiler option
        xla_gpu_autotune_leve; did you mean xla_gpu_autotune_level? XLA says:
          No such compile option: 'xla_gpu_autotune_leve'
    """
    if answer.timed_out:
        return CompileTimeoutError(
            f"compiling {step} for {target} took longer than {timeout_s:g} s and was "
            "stopped: allow more time, or compile fewer layers (a scan over layers "
            "compiles many times faster than a loop)."
        )
    if answer.header is None:
        return CompileError(_of_dead_process(answer, step, target))
    message = str(answer.header.get("message", "")) or str(answer.header.get("type"))
    says = "\n".join(f"  {line}" for line in reason(message))
    if _BROKEN_TOOLCHAIN.search(message):
        return ToolchainError(
            f"XLA's GPU compiler is not complete here: run `lagom doctor`. It says:\n"
            f"{says}"
        )
    if unknown := _UNKNOWN_OPTION.search(message):
        advice = catalogue.hint(unknown[1]) or ": check its spelling, or leave it out"
        advice += "" if advice.endswith("?") else "."
        return StepError(
            f"XLA could not compile {step} for {target}: this XLA has no compiler "
            f"option {unknown[1]}{advice} XLA says:\n{says}"
        )
    fitting = (hint for pattern, hint in _ADVICE if re.search(pattern, message, re.S))
    hint = next(fitting, "it refused the program.")
    return CompileError(
        f"XLA could not compile {step} for {target}: {hint} XLA says:\n{says}"
    )


def reason(message: str) -> list[str]:
    r"""The first lines of an XLA status, short enough to read.

    Example:
        >>> reason("INTERNAL: bad\n\n\tat xla/foo.cc:3\n" + "HLO dump\n" * 99)[:2]
        ['INTERNAL: bad', 'at xla/foo.cc:3']
    """
    beginning, traceback, rest = message.partition("Traceback (most recent call last)")
    if traceback:
        # Of Python's frames none is of the user's; only the exception says something.
        found = _EXCEPTION.search(rest)
        message = beginning + (found[0] if found else rest)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return [
        line if len(line) <= _LINE_LENGTH else line[:_LINE_LENGTH] + " ..."
        for line in lines[:_LINES]
    ]


def _of_dead_process(answer: WorkerAnswer, step: str, target: str) -> str:
    if answer.exit_status < 0:
        signal = signal_name(answer.exit_status)
        how = f"died of {signal}: {_CRASHES.get(signal, 'a signal ended it')}"
    else:
        how = f"ended with status {answer.exit_status} and no answer"
    printed = "\n".join(f"  {line[:_LINE_LENGTH]}" for line in _telling(answer.printed))
    says = f" Its last words:\n{printed}" if printed else ""
    return f"the process compiling {step} for {target} {how}.{says}"


def _telling(lines: tuple[str, ...]) -> tuple[str, ...]:
    """A failed check and what follows it up to the stack trace, else the last lines."""
    for index, line in enumerate(lines):
        if re.match(r"F\d{4} ", line) or "Check failed" in line:
            return tuple(
                told
                for told in lines[index : index + _LINES]
                if not told.lstrip().startswith(("@", "***", "#"))
            )
    return lines[-_LINES:]
