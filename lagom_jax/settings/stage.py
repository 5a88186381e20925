"""A program set up for many replays under different settings.

A step is the sum of its windows (`schedule.windows`), and most windows are written many
times: thirty-two layers that were unrolled have the same few. Each different window is
replayed once for every different choice of the groups in it, and remembered. Which arm
of a branch is taken does not depend on settings (`search.arms`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

from lagom_jax.cost.contention import Rates
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.numbered_block import NumberedBlock
from lagom_jax.cost.numbered_replay import NumberedReplay, SpeedsByLoads, TaskTerms
from lagom_jax.cost.prices import Price, Prices
from lagom_jax.cost.rates_of_loads import KernelMix
from lagom_jax.cost.timeline import Totals
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.work import Work
from lagom_jax.program.program import (
    Block,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Task,
    Wait,
    tasks_in,
)
from lagom_jax.program.windows import Window, windows
from lagom_jax.settings.arms import decided
from lagom_jax.settings.space import Choice, Space

_Site: TypeAlias = tuple[int, Collective, int | None]
"""A collective's number in its scene, and its group."""


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """Predicted times of a step under a choice, or of a part of it."""

    totals: Totals
    own_seconds: dict[int, float]
    """Of each group: its collectives' time, slowed as they were."""

    @property
    def step_seconds(self) -> float:
        """From the first kernel to the end of everything."""
        return self.totals.step_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class _Split:
    """Tasks of a scene by what decides about them, whatever the model."""

    kernels: list[tuple[int, Kernel, Kernel]]
    """Each with its number, and the first kernel of the step with the same work."""
    sites: list[_Site]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A window that differs from all others, and how often it runs."""

    program: Program
    """The window as a step of its own."""
    times: int
    groups: tuple[int, ...]
    """The groups with collectives in it."""
    numbered: NumberedBlock
    """The same with numbers, to be replayed."""


class Stage:
    """A program, what can be set in it, and the model's answers.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.settings.controls import named
        >>> from lagom_jax.settings.space import space_of
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
        self._model, self._correct = model, correct
        self._untouched = correct(model)
        self._loads = model.contention().of_loads
        self._speeds = SpeedsByLoads(self._loads.beside)
        self._place: dict[Task, tuple[int, int]] = {
            site: (number, position)
            for number, group in enumerate(space.groups)
            for position, site in enumerate(group.sites)
        }
        self._sites: dict[
            tuple[Collective, int], tuple[Price, CollectiveLoad, int]
        ] = {}
        self._kernels: dict[Kernel, tuple[Price, int]] = {}
        self._marks: dict[Task, Hashable] = {}
        self._by_mark: dict[Hashable, dict[Choice, Score]] = {}
        self.replays = 0
        """Windows that were replayed."""
        self._cut(program)

    def _cut(self, program: Program) -> None:
        self.program = program
        found = self._distinct(windows(decided(program, self._untouched)))
        self.scenes = tuple(found.values())
        self._known = [self._by_mark.setdefault(mark, {}) for mark in found]
        self._terms = self._no_terms()
        # Shared by all models.
        self._splits: list[_Split | None] = [None] * len(self.scenes)
        self._first_with: dict[Work, Kernel] = {}
        self.scenes_of: list[list[int]] = [[] for _ in self.space.groups]
        for position, scene in enumerate(self.scenes):
            for group in scene.groups:
                self.scenes_of[group].append(position)

    def in_order(self, program: Program) -> Stage:
        """The same step in another order; what either works out, the other knows.

        Args:
            program: The same tasks.
        """
        other = copy.copy(self)
        other.replays = 0
        other._cut(program)
        return other

    def with_space(self, space: Space) -> Stage:
        """The same step, of which something else can be set."""
        return Stage(self.program, space, self._model, self._correct)

    def under(
        self,
        model: CostModel,
        correct: Callable[[Prices], Prices] = lambda prices: prices,
    ) -> Stage:
        """The same windows under another model of the same cluster.

        Args:
            model: Its prices and contention.
            correct: What the user's own measurements make of its prices.
        """
        other = copy.copy(self)
        other._model, other._correct = model, correct
        other._untouched = correct(model)
        other._loads = model.contention().of_loads
        other._sites, other._kernels = {}, {}
        other._marks, other._by_mark = {}, {}
        other._known = [{} for _ in self.scenes]
        other._speeds = SpeedsByLoads(other._loads.beside)
        other._terms = self._no_terms()
        other.replays = 0
        return other

    @property
    def untouched(self) -> Choice:
        """The choice that leaves everything to NCCL."""
        return (0,) * len(self.space.groups)

    def score(self, choice: Choice, scenes: Sequence[int] | None = None) -> Score:
        """Replays the step, or some of its scenes, under a choice."""
        totals, own = Totals(), dict[int, float]()
        for position in range(len(self.scenes)) if scenes is None else scenes:
            scene, part = self.scenes[position], self.part(position, choice)
            totals.add(part.totals, scene.times)
            for group, seconds in part.own_seconds.items():
                own[group] = own.get(group, 0.0) + scene.times * seconds
        return Score(totals, own)

    def step_seconds(
        self, choice: Choice, scenes: Sequence[int] | None = None
    ) -> float:
        """Seconds of the step, as `score` has them beside the rest."""
        computed = exposed = waited = 0.0
        for position in range(len(self.scenes)) if scenes is None else scenes:
            times, part = self.scenes[position].times, self.part(position, choice)
            computed += part.totals.compute_seconds * times
            exposed += part.totals.exposed_seconds * times
            waited += part.totals.waiting_seconds * times
        return computed + exposed + waited

    def part(self, position: int, choice: Choice) -> Score:
        """One execution of a scene."""
        scene = self.scenes[position]
        key = tuple([choice[group] for group in scene.groups])
        known = self._known[position].get(key)
        if known is None:
            known = self._known[position][key] = self._replay(position, choice)
        return known

    def candidates_of(self, site: Collective) -> int:
        """The number of candidates of a collective's group; 1 where it has no group."""
        place = self._place.get(site)
        return 1 if place is None else len(self.space.groups[place[0]].candidates)

    def price(self, site: Collective, candidate: int) -> Price:
        """The price of a collective alone under a candidate of its group."""
        return self._alone(site, candidate)[0]

    def load(self, site: Collective, candidate: int) -> CollectiveLoad:
        """The load of a collective on the GPU under a candidate of its group."""
        return self._alone(site, candidate)[1]

    @property
    def pricings(self) -> int:
        """Settings of collectives that were priced alone.

        A machine without a model would have to measure as many.
        """
        return len(self._sites)

    def sms_of(self, choice: Choice) -> Callable[[Collective], int]:
        """The SMs that each collective holds, as NCCL runs it by itself or as chosen.

        The more of both: nobody knows whether NCCL will do as it is told.
        """

        def held(site: Collective) -> int:
            usual = self.load(site, 0).channels
            if site not in self._place:
                return usual
            return max(usual, self.load(site, choice[self._place[site][0]]).channels)

        return held

    def kernel(self, kernel: Kernel) -> tuple[float, KernelLoad]:
        """Seconds of a kernel alone, and what it needs of the GPU."""
        seconds = self._untouched.kernel(kernel).seconds
        return seconds, self._model.kernel_load(kernel)

    def slowdown(self, kernel: KernelLoad, site: CollectiveLoad) -> float:
        """The factor by which a kernel takes longer while a collective runs."""
        return self._loads.slowdown(kernel, site)

    def mix(self, kernels: Mapping[KernelLoad, float]) -> KernelMix:
        """Kernels that collectives run beside.

        Args:
            kernels: Their seconds, by what they need of the GPU.
        """
        return self._loads.mix(kernels)

    def between(self, running: int, flying: tuple[int, ...]) -> Rates:
        """The speeds of tasks by the numbers of what they take of the GPU."""
        return self._loads.beside(flying)(running)

    def kernel_terms(self, kernel: Kernel) -> tuple[Price, int]:
        """The price of a kernel alone, and the number of its load."""
        known = self._kernels.get(kernel)
        if known is None:
            load = self._loads.number(self._model.kernel_load(kernel))
            known = self._kernels[kernel] = self._untouched.kernel(kernel), load
        return known

    def collective_terms(self, site: Collective, candidate: int) -> tuple[Price, int]:
        """The same of a collective under a candidate of its group."""
        price, _, number = self._alone(site, candidate)
        return price, number

    def _alone(
        self, site: Collective, candidate: int
    ) -> tuple[Price, CollectiveLoad, int]:
        known = self._sites.get((site, candidate))
        if known is None:
            model = self._model
            if candidate:
                number, position = self._place[site]
                group = self.space.groups[number]
                setting = group.setting(position, group.candidates[candidate])
                price, load = model.under_setting(site, setting)
                if self._untouched is not model:
                    price = self._correct(model.under({site: setting})).collective(site)
            else:
                price = self._untouched.collective(site)
                load = model.collective_load(site)
            known = price, load, self._loads.number(load)
            self._sites[site, candidate] = known
        return known

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

    def _replay(self, position: int, choice: Choice) -> Score:
        self.replays += 1
        numbered = self.scenes[position].numbered
        kernels, sites = self._terms_in(position), self._split(position).sites
        seconds, loads = kernels.seconds.copy(), kernels.loads.copy()
        for number, site, group in sites:
            candidate = 0 if group is None else choice[group]
            price, loads[number] = self.collective_terms(site, candidate)
            seconds[number] = price.seconds
        terms = TaskTerms(seconds, kernels.own_loads, loads)
        books = NumberedReplay(numbered, terms, self._speeds).books()
        own: dict[int, float] = {}
        for number, _, group in sites:
            if group is not None:
                own[group] = own.get(group, 0.0) + books.seconds[number]
        return Score(books.totals, own)

    def _no_terms(self) -> list[TaskTerms | None]:
        return [None] * len(self.scenes)

    def _terms_in(self, position: int) -> TaskTerms:
        """Terms of a scene's kernels; those of its collectives are still to come."""
        known = self._terms[position]
        if known is None:
            # What a user has measured is known by a kernel's name.
            by_work = self._untouched is self._model
            terms = TaskTerms.of_nothing(len(self.scenes[position].numbered.tasks))
            for number, kernel, first in self._split(position).kernels:
                asked = first if by_work else kernel
                price, terms.own_loads[number] = self.kernel_terms(asked)
                terms.seconds[number] = price.seconds
            known = self._terms[position] = terms
        return known

    def _split(self, position: int) -> _Split:
        known = self._splits[position]
        if known is None:
            known = self._splits[position] = _Split([], [])
            for number, task in enumerate(self.scenes[position].numbered.tasks):
                if isinstance(task, Kernel):
                    first = self._first_with.setdefault(task.work, task)
                    known.kernels.append((number, task, first))
                else:
                    place = self._place.get(task)
                    group = None if place is None else place[0]
                    known.sites.append((number, task, group))
        return known

    def _distinct(self, found: Sequence[Window]) -> dict[Hashable, Scene]:
        """The windows that differ, by what is equal for those that replay alike."""
        blocks: dict[Hashable, Block] = {}
        times: defaultdict[Hashable, int] = defaultdict(int)
        for window in found:
            mark = self._mark(window.block, {})
            blocks.setdefault(mark, window.block)
            times[mark] += window.times
        return {
            mark: Scene(
                dataclasses.replace(self.program, body=block),
                times[mark],
                self._groups_in(block),
                NumberedBlock(block),
            )
            for mark, block in blocks.items()
        }

    def _mark(self, block: Block, tokens: dict[int, int]) -> Hashable:
        """Equal for blocks that replay alike."""
        marks: list[Hashable] = []
        for node in block:
            if isinstance(node, Run):
                marks.append(self._task_mark(node.task))
            elif isinstance(node, Launch):
                token = tokens.setdefault(node.token, len(tokens))
                marks.append((self._task_mark(node.task), node.stream, token))
            elif isinstance(node, Wait):
                waited = (tokens.setdefault(t, len(tokens)) for t in node.tokens)
                marks.append(("wait", *waited))
            else:
                assert isinstance(node, Loop), "branches have been decided"
                marks.append(("loop", node.trips, self._mark(node.body, tokens)))
        return tuple(marks)

    def _task_mark(self, task: Task) -> Hashable:
        """Equal for tasks that cost and take the same under any choice."""
        known = self._marks.get(task)
        if known is None:
            if isinstance(task, Kernel):
                known = (task.work, self._untouched.kernel(task).seconds)
            else:
                group = self._place[task][0] if task in self._place else None
                known = (
                    *(group, task.kind, task.bytes, task.operand_count),
                    task.communicator,
                    *(self.price(task, 0), self.load(task, 0)),
                )
            self._marks[task] = known
        return known

    def _groups_in(self, block: Block) -> tuple[int, ...]:
        """The groups with collectives in a block."""
        tasks = (task for task, _, _ in tasks_in(block))
        return tuple(sorted({self._place[t][0] for t in tasks if t in self._place}))
