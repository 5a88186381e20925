"""Processes that are kept from one compile to the next."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import pytest

from lagom_jax.compile import Compiler, child, compile_step, lower
from lagom_jax.errors import CompileError
from tests.compile.conftest import comparable, hlo_text


@pytest.fixture
def compiler():
    with Compiler(store=False) as made:
        yield made


@pytest.fixture
def started(monkeypatch):
    """The ids of processes that were started to compile."""
    ids = []
    begin = child.Child.__init__

    def counted(self, environment):
        begin(self, environment)
        ids.append(self._process.pid)

    monkeypatch.setattr(child.Child, "__init__", counted)
    return ids


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def plus(number):
    return lower(lambda x: x + number, jnp.ones(3))


def test_a_process_compiles_what_comes_next(h100, compiler, started):
    one = compile_step(plus(1), h100, compiler=compiler)
    other = compile_step(plus(2), h100, compiler=compiler)
    again = compile_step(plus(1), h100, compiler=compiler)
    assert len(started) == 1
    texts = [comparable(hlo_text(step.module_bytes)) for step in (one, other, again)]
    assert texts[0] == texts[2] != texts[1]


def test_several_threads_have_processes_of_their_own(h100, compiler, started):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda n: compile_step(plus(n), h100, compiler=compiler), [1, 2]))
    # The threads have ended; their processes have not.
    assert all(map(alive, started))
    compile_step(plus(3), h100, compiler=compiler)
    assert len(started) == 2


def test_processes_end_with_the_block(h100, started):
    with Compiler(store=False) as compiler:
        compile_step(plus(1), h100, compiler=compiler)
    assert not alive(started[0])


def test_a_process_that_died_is_replaced(h100, compiler, started):
    compile_step(plus(1), h100, compiler=compiler)
    os.kill(started[0], signal.SIGKILL)
    while child_status(started[0]) not in ("Z", None):
        time.sleep(0.01)
    with pytest.raises(CompileError, match="SIGKILL"):
        compile_step(plus(2), h100, compiler=compiler)
    compile_step(plus(2), h100, compiler=compiler)
    assert len(started) == 2


def child_status(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


def test_a_refusal_costs_no_process(h100, compiler, started):
    with pytest.raises(Exception, match="xla_gpu_bogus"):
        compile_step(plus(1), h100, {"xla_gpu_bogus": 1}, compiler=compiler)
    compile_step(plus(1), h100, compiler=compiler)
    assert len(started) == 1


def test_the_end_does_not_wait_for_a_compile(h100, started, monkeypatch):
    monkeypatch.setattr(
        child, "command", lambda: ["/bin/sh", "-c", "cat > /dev/null; sleep 600"]
    )
    compiler = Compiler(store=False)
    errors = []

    def ask():
        try:
            compile_step(plus(1), h100, compiler=compiler)
        except CompileError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not started:
        time.sleep(0.01)
    compiler.__exit__(None, None, None)
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert not alive(started[0])


def test_messages_of_one_compile_are_not_those_of_the_next(h100, compiler, monkeypatch):
    heard = []
    ask = child.Child.ask

    def listened(self, *arguments, **named):
        answer = ask(self, *arguments, **named)
        heard.append(answer.printed)
        return answer

    monkeypatch.setattr(child.Child, "ask", listened)
    with pytest.raises(Exception, match="xla_gpu_bogus"):
        compile_step(plus(1), h100, {"xla_gpu_bogus": 1}, compiler=compiler)
    compile_step(plus(1), h100, compiler=compiler)
    assert heard[-1] == ()
