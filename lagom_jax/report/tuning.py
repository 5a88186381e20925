"""A tuning for a terminal: before and after, and every choice with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text

from lagom_jax.hlo.kinds import POINT_TO_POINT
from lagom_jax.plan.setting import Cap, Setting, threads_range
from lagom_jax.plan.step_parts import StepParts
from lagom_jax.report.intervals import before_and_after, gain_in_words, with_range
from lagom_jax.report.layout import WIDTH, as_text, cut, listing, table
from lagom_jax.units import (
    counted,
    in_bytes,
    in_percent,
    in_seconds,
    in_signed_seconds,
)

if TYPE_CHECKING:
    from lagom_jax.settings.tuning import GroupTuning, Tuning

DEFAULT_ROWS = 15
_EXPLAINED = 8
_PARTS: Final[Mapping[str, str]] = {
    "computation": "compute_seconds",
    "  of it contention": "contention_seconds",
    "exposed communication": "exposed_seconds",
    "communication": "communication_seconds",
}
# Columns that go where the screen is narrow, the least needed first: the reasons below
# the table say what they say.
_SPARE = ("H", "region", "NCCL's own", "sites", "computation", "communication", "ranks")


def render_tuning(
    tuning: Tuning, *, rows: int | None = DEFAULT_ROWS, width: int = WIDTH
) -> RenderableType:
    """The tuning as something rich can print.

    Args:
        tuning: What to show.
        rows: How many groups of collectives to list; None for all.
        width: Columns of the screen; on a narrow one the least needed are left out.
    """
    parts: list[RenderableType] = [_headline(tuning)]
    if len(tuning.policies) > 1:
        parts.append(_policies(tuning))
    parts.append(_groups(tuning, rows, width))
    if tuning.fixed:
        parts.append(_fixed(tuning))
    parts.append(Text(f"Can be told: {tuning.controls}", "dim"))
    parts.extend(Text(f"note: {note}", style="yellow") for note in tuning.notes)
    parts.append(Text(f"All times are predicted. Prices: {tuning.pricing}", "dim"))
    return Group(*parts)


def tuning_to_text(
    tuning: Tuning, *, rows: int | None = DEFAULT_ROWS, width: int = WIDTH
) -> str:
    """The tuning as plain text."""
    return as_text(render_tuning(tuning, rows=rows, width=width), width)


def _headline(tuning: Tuning) -> RenderableType:
    before, after = tuning.before, tuning.after
    text = Text()
    text.append(tuning.program, "bold")
    text.append(f" on {tuning.cluster} ({counted(tuning.devices, 'device')})\n")
    text.append(f"{tuning.description}\n\n" if tuning.description else "\n", "dim")
    told = [group for group in tuning.groups if group.chosen is not None]
    times = before.step_seconds, after.step_seconds, tuning.uncertainty
    if told:
        colour = "bold green" if tuning.speedup >= 1 else "bold red"
        text.append(f"  step {before_and_after(*times)}", "bold")
        text.append(f"; {gain_in_words(*times)}", colour)
    else:
        found = tuning.uncertainty
        step = with_range(found.default) if found else in_seconds(times[0])
        text.append(f"  step {step}", "bold")
        if tuning.policy == "nccl":
            text.append(": NCCL's own choices", "bold")
        else:
            text.append(": leave NCCL's own choices alone", "bold green")
    text.append(
        f"\n  no settings of these controls make this schedule shorter than "
        f"{in_seconds(tuning.floor_seconds)} "
        f"({_times(before.step_seconds, tuning.floor_seconds)})"
    )
    if tuning.share_of_bound > 0:
        text.append(f"; {in_percent(tuning.share_of_bound, 1)} of that is reached")
    text.append("\n")
    return text.append_text(parts_of_step(before, after if told else None))


def parts_of_step(before: StepParts, after: StepParts | None) -> Text:
    """Parts of a step's time, a line for each, before and after.

    Args:
        before: The step as it was.
        after: The step with new settings; None where there are none.
    """
    text = Text()
    for what, name in _PARTS.items():
        one: float = getattr(before, name)
        text.append(f"  {what:<22} {in_seconds(one):>8}")
        if after is not None:
            other: float = getattr(after, name)
            change = in_signed_seconds(other - one)
            text.append(f" → {in_seconds(other):>8}  {change:>9}")
        text.append("\n")
    return text


def _times(one: float, other: float) -> str:
    return f"{one / other:.3f}×" if other else "-"


def _policies(tuning: Tuning) -> RenderableType:
    shown = table("Policies", "policy", "step", "vs NCCL", "scored")
    shown.add_row("nccl", in_seconds(tuning.before.step_seconds), "1.000×", "")
    for result in tuning.policies:
        if result.policy != "nccl":
            shown.add_row(
                result.policy,
                in_seconds(result.step_seconds),
                f"{result.speedup_vs_nccl:.3f}×",
                str(result.evaluations),
            )
    return Group(shown, Text())


def _groups(tuning: Tuning, rows: int | None, width: int) -> RenderableType:
    if not tuning.groups:
        return Text("  nothing here can be set: no collective goes through NCCL\n")
    shown = tuning.groups if rows is None else tuning.groups[:rows]
    listed = listing(
        "Choices, those that give the most first",
        _COLUMNS,
        shown,
        spare=_SPARE,
        width=width,
    )
    left = len(tuning.groups) - len(shown)
    more = [Text(f" and {left} more: --rows all", "dim")] if left else []
    return Group(listed, *more, Text(), *_why(shown), Text())


def _why(shown: tuple[GroupTuning, ...]) -> list[Text]:
    return [
        Text.assemble(" ", (_title(group), "bold"), f": {group.why}")
        for group in shown[:_EXPLAINED]
    ]


def _title(group: GroupTuning) -> str:
    if not group.calls:
        return f"{group.name} of up to {in_bytes(group.bytes)}"
    title = f"{_what(group)} {in_bytes(group.bytes)} over {group.ranks}"
    return f"{title} ({group.sites[0]})" if len(group.sites) == 1 else title


def _what(group: GroupTuning) -> str:
    """The kind of its collectives; a cap binds several kinds and has a name."""
    return group.kind if group.calls else group.name


def ranks_in_words(kind: str, ranks: int, domains: int) -> str:
    """The size of groups, and the domains that they reach into.

    Example:
        >>> ranks_in_words("all-gather", 16, 2)
        '16 in 2'
    """
    within = kind in POINT_TO_POINT or domains == 1
    return str(ranks) if within else f"{ranks} in {domains}"


def setting_in_words(setting: Setting | Cap, *, threads: bool = False) -> str:
    """A setting as people say it.

    Args:
        setting: The setting, or a cap.
        threads: Whether to say how many threads, where they are fewer than usual.

    Example:
        >>> setting_in_words(Setting("ring", "simple", 24, 128, 2097152), threads=True)
        'ring simple 24×2M, 128 threads'
    """
    if isinstance(setting, Cap):
        return str(setting)
    words = (
        f"{setting.algorithm} {setting.protocol} {setting.channels}×"
        f"{_kib(setting.chunk_bytes)}"
    )
    _, most = threads_range(setting.algorithm, setting.protocol)
    if threads and setting.threads < most:
        words += f", {setting.threads} threads"
    return words


def _kib(nbytes: int) -> str:
    return f"{nbytes / 1024:.0f}K" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.3g}M"


def _chosen(group: GroupTuning) -> str:
    if group.chosen is None:
        return "left alone"
    return setting_in_words(group.chosen, threads=True)


def _step(group: GroupTuning) -> Text:
    colour = "green" if group.step_change < 0 else ""
    return Text(in_signed_seconds(group.step_change), colour)


def _price(group: GroupTuning) -> str:
    return "" if group.price is None else f"{group.price:.2g}"


_COLUMNS: Final[Mapping[str, Callable[[GroupTuning], str | Text]]] = {
    "collective": lambda group: cut(_what(group)),
    "bytes": lambda group: in_bytes(group.bytes),
    "ranks": lambda group: ranks_in_words(group.kind, group.ranks, group.domains),
    "sites": lambda group: str(len(group.sites)),
    "NCCL's own": lambda group: setting_in_words(group.usual),
    "chosen": _chosen,
    "communication": lambda group: in_signed_seconds(group.communication_change),
    "computation": lambda group: in_signed_seconds(group.computation_change),
    "step": _step,
    "H": _price,
    "region": lambda group: group.region,
}


def _fixed(tuning: Tuning) -> RenderableType:
    reasons: dict[str, int] = {}
    for _, why in tuning.fixed:
        reasons[why] = reasons.get(why, 0) + 1
    words = "; ".join(
        f"{counted(count, 'collective')}: {why}" for why, count in reasons.items()
    )
    return Text(f"Cannot be set: {words}\n", "dim")
