"""Search of an XLA dump folder for the program that ran.

`--xla_dump_to` writes dozens of files a module and a module for every jitted
function: initialisers, conversions, single operations, and the training step.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from lagom_jax.errors import HloError

# module_0042.jit_step.sm_9.0_gpu_after_optimizations.txt and its .hlo.pb twin.
_FINAL = re.compile(
    r"(?P<module>.+?after_optimizations)(?P<form>\.hlo\.pb|\.txt)(\.gz)?$"
)
_BEFORE = re.compile(r"\.before_optimizations(\.hlo\.pb|\.txt)(\.gz)?$")
# A second module as large as this part of the largest leaves the choice open.
_RIVAL = 0.5
_LISTED = 8


def final_form(path: Path) -> bool:
    """True if XLA gives this file name to a module as it will run.

    Example:
        >>> final_form(Path("module_7.jit_f.sm_9.0_gpu_after_optimizations.txt"))
        True
        >>> final_form(Path("module_7.jit_f.before_optimizations.txt"))
        False
    """
    return _FINAL.match(path.name) is not None


def main_module(folder: Path) -> Path:
    """The final form of the largest module in a folder.

    The serialised twin of a text is preferred: it also says which device runs what.

    Raises:
        HloError: No module there in its final form, or two that are both large.
    """
    forms: dict[str, dict[str, Path]] = defaultdict(dict)
    for path in sorted(folder.iterdir()):
        match = _FINAL.match(path.name)
        if match and path.is_file():
            forms[match.group("module")].setdefault(match.group("form"), path)
    if not forms:
        before = [
            path
            for path in sorted(folder.iterdir())
            if _BEFORE.search(path.name) and path.is_file()
        ]
        if not before:
            raise HloError(_nothing_in(folder))
        forms = {path.name: {".txt": path} for path in before}
    best = {
        name: found.get(".hlo.pb") or found[".txt"] for name, found in forms.items()
    }
    ordered = sorted(best.values(), key=_size, reverse=True)
    # Sizes compare within one form only.
    rivals = [
        path
        for path in ordered[1:]
        if path.suffixes[-2:] == ordered[0].suffixes[-2:]
        and _size(path) > _RIVAL * _size(ordered[0])
    ]
    if rivals:
        listed = "".join(
            f"\n  {path} ({_size(path):,} bytes)" for path in ordered[:_LISTED]
        )
        more = len(ordered) - _LISTED
        raise HloError(
            f"{folder} holds {len(ordered)} compiled modules, and more than one could "
            f"be the training step; name the file:{listed}"
            + (f"\n  and {more} smaller" if more > 0 else "")
        )
    return ordered[0]


def final_form_beside(path: Path) -> Path | None:
    """The same module's final form in the same folder, if it was dumped.

    Dumps of one module begin alike: `module_0042.jit_step.`.
    """
    stem = re.match(r"(?:\d+\.)?module_\d+\.[^.]+\.", path.name)
    if stem is None or not path.parent.is_dir():
        return None
    for other in sorted(path.parent.iterdir()):
        if other.name.startswith(stem.group()) and final_form(other) and other != path:
            return other
    return None


def _size(path: Path) -> int:
    return path.stat().st_size


def _nothing_in(folder: Path) -> str:
    wanted = "*after_optimizations.txt or *after_optimizations.hlo.pb"
    if any("before_optimizations" in path.name for path in folder.iterdir()):
        return (
            f"{folder} holds programs before optimisation but no {wanted}: the "
            "compilation did not end, or --xla_dump_hlo_pass_re or "
            "--xla_dump_hlo_module_re kept the final program out. Dump again with "
            "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text'"
        )
    below = sorted(
        {str(path.parent) for path in folder.glob("*/*") if final_form(path)}
    )
    if below:
        return (
            f"{folder} holds no compiled module itself, but these do: "
            f"{', '.join(below[:_LISTED])}; name one of them"
        )
    return (
        f"{folder} holds no compiled module ({wanted}); fill it by running the "
        "training with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text'"
    )
