"""A program set up for many replays under different settings.

A step is the sum of its windows (`schedule.windows`), and most windows are written many
times: thirty-two layers that were unrolled have the same few. Each different window is
replayed once for every different choice of the groups in it, and remembered.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeAlias

from lagom_jax.cost.ledger import Ledger
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Price, Prices
from lagom_jax.cost.replay import Machine
from lagom_jax.cost.sharing import SharedGpu
from lagom_jax.cost.timeline import Totals
from lagom_jax.hlo.collective import Collective
from lagom_jax.schedule.program import (
    Block,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Task,
    Wait,
)
from lagom_jax.schedule.windows import Window, windows
from lagom_jax.search.space import Group, Space

Choice: TypeAlias = tuple[int, ...]
"""For each group the position of its candidate; 0 leaves it alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """What a choice makes of a step, or of a part of it."""

    totals: Totals
    own_seconds: dict[int, float]
    """Of each group: its collectives' time, slowed as they were."""

    @property
    def step_seconds(self) -> float:
        """From the first kernel to the end of everything."""
        return self.totals.step_seconds


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A window that differs from all others, and how often it runs."""

    block: Block
    times: int
    groups: tuple[int, ...]
    """The groups with collectives in it."""

    def tasks(self) -> Iterator[tuple[Task, int, bool]]:
        """Its tasks, their executions each time, and whether compute runs them."""
        yield from Program("", self.block, 0).tasks()


class Stage:
    """A program, what can be set in it, and the model's answers.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.search.controls import named
        >>> from lagom_jax.search.space import space_of
        >>> h100, empty = Cluster.parse("h100:1x8"), Program("p", (), 8)
        >>> space = space_of(empty, h100, named("tuner"))
        >>> Stage(empty, space, CostModel.of(h100)).score(()).step_seconds
        0.0
    """

    def __init__(
        self,
        program: Program,
        space: Space,
        model: CostModel,
        correct: Callable[[Prices], Prices] = lambda prices: prices,
    ) -> None:
        """Cuts the program up.

        Args:
            program: The step.
            space: What can be set in it.
            model: Prices and contention under settings.
            correct: What the user's own measurements make of the model's prices.
        """
        self.space = space
        self._actors = _Actors(space, model, correct)
        self.scenes = self._distinct(windows(program))
        self._known: list[dict[Choice, Score]] = [{} for _ in self.scenes]
        self.replays = 0
        """Windows that were replayed."""
        self.scenes_of: list[list[int]] = [[] for _ in space.groups]
        for position, scene in enumerate(self.scenes):
            for group in scene.groups:
                self.scenes_of[group].append(position)

    @property
    def untouched(self) -> Choice:
        """The choice that leaves everything to NCCL."""
        return (0,) * len(self.space.groups)

    def score(self, choice: Choice, scenes: Sequence[int] | None = None) -> Score:
        """What a choice makes of the step, or of some of its scenes."""
        totals, own = Totals(), dict[int, float]()
        for position in range(len(self.scenes)) if scenes is None else scenes:
            scene, part = self.scenes[position], self.part(position, choice)
            totals.add(part.totals, scene.times)
            for group, seconds in part.own_seconds.items():
                own[group] = own.get(group, 0.0) + scene.times * seconds
        return Score(totals, own)

    def part(self, position: int, choice: Choice) -> Score:
        """One execution of a scene."""
        scene = self.scenes[position]
        key = tuple(choice[group] for group in scene.groups)
        known = self._known[position].get(key)
        if known is None:
            known = self._known[position][key] = self._replay(scene, choice)
        return known

    def price(self, site: Collective, candidate: int) -> Price:
        """What a collective costs alone under a candidate of its group."""
        return self._actors.price(site, candidate)

    def load(self, site: Collective, candidate: int) -> CollectiveLoad:
        """What a collective takes of the GPU under a candidate of its group."""
        return self._actors.load(site, candidate)

    def kernel(self, kernel: Kernel) -> tuple[float, KernelLoad]:
        """Seconds of a kernel alone, and what it needs of the GPU."""
        return self._actors.kernel(kernel)

    def slowdown(self, kernel: KernelLoad, site: CollectiveLoad) -> float:
        """How many times longer a kernel takes beside a collective."""
        return self._actors.sharing.slowdown(kernel, site)

    def components(self) -> list[tuple[int, ...]]:
        """Groups that meet in windows, directly or through others."""
        leader = list(range(len(self.space.groups)))

        def find(group: int) -> int:
            while leader[group] != group:
                group = leader[group]
            return group

        for scene in self.scenes:
            for group in scene.groups[1:]:
                one, other = sorted((find(scene.groups[0]), find(group)))
                leader[other] = one
        found: defaultdict[int, list[int]] = defaultdict(list)
        for group in range(len(leader)):
            found[find(group)].append(group)
        return [tuple(found[group]) for group in sorted(found)]

    def _replay(self, scene: Scene, choice: Choice) -> Score:
        self.replays += 1
        ledger = Ledger()
        machine = Machine(*self._actors.under(choice))
        for node in scene.block:
            machine.node(node, ledger)
        machine.streams.drain(ledger)
        own: dict[int, float] = {}
        for task, figures in ledger.tasks.items():
            group = self._actors.group_of(task)
            if group is not None:
                own[group] = own.get(group, 0.0) + figures.seconds
        return Score(ledger.totals, own)

    def _distinct(self, found: Sequence[Window]) -> tuple[Scene, ...]:
        blocks: dict[Hashable, Block] = {}
        times: defaultdict[Hashable, int] = defaultdict(int)
        for window in found:
            mark = self._mark(window.block, {})
            blocks.setdefault(mark, window.block)
            times[mark] += window.times
        return tuple(
            Scene(block, times[mark], self._actors.groups_in(block))
            for mark, block in blocks.items()
        )

    def _mark(self, block: Block, tokens: dict[int, int]) -> Hashable:
        """Equal for blocks that replay alike."""
        marks: list[Hashable] = []
        for node in block:
            if isinstance(node, Run):
                marks.append(self._actors.mark(node.task))
            elif isinstance(node, Launch):
                token = tokens.setdefault(node.token, len(tokens))
                marks.append((self._actors.mark(node.task), node.stream, token))
            elif isinstance(node, Wait):
                waited = (tokens.setdefault(t, len(tokens)) for t in node.tokens)
                marks.append(("wait", *waited))
            elif isinstance(node, Loop):
                marks.append(("loop", node.trips, self._mark(node.body, tokens)))
            else:
                arms = (self._mark(arm, tokens) for arm in node.arms)
                marks.append(("branch", *arms))
        return tuple(marks)


class _Actors:
    """What the tasks of a program cost and take, each asked for once."""

    def __init__(
        self, space: Space, model: CostModel, correct: Callable[[Prices], Prices]
    ) -> None:
        self._space = space
        self._model = model
        self._correct = correct
        self._prices = correct(model)
        self.sharing = model.contention()
        self._place: dict[Task, tuple[int, int]] = {
            site: (number, position)
            for number, group in enumerate(space.groups)
            for position, site in enumerate(group.sites)
        }
        self._marks: dict[Task, Hashable] = {}
        self._kernels: dict[Hashable, tuple[float, KernelLoad]] = {}
        self._sites: dict[Hashable, tuple[Price, CollectiveLoad]] = {}

    def group_of(self, task: Task) -> int | None:
        """The group of a task, if it has one."""
        place = self._place.get(task)
        return None if place is None else place[0]

    def groups_in(self, block: Block) -> tuple[int, ...]:
        """The groups with collectives in a block."""
        tasks = (task for task, _, _ in Program("", block, 0).tasks())
        groups = {self.group_of(task) for task in tasks}
        return tuple(sorted(group for group in groups if group is not None))

    def mark(self, task: Task) -> Hashable:
        """Equal for tasks that cost and take the same under any choice."""
        known = self._marks.get(task)
        if known is None:
            if isinstance(task, Kernel):
                known = (task.work, self._prices.kernel(task).seconds)
            else:
                price, load = self._prices.collective(task), self._load(task, 0)
                known = (
                    *(self.group_of(task), task.kind, task.bytes, task.operand_count),
                    *(price, load),
                )
            self._marks[task] = known
        return known

    def kernel(self, kernel: Kernel) -> tuple[float, KernelLoad]:
        mark = self.mark(kernel)
        known = self._kernels.get(mark)
        if known is None:
            seconds = self._prices.kernel(kernel).seconds
            known = self._kernels[mark] = (seconds, self._model.kernel_load(kernel))
        return known

    def price(self, site: Collective, candidate: int) -> Price:
        return self._site(site, candidate)[0]

    def load(self, site: Collective, candidate: int) -> CollectiveLoad:
        return self._site(site, candidate)[1]

    def _site(self, site: Collective, candidate: int) -> tuple[Price, CollectiveLoad]:
        key = (self.mark(site), candidate)
        known = self._sites.get(key)
        if known is None:
            price = self._correct(self._under(site, candidate)).collective(site)
            known = self._sites[key] = (price, self._load(site, candidate))
        return known

    def _load(self, site: Collective, candidate: int) -> CollectiveLoad:
        return self._under(site, candidate).collective_load(site)

    def _under(self, site: Collective, candidate: int) -> CostModel:
        if candidate == 0:
            return self._model
        number, position = self._place[site]
        group: Group = self._space.groups[number]
        setting = group.setting(position, group.candidates[candidate])
        return self._model.under({site: setting})

    def under(self, choice: Choice) -> tuple[Prices, SharedGpu]:
        """Prices and contention under a choice."""

        def candidate(site: Collective) -> int:
            place = self._place.get(site)
            return 0 if place is None else choice[place[0]]

        prices = _Chosen(
            lambda kernel: self.kernel(kernel)[0],
            lambda site: self.price(site, candidate(site)),
        )
        sharing = self.sharing.with_loads(
            lambda kernel: self.kernel(kernel)[1],
            lambda site: self.load(site, candidate(site)),
        )
        return prices, sharing


@dataclasses.dataclass(frozen=True, slots=True)
class _Chosen:
    kernel_seconds: Callable[[Kernel], float]
    site_price: Callable[[Collective], Price]

    def kernel(self, kernel: Kernel) -> Price:
        """Only the seconds matter to a replay."""
        return Price(self.kernel_seconds(kernel), "")

    def collective(self, collective: Collective) -> Price:
        """Under the choice."""
        return self.site_price(collective)
