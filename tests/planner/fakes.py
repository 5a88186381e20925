"""A compiler that answers with modules made by hand, and a judge that remembers."""

import threading

from lagom_jax.cluster import Cluster
from lagom_jax.compile import CompiledStep, MemoryUse
from lagom_jax.hlo import read_module
from lagom_jax.hlo.text import parse_text
from lagom_jax.options import Idea
from lagom_jax.options.off_rings import SYMMETRIC
from lagom_jax.order import Ordering
from lagom_jax.plan.order import APPLIED
from lagom_jax.planner import Budget
from lagom_jax.planner.judge import Judge
from lagom_jax.planner.sweep import Sweep
from lagom_jax.scheduled import Scheduled
from lagom_jax.settings.controls import named

H100 = Cluster.parse("h100:1x8")
LIMIT = 1000
OPTIONS = {
    "a": "xla_gpu_enable_pipelined_all_gather",
    "b": "xla_gpu_enable_while_loop_double_buffering",
    "c": "xla_gpu_enable_pipelined_all_reduce",
    "w": SYMMETRIC,
}
LETTERS = {option: letter for letter, option in OPTIONS.items()}


def module_bytes(work, *, hidden):
    """An all-gather, and so many multiplications that need it or do not."""
    wide = "f32[4194304]"
    lines = [
        f"x = {wide} parameter(0)",
        f"start = ({wide}, f32[33554432]) all-gather-start(x), channel_id=1, "
        "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, "
        "use_global_device_ids=true",
    ]
    done = "done = f32[33554432] all-gather-done(start)"
    works = [
        f"work.{n + 1} = {wide} multiply({f'work.{n}' if n else 'x'}, x)"
        for n in range(work)
    ]
    lines += [*works, done] if hidden else [done, *works]
    lines.append(
        f"ROOT out = (f32[33554432], {wide}) tuple(done, "
        f"{f'work.{work}' if work else 'x'})"
    )
    text = "HloModule step, is_scheduled=true, num_partitions=8\n\nENTRY main {\n  "
    return parse_text(text + "\n  ".join(lines) + "\n}\n", isolated=False)


KINDS = {
    "usual": module_bytes(24, hidden=False),
    "fast": module_bytes(24, hidden=True),
    "faster": module_bytes(20, hidden=True),
    "busy": module_bytes(28, hidden=True),
    "slow": module_bytes(32, hidden=False),
    "huge": module_bytes(2, hidden=True),
}
"""Modules by what they are; `huge` takes more memory than there is."""
MODULES = {kind: read_module(data) for kind, data in KINDS.items()}


class Remembering(Judge):
    """Looks at each module once: what it sees does not change."""

    def __init__(self, *, orders=None, controls="tuner", **more):
        super().__init__(H100, named(controls), **more)
        self._seen = {}
        self._orders = orders

    def look(self, scheduled):
        key = id(scheduled.module), scheduled.peak_memory_bytes, self._controls
        if key not in self._seen:
            self._seen[key] = super().look(scheduled)
        return self._seen[key]

    def order(self, module, *, evaluations, **more):
        if self._orders is None:
            return super().order(module, evaluations=evaluations, **more)
        return self._orders(module, evaluations)


class Compiler:
    """Answers by the letters of the options that it is given."""

    def __init__(self, answers, usual="usual", peaks=None, in_order=None):
        """A kind of module, or an exception, by letters; `costs` and `order` too.

        In an order it may be a list: of the answers, one after the other.
        """
        self.answers, self.usual, self.in_order = answers, usual, in_order
        self.peaks = {"huge": LIMIT + 1} | (peaks or {})
        self.asked = []
        self.busy = self.busiest = 0
        self._lock = threading.Lock()

    def __call__(self, options, order, *, capture):
        letters = "".join(sorted(LETTERS.get(name, "$") for name in options))
        with self._lock:
            self.asked.append(letters + "!" * (order is not None))
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
        try:
            answer = self.answers.get(letters, self.usual)
            if order is not None:
                answer = self.in_order
                if isinstance(answer, list):
                    answer = answer.pop(0)
        finally:
            with self._lock:
                self.busy -= 1
        outcome = None if order is None else APPLIED
        if isinstance(answer, tuple):
            answer, outcome = answer
        if isinstance(answer, Exception):
            raise answer
        peak = self.peaks.get(answer, LIMIT // 2)
        scheduled = Scheduled(MODULES[answer], H100, "step", peak_memory_bytes=peak)
        return scheduled, compiled(answer, peak, capture, outcome)


def compiled(kind, peak, capture, outcome):
    return CompiledStep(
        module_bytes=KINDS[kind],
        name="step",
        target="h100:1x8",
        device_kind="",
        device_order=tuple(range(8)),
        memory=MemoryUse(0, 0, 0, 0, peak),
        start_seconds=0.0,
        compile_seconds=1.0,
        serialise_seconds=0.0,
        versions={"jaxlib": "0.10.2"},
        options={},
        scheduled_bytes=KINDS[kind] if capture else None,
        schedule_fingerprint=kind if capture else None,
        order_outcome=outcome,
    )


def an_order(module, evaluations):
    """Another order, which is not said to be any shorter."""
    length = len(module.entry.instructions)
    return Ordering(
        sequences={0: tuple(range(length))},
        on_second_stream={},
        before_seconds=1.0,
        after_seconds=1.0,
        live_bytes_change=0,
        evaluations=evaluations,
        displacements=(),
    )


JUDGE = Remembering()


def sweep(compiler, judge=JUDGE, *, orders=False, limit=LIMIT, **budget):
    budget = Budget(**{"at_once": 1, **budget})
    said = []
    made = Sweep(compiler, judge, budget, limit, orders=orders, say=said.append)
    return made, said


def idea(letter, seconds=1.0, *, first=False, **more):
    return Idea(letter, {OPTIONS[letter]: True}, "why", seconds, first=first, **more)


def searched(compiler, letters="abc", *, reserve=0, first=False, **more):
    """All that a planning does, with ideas by letters."""
    made, _ = sweep(compiler, **more)
    begun = made.first()
    ideas = [idea(letter, 3.0 - n, first=first) for n, letter in enumerate(letters)]
    best = made.improve(begun, lambda view: ideas, reserve)
    made.in_order(best)
    return made, made.decided().trial


def statuses(made):
    """What became of each, by letters."""
    found = {}
    for trial in made.trials:
        letters = "".join(
            sorted(LETTERS.get(name, "$") for name in trial.asked.options)
        )
        found.setdefault(letters + "!" * trial.ordered, trial.status)
    return found
