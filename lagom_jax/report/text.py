"""The report for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from lagom_jax.hlo.kinds import POINT_TO_POINT
from lagom_jax.markup import LONGEST_NAME, printable
from lagom_jax.plan import CollectiveCut
from lagom_jax.report.alike import short_name
from lagom_jax.report.figures import CollectiveReport, KindTotal, Report
from lagom_jax.report.grouping import grouped
from lagom_jax.report.intervals import MODELS_IN_WORDS, in_brackets
from lagom_jax.report.layout import WIDTH, as_text, cut, table
from lagom_jax.report.origin import file_and_line, has_scope, short_origin
from lagom_jax.report.program_notes import unknown_in_words
from lagom_jax.units import (
    counted,
    in_bytes,
    in_percent,
    in_seconds,
)

DEFAULT_ROWS = 15
_WIDE = 110
_EXPLAINED = 5
_WORTH_A_WORD = 0.005
_LONGEST_WORDS = 1000


def render(
    report: Report, *, rows: int | None = DEFAULT_ROWS, width: int = WIDTH
) -> RenderableType:
    """The report as something rich can print.

    Args:
        report: What to show.
        rows: How many collectives to list, the worst first; None for all.
        width: Columns of the screen; on a narrow one the least needed are left out.
    """
    parts: list[RenderableType] = [_headline(report), _kinds(report)]
    if report.collectives:
        parts.append(_collectives(report, rows, wide=width >= _WIDE))
    if report.cutting:
        parts.append(_cutting(report, rows))
    parts.append(_kernels(report))
    parts.extend(
        Text(f"note: {printable(note, _LONGEST_WORDS)}", style="yellow")
        for note in report.notes
    )
    # A replay predicts the step even where the prices of its parts were measured.
    told = "The step is" if report.measured else "All times are"
    parts.append(Text(f"{told} predicted. Prices: {report.pricing}", "dim"))
    if in_brackets(report.step_interval):
        ranges = f"In brackets what nine in ten models say; {MODELS_IN_WORDS}"
        parts.append(Text(ranges, "dim"))
    return Group(*parts)


def to_text(
    report: Report, *, rows: int | None = DEFAULT_ROWS, width: int = WIDTH
) -> str:
    """The report as plain text."""
    return as_text(render(report, rows=rows, width=width), width)


def _headline(report: Report) -> RenderableType:
    step = report.step_seconds
    text = Text()
    text.append(printable(report.program, LONGEST_NAME), "bold")
    text.append(f" on {report.cluster} ({counted(report.devices, 'device')})\n")
    text.append(f"{report.description}\n" if report.description else "", "dim")
    for caution in report.cautions:
        text.append(f"CAUTION: {caution}\n", "bold red")
    text.append("\n")
    text.append(f"  step {in_seconds(step)}", "bold")
    text.append(in_brackets(report.step_interval))
    text.append(f"  =  computation {in_seconds(report.compute_seconds)}  +  ")
    style = "bold red" if report.exposed_seconds > 0.05 * step else "bold green"
    text.append(
        f"exposed communication {in_seconds(report.exposed_seconds)} "
        f"({in_percent(report.exposed_seconds, step)})",
        style,
    )
    if report.waiting_seconds > 0.001 * step:
        text.append(f"  +  other waiting {in_seconds(report.waiting_seconds)}")
    if report.unknown_kernels:
        text.append(f"\n  {unknown_in_words(report.unknown_kernels)}", "bold red")
    if report.communication_seconds:
        hidden = report.communication_seconds - report.exposed_seconds
        text.append(
            f"\n  communication {in_seconds(report.communication_seconds)}, "
            f"{in_percent(hidden, report.communication_seconds)} of it hidden behind "
            "computation"
        )
        ends = in_brackets(report.exposed_interval)
        text.append(
            f", {in_seconds(report.exposed_seconds)}{ends} exposed" * bool(ends)
        )
    if report.contention_seconds > 0.001 * step:
        text.append(
            f"\n  contention {in_seconds(report.contention_seconds)}"
            f"{in_brackets(report.contention_interval)}: by so much communication "
            "slows the computation beside it"
        )
    text.append(*_memory(report))
    text.append("\n")
    return text


def _memory(report: Report) -> tuple[str, str]:
    """Words and style for the peak of memory."""
    if report.peak_memory_bytes is None:
        return "", ""
    of = f"{in_bytes(report.peak_memory_bytes)} of {in_bytes(report.memory_bytes)}"
    if report.peak_memory_bytes > report.memory_bytes:
        return f"\n  DOES NOT FIT: peak memory {of}", "bold red"
    return f"\n  peak memory {of}", ""


def _kinds(report: Report) -> RenderableType:
    if not report.collective_kinds:
        return Text("  no collectives: nothing is communicated\n")
    shown = table(
        "Communication by kind",
        "collective",
        "sites",
        "runs/step",
        "data/step",
        "time",
        "exposed",
        "of step",
    )
    for total in report.collective_kinds:
        shown.add_row(
            total.kind,
            str(total.count),
            f"{total.executions:g}",
            in_bytes(total.bytes),
            in_seconds(total.seconds),
            in_seconds(total.exposed_seconds),
            in_percent(total.exposed_seconds, report.step_seconds),
        )
    return Group(shown, Text())


def _cutting(report: Report, rows: int | None) -> RenderableType:
    """Gains of slices of a collective and of the matmul next to it."""
    paying = [one for one in report.cutting if one.pays]
    if not paying:
        return Text(
            f"Cutting pays at none of the {counted(len(report.cutting), 'place')} "
            "where collectives are exposed next to a matmul\n"
        )
    shown = table(
        "Collectives to cut with the matmul next to them (lagom tune --rewrite)",
        "collective",
        "matmul",
        "form",
        "saves at most",
        "memory",
        "where",
    )
    for one in paying if rows is None else paying[:rows]:
        shown.add_row(
            cut(_of_place(one)),
            cut(one.matmul),
            one.form.label,
            in_seconds(one.saved_seconds),
            in_bytes(one.memory_bytes),
            one.where,
        )
    return Group(shown, Text())


def _of_place(one: CollectiveCut) -> str:
    more = one.collectives - 1
    return f"{one.collective} and {more} more" if more else one.collective


def _kernels(report: Report) -> RenderableType:
    shown = table("Computation by kind", "kernels", "runs/step", "time", "of step")
    kinds: tuple[KindTotal, ...] = report.kernel_kinds[:6]
    for total in kinds:
        shown.add_row(
            total.kind,
            f"{total.executions:g}",
            in_seconds(total.seconds),
            in_percent(total.seconds, report.step_seconds),
        )
    return Group(shown, Text())


def _collectives(report: Report, rows: int | None, *, wide: bool) -> RenderableType:
    kinds = grouped(report.collectives)
    shown = kinds if rows is None else kinds[:rows]
    columns = ["collective", "bytes", "group", "runs", "time", "hidden", "exposed"]
    columns += ["link use", "hidden behind", "where"] if wide else ["where"]
    listed = table("Collectives, the most exposed first", *columns)
    for row in shown:
        cells: list[Text | str] = [
            cut(_name(row)),
            in_bytes(row.bytes),
            _group(row),
            f"{row.executions:g}",
            in_seconds(row.seconds),
            in_seconds(row.hidden_seconds),
            Text(in_seconds(row.exposed_seconds), _urgency(row, report)),
        ]
        if wide:
            cells += [_link_use(row), _hidden_behind(row)]
        listed.add_row(*cells, cut(_where(row)))
    left = sum(row.sites for row in kinds[len(shown) :])
    more = [Text(f" and {left} more: --rows all", "dim")] if left else []
    return Group(listed, *more, Text(), *_why(report, shown), Text())


def _why(report: Report, shown: tuple[CollectiveReport, ...]) -> list[Text]:
    """The reasons of those that are exposed, and what hides the others."""
    least = _WORTH_A_WORD * report.step_seconds
    said: list[Text] = []
    for row in shown[:_EXPLAINED]:
        words = row.why if row.exposed_seconds > least else ""
        if not words and row.hidden_seconds > least and row.hidden_by:
            words = printable(row.verdict, _LONGEST_WORDS)
        if words:
            said.append(Text.assemble(" ", (_name(row).plain, "bold"), f": {words}"))
    return said


def _name(row: CollectiveReport) -> Text:
    name = printable(short_name(row), LONGEST_NAME)
    text = Text(f"{row.sites} × {row.kind}" if row.sites > 1 else name)
    marks = ["sync"] if row.sync else []
    if row.operands > 1:
        marks.append(f"{row.operands} arrays")
    if marks:
        text.append(f" ({', '.join(marks)})", "dim")
    return text


def _link_use(row: CollectiveReport) -> str:
    """The limiting link and its use; a small message is limited by no link."""
    if row.bound == "latency":
        return "latency"
    return f"{row.bound} {in_percent(row.link_use, 1)}"


def _group(row: CollectiveReport) -> str:
    if row.kind in POINT_TO_POINT:
        return counted(row.group_size, "pair")
    return f"{row.groups}×{row.group_size}" if row.groups > 1 else str(row.group_size)


def _urgency(row: CollectiveReport, report: Report) -> str:
    return "red" if row.exposed_seconds > 0.01 * report.step_seconds else ""


def _hidden_behind(row: CollectiveReport) -> str:
    return ", ".join(
        f"{in_percent(beside.seconds, row.seconds)} {beside.what}"
        for beside in row.hidden_by[:1]
        if beside.seconds > 0.01 * row.seconds
    )


def _where(row: CollectiveReport) -> str:
    place = file_and_line(row.source)
    origin = short_origin(row.op_name)
    scoped = has_scope(row.op_name)
    if row.library and row.library == row.source and scoped:
        # A layer's name says more than a line that is not the user's.
        return printable(f"{origin} ({place})", LONGEST_NAME)
    if row.library and row.library != row.source and not scoped:
        # No name of a layer: the library's own line says more than an operation.
        origin = f"{origin} ({file_and_line(row.library)})"
    return printable("  ".join(filter(None, (place, origin))), LONGEST_NAME)
