"""Python programs as processes of their own, forked where jax is imported already.

Importing it takes longer than most of what the programs of tests do. One process imports
what they share, starts nothing of it, and waits; each program is a fork of it that gets
its own words, environment, folder and files. What only a cold start can show is for
tests that start Python itself: the command line, the pages, the compiler's workers.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import types
import warnings
from pathlib import Path

TUNING = ("jax", "lagom_jax.runtime.tune")
TRAINING = (*TUNING, "lagom_models", "orbax.checkpoint")
# Of a message: an environment, and what a test tells a program.
LONGEST = 1 << 17
# Python looks for garbage after 700 new objects; most of a test's are let go at once.
COLLECTED = (50_000, 20, 20)


class QuickStarts:
    """`subprocess` for a module that starts one script again and again, as forks.

    Args:
        command: The beginning of the command line that starts the script.
        script: The script.
        modules: What it imports.
    """

    def __init__(self, command: list[str], script: Path, *modules: str) -> None:
        self._command, self._script, self._modules = command, script, modules

    def __getattr__(self, name: str) -> object:
        return getattr(subprocess, name)

    def Popen(self, words, **options):
        """The process, forked if it is of the script."""
        length = len(self._command)
        if list(words[:length]) != self._command:
            return subprocess.Popen(words, **options)
        return Forked([self._script], modules=self._modules, **options)

    def run(self, words, *, input, timeout, check, **options):
        """`subprocess.run`, as far as it is used so."""
        with self.Popen(words, stdin=subprocess.PIPE, **options) as process:
            try:
                printed, complaint = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(
            words, process.returncode, printed, complaint
        )


@functools.cache
def _parent() -> socket.socket:
    """The way to the process that is forked; it ends with this one."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    neutral = ("JAX_", "XLA_", "LAGOM_", "TF_")
    with there:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={n: v for n, v in os.environ.items() if not n.startswith(neutral)}
            # Threads cannot be forked.
            | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
        )

    def end():
        here.close()
        process.wait()

    atexit.register(end)
    return here


class Forked(subprocess.Popen):
    """`subprocess.Popen` of a script and its words; `modules` are imported before."""

    def __init__(self, words, *, modules=TUNING, **options):
        self._modules, self._ending = modules, None
        super().__init__([str(word) for word in words], **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, *more):
        cwd, env, _, _, _, *pipes = more
        pipes = pipes[:6]
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        message = json.dumps(
            {
                "modules": self._modules,
                "words": args,
                "folder": str(cwd or Path.cwd()),
                "environment": dict(os.environ if env is None else env),
            }
        ).encode()
        assert len(message) < LONGEST
        self._ending, writes = os.pipe()
        given = (p2cread, 0), (c2pwrite, 1), (errwrite, 2)
        files = [usual if one == -1 else one for one, usual in given]
        try:
            socket.send_fds(_parent(), [message], [*files, writes])
        finally:
            os.close(writes)
            # Of a file that was opened by others, they dispose.
            self._close_pipe_fds(*pipes)
        self.pid = int(self._line())
        self._child_created = True

    def _line(self):
        """What is said of the process: its number, and later how it ended."""
        found = b""
        while not found.endswith(b"\n"):
            part = os.read(self._ending, 1)
            assert part, "the process that is forked has ended"
            found += part
        return found

    def _said(self, seconds):
        with selectors.DefaultSelector() as selector:
            selector.register(self._ending, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def _internal_poll(self, _deadstate=None):
        if self.returncode is None and self._ending and self._said(0):
            self.returncode = int(self._line())
            os.close(self._ending)
            self._ending = None
        return self.returncode

    def _wait(self, timeout):
        if self.returncode is None:
            if not self._said(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._internal_poll()
        return self.returncode


def _serve(asked: socket.socket) -> None:
    """Forks for whoever asks; returns in the forks alone."""
    while True:
        message, files, _, _ = socket.recv_fds(asked, LONGEST, 4)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            os._exit(0)
        told = json.loads(message)
        for name in told["modules"]:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECTED)
        # A fork has no threads but the one that forks.
        assert len(os.listdir("/proc/self/task")) == 1
        if os.fork() == 0:
            asked.close()
            _watch(files)
            _become(told, files)
            return
        for one in files:
            os.close(one)


def _watch(files: list[int]) -> None:
    """Waits for a fork of its own and says how it ended; returns in the fork alone."""
    child = os.fork()
    if child == 0:
        return
    *others, writes = files
    for one in others:
        os.close(one)
    os.write(writes, b"%d\n" % child)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(writes, b"%d\n" % ended)
    os._exit(0)


def _become(told: dict, files: list[int]) -> None:
    """Takes over all that a process is given as it starts."""
    *streams, writes = files
    os.close(writes)
    for number, one in enumerate(streams):
        os.dup2(one, number)
        os.close(one)
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["folder"])
    sys.argv = told["words"]
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = list(dict.fromkeys([str(Path(sys.argv[0]).parent), *own, *sys.path]))
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    if "jax" in sys.modules:
        _configure(sys.modules["jax"])


def _configure(jax: types.ModuleType) -> None:
    """Sets what jax takes from the environment as it is imported."""
    for name, value in os.environ.items():
        usual = jax.config.values.get(name.lower(), jax)
        if usual is jax:
            continue
        plain = usual is None or isinstance(usual, str)
        read = value if plain else json.loads(value.lower())
        jax.config.update(name.lower(), bool(read) if usual in (True, False) else read)


def _main() -> None:
    # Python's own, and not what a test's process has been told.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _serve(socket.socket(fileno=int(sys.argv[1])))
    own = sys.modules["__main__"] = types.ModuleType("__main__")
    own.__file__ = sys.argv[0]
    own.__builtins__ = __builtins__
    exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), own.__dict__)


if __name__ == "__main__":
    _main()
