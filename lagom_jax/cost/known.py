"""Results that a cost model has worked out, shared by its variants.

A search asks the same few things again and again: layers repeat, so many tasks are
alike, and a setting changes nothing about kernels. What depends on a task alone is
found by the task, and behind that by its figures.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeAlias, TypeVar

from lagom_jax.plan.setting import Setting

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_BySetting: TypeAlias = dict[Setting | None, _Result]


class Known(Generic[_Task, _Result]):
    """Results for tasks; tasks with equal figures under equal settings share one.

    Example:
        >>> lengths = Known(str.lower, lambda word, setting: [len(word), setting])
        >>> lengths.of("Ring", 8)
        [4, 8]
        >>> lengths.of("ring", 8) is lengths.of("Ring", 8)
        True
    """

    def __init__(
        self,
        figures: Callable[[_Task], Hashable],
        work_out: Callable[[_Task, Setting | None], _Result],
    ) -> None:
        """A memory that is empty.

        Args:
            figures: All that a result depends on, of a task.
            work_out: The result for a task under a setting.
        """
        self._figures = figures
        self._work_out = work_out
        self._by_task: dict[_Task, _BySetting[_Result]] = {}
        self._by_figures: dict[Hashable, _BySetting[_Result]] = {}

    def of(self, task: _Task, setting: Setting | None = None) -> _Result:
        """The result for a task under a setting, worked out if it is new."""
        known = self._by_task.get(task)
        if known is None:
            known = self._by_figures.setdefault(self._figures(task), {})
            self._by_task[task] = known
        result = known.get(setting)
        if result is None:
            result = known[setting] = self._work_out(task, setting)
        return result
