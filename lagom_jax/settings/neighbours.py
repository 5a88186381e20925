"""Neighbouring candidates of a group."""

from __future__ import annotations

from collections.abc import Callable

from lagom_jax.plan.setting import Cap, Setting, largest_chunk
from lagom_jax.settings.space import Group, SettingOrCap


class NearbyCandidates:
    """The candidates of a group one step away from one of them.

    A step goes to the next number of channels, threads or bytes in a chunk, or to
    another algorithm or protocol with as nearly the same numbers as there are.
    """

    def __init__(self, group: Group) -> None:
        self._candidates = group.candidates
        self._all = {c: i for i, c in enumerate(group.candidates)}
        settings = [c for c in group.candidates if isinstance(c, Setting)]
        self._spaces: dict[tuple[str, str], list[Setting]] = {}
        for setting in settings:
            space = (setting.algorithm, setting.protocol)
            self._spaces.setdefault(space, []).append(setting)

    def of(self, candidate: int, usual: Setting) -> tuple[int, ...]:
        """Candidates one step away, in a fixed order.

        Args:
            candidate: Where to stand.
            usual: What leaving the group alone amounts to.
        """
        here = self._candidates[candidate]
        if isinstance(here, Cap) or (here is None and not self._spaces):
            caps = [i for i, c in enumerate(self._candidates) if isinstance(c, Cap)]
            if here is None:
                return tuple(caps[-1:])
            return tuple(i for i in (candidate - 1, candidate + 1) if i in caps)
        return self._near(usual if here is None else here, candidate)

    def _near(self, here: Setting, candidate: int) -> tuple[int, ...]:
        found: dict[SettingOrCap, None] = {}
        own = self._spaces.get((here.algorithm, here.protocol), [])
        for axis in (_channels, _threads, _chunk):
            ahead = [s for s in own if axis(s) > axis(here)]
            behind = [s for s in own if axis(s) < axis(here)]
            for side in (ahead, behind):
                if side:
                    found[min(side, key=lambda s: _distance(s, here, axis))] = None
        for space, settings in self._spaces.items():
            if space != (here.algorithm, here.protocol):
                found[min(settings, key=lambda s: _distance(s, here))] = None
        return tuple(i for s in found if (i := self._all[s]) != candidate)


def _channels(setting: Setting) -> float:
    return setting.channels


def _threads(setting: Setting) -> float:
    return setting.threads


def _chunk(setting: Setting) -> float:
    limit = largest_chunk(setting.algorithm, setting.protocol)
    return setting.chunk_bytes / limit


def _distance(
    one: Setting, other: Setting, along: Callable[[Setting], float] | None = None
) -> tuple[float, ...]:
    """The distance of two settings; along one axis, other differences count first."""
    axes = (_channels, _threads, _chunk)
    across = sum(
        abs(axis(one) - axis(other)) / max(axis(one), axis(other))
        for axis in axes
        if axis is not along
    )
    return (across, abs(along(one) - along(other))) if along else (across,)
