"""Ranks never answer differently for the same call, whatever becomes of an exchange."""

import mmap
import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin.control import Control, InDoubtError, exchange
from lagom_jax.nccl_plugin.image import LARGEST, pack
from lagom_jax.nccl_plugin.library import Communicator, opened
from lagom_jax.nccl_plugin.rules import Answer, Rule, Rules, Scope

ROOT = Path(__file__).parents[2]
RANKS = 3


def channels(number):
    rule = Rule("all-gather", 1, 1 << 30, Answer(channels=number))
    return pack(Rules((Scope(8, rules=(rule,)),)))


def told(communicator):
    answer = communicator.ask("all-gather", 4096)
    return answer and answer.channels


def yes(point, said):
    return True


def test_nothing_holds_before_the_fence_and_all_after_it(plugin):
    with Control() as control, opened(plugin, control.environment()) as tuner:
        early = Communicator(tuner, ranks=8, hosts=1, domains=1)
        assert told(early) is None
        first = control.prepare(channels(3))
        assert told(early) is None
        control.activate(first)
        late = Communicator(tuner, ranks=8, hosts=1, domains=1)
        assert [told(early), told(late)] == [3, 3]
        for number in range(4, 9):
            prepared = control.prepare(channels(number))
            assert [told(early), told(late)] == [number - 1] * 2
            control.activate(prepared)
            assert [told(early), told(late)] == [number] * 2


def test_what_others_do_not_have_never_holds(plugin):
    with Control() as control, opened(plugin, control.environment()) as tuner:
        one = Communicator(tuner, ranks=8, hosts=1, domains=1)
        assert exchange(control, channels(2), yes)
        assert not exchange(control, channels(3), lambda point, said: False)
        assert told(one) == 2
        # This process cannot prepare them, and still tells the others so.
        said = []
        assert not exchange(control, b"no rules", lambda p, s: bool(said.append(s)))
        assert "none, since" in said[0]
        assert told(one) == 2


def test_doubt_is_not_hidden():
    def lost(point, said):
        raise ConnectionError("gone")

    with Control() as control:
        with pytest.raises(InDoubtError, match="start the job again"):
            exchange(control, channels(2), lost)
        assert control.active is None


def test_only_what_was_prepared_can_be_activated():
    with Control(capacity=100) as control:
        first = control.prepare(channels(1))
        control.activate(first)
        with pytest.raises(TunerError, match="was not prepared"):
            control.activate(first)
        with pytest.raises(TunerError, match="larger capacity"):
            control.prepare(bytes(1 << 20))


def test_a_page_is_no_larger_than_the_plugin_reads(plugin):
    most = (LARGEST - mmap.PAGESIZE) // 2 // mmap.PAGESIZE * mmap.PAGESIZE
    with Control(most) as control, opened(plugin, control.environment()) as tuner:
        one = Communicator(tuner, ranks=8, hosts=1, domains=1)
        assert exchange(control, channels(2), yes)
        assert told(one) == 2
    with pytest.raises(TunerError, match="reads no page"):
        Control(most + 1)


def test_the_page_of_another_process_is_ignored(plugin):
    with Control() as control:
        control.activate(control.prepare(channels(5)))
        code = (
            "import sys; from pathlib import Path\n"
            "from lagom_jax.nccl_plugin.library import Communicator, opened\n"
            "with opened(Path(sys.argv[1]), {'LAGOM_TUNER_CONTROL': sys.argv[2]}) as t:\n"
            "    print(Communicator(t, ranks=8, hosts=1, domains=1).ask('all-gather', 9))\n"
        )
        page = f"/proc/{os.getpid()}/fd/{control.environment()['LAGOM_TUNER_CONTROL'].rpartition('/')[2]}"
        words = [sys.executable, "-c", code, plugin, page]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
        assert done.stdout == "None\n", done.stderr


def test_other_rules_in_the_slot_are_ignored(plugin):
    """As if the page named a generation that was written over, or only half."""
    with Control() as control, opened(plugin, control.environment()) as tuner:
        one = Communicator(tuner, ranks=8, hosts=1, domains=1)
        first = control.prepare(channels(2))
        control.prepare(channels(3))
        control._prepared = first
        control.activate(first)
        assert told(one) is None


class Job:
    """Three ranks and their coordinator, who may lose answers or kill a rank."""

    def __init__(self, plugin, seed, kill):
        self.chance = random.Random(seed)
        self.kill = kill
        self.told = defaultdict(dict)
        self.done = {}
        self.stopped = set()
        self.points = defaultdict(dict)
        self.lock = threading.Condition()
        self.ended = set()
        words = [sys.executable, "-m", "tests.nccl_plugin.ranks", plugin]
        self.processes = [
            subprocess.Popen(
                [*words, str(rank), str(seed), "40"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for rank in range(RANKS)
        ]

    def run(self):
        threads = [threading.Thread(target=self.serve, args=(r,)) for r in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for process in self.processes:
            process.stdin.close()
            process.stdout.close()
            process.wait()
        return self

    def serve(self, rank):
        process = self.processes[rank]
        for line in process.stdout:
            # Who is killed while it speaks says half a line.
            if not line.endswith("\n"):
                break
            kind, *words = line.split()
            if kind == "told":
                self.told[int(words[0])][rank] = words[1]
                if self.kill == (rank, int(words[0])):
                    process.kill()
            elif kind == "done":
                self.done[rank] = words[0]
            elif kind == "stopped":
                self.stopped.add(rank)
            elif kind == "agree":
                answer = self.agreed(rank, *words)
                try:
                    print(answer, file=process.stdin, flush=True)
                except BrokenPipeError:
                    break
        with self.lock:
            self.ended.add(rank)
            self.lock.notify_all()

    def agreed(self, rank, point, said):
        # An earlier exchange at the same point was refused; this is the next one.
        with self.lock:
            turn = 0
            while rank in self.points[point, turn]:
                turn += 1
            here = self.points[point, turn]
            here[rank] = said
            self.lock.notify_all()
            # Who waits at another point never comes to this one.
            self.lock.wait_for(lambda: len(here) == RANKS or self.ended, timeout=20)
            if len(here) < RANKS:
                return "lost"
            # The answer is there, but does not reach this one.
            if self.kill is None and self.chance.random() < 0.01:
                return "lost"
            return "yes" if len(set(here.values())) == 1 else "no"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ranks_with_delays_kills_and_lost_answers_never_differ(plugin, seed):
    kill = (seed % RANKS, 60 + seed) if seed % 2 else None
    generations, compared = set(), 0
    # A killed rank ends the job; it is started again, and begins with nothing.
    for attempt in range(2):
        job = Job(plugin, 10 * seed + attempt, kill if attempt == 0 else None).run()
        for number, answers in job.told.items():
            assert len(set(answers.values())) == 1, (number, answers)
            generations.update(answers.values())
            compared += len(answers) == RANKS
        assert len(set(job.done.values())) <= 1
    # There were calls under several generations, by size and by place.
    assert len(generations) > 4
    assert compared > 40


def test_who_cannot_prepare_says_so_to_the_others():
    """They wait for an answer, whatever has happened here."""
    control, said = Control(), []
    control.close()
    assert not exchange(control, pack(Rules(())), lambda at, what: said.append(what))
    assert said[0].startswith("none, since")


def test_who_cannot_activate_must_stop():
    class Broken(Control):
        def activate(self, generation):
            raise OSError("the page is gone")

    with Broken() as control, pytest.raises(InDoubtError, match="the page is gone"):
        exchange(control, pack(Rules(())), lambda at, what: True)
