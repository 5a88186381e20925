"""The compiled plugin, asked as NCCL asks it."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin.build import NAME
from lagom_jax.nccl_plugin.rules import ALGORITHMS, FUNCTIONS, Answer
from lagom_jax.plan.setting import PROTOCOLS

VERSIONS: Final = (6, 5, 4, 3)
"""Of NCCL's interface that the plugin has, the newest first."""
_ENTRIES: Final = tuple((a, p) for a in ALGORITHMS for p in PROTOCOLS)
_USUAL_COST: Final = 1.0
_IMPOSSIBLE: Final = -1.0
_USUAL_CHUNK: Final = 12345
_VARIABLES: Final = ("LAGOM_TUNER_RULES", "LAGOM_TUNER_CONTROL", "LAGOM_TUNER_CHAIN")

_Init = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_Ask = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
)
_Finalize = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Chunk = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_size_t),
)


class _Tuner(ctypes.Structure):
    """Version 6 of NCCL's interface."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", _Init),
        ("get_coll_info", _Ask),
        ("finalize", _Finalize),
        ("get_chunk_size", _Chunk),
    ]


class _Domains(ctypes.Structure):
    _fields_ = [
        ("domains", ctypes.c_int),
        ("fewest_ranks", ctypes.c_int),
        ("most_ranks", ctypes.c_int),
    ]


def built() -> Path:
    """The path of the plugin.

    Raises:
        TunerError: It was not built.
    """
    path = Path(__file__).with_name(NAME)
    if not path.exists():
        raise TunerError(
            "the tuner plugin is not here: there was no C compiler when lagom_jax was "
            "installed. Install one (on Debian and Ubuntu, apt-get install gcc "
            "libc6-dev) and then lagom_jax again, with pip's --force-reinstall "
            "--no-deps --no-cache-dir"
        )
    return path


class Communicator:
    """A communicator of the plugin, for tests and explanations."""

    def __init__(
        self, tuner: Any, *, ranks: int, hosts: int, domains: int, number: int = 0
    ) -> None:
        """Starts it; the environment of this moment counts for the first one.

        Args:
            tuner: What `opened` yields.
            ranks: Its ranks.
            hosts: NCCL's nodes.
            domains: NVLink domains.
            number: NCCL's number of the communicator.
        """
        self._tuner = tuner
        self._context = ctypes.c_void_p()
        shape = _Domains(domains, 1, ranks)
        context = ctypes.byref(self._context)
        nobody = None
        tuner.init(
            context, number, ranks, hosts, nobody, ctypes.addressof(shape), nobody
        )

    def ask(
        self,
        function: str,
        nbytes: int,
        pipe_ops: int = 1,
        possible: Collection[tuple[str, str]] = _ENTRIES,
    ) -> Answer | None:
        """The plugin's answer to the next call, chunk included; None if it has none.

        Args:
            function: One of `FUNCTIONS`.
            nbytes: As NCCL adds them up.
            pipe_ops: NCCL's number of operations.
            possible: The algorithms and protocols that NCCL has for the call. Where
                there are none, it does not go on to ask for a chunk.
        """
        before = [_USUAL_COST if e in possible else _IMPOSSIBLE for e in _ENTRIES]
        costs = (ctypes.c_float * len(_ENTRIES))(*before)
        channels = ctypes.c_int(0)
        self._tuner.get_coll_info(
            self._context,
            FUNCTIONS.index(function),
            nbytes,
            pipe_ops,
            ctypes.addressof(costs),
            len(ALGORITHMS),
            len(PROTOCOLS),
            0,
            ctypes.byref(channels),
        )
        if not possible:
            return None
        changed = [i for i, cost in enumerate(costs) if cost != before[i]]
        algorithm, protocol = _ENTRIES[changed[0]] if changed else (None, None)
        # Without a choice NCCL might take any entry; the plainest stands for it.
        taken = _ENTRIES[changed[0]] if changed else ("ring", "simple")
        chunk = self._chunk(function, nbytes, *taken)
        if not changed and not channels.value and chunk == _USUAL_CHUNK:
            return None
        return Answer(
            algorithm,
            protocol,
            channels.value or None,
            None if chunk == _USUAL_CHUNK else chunk,
        )

    def close(self) -> None:
        """Ends it."""
        self._tuner.finalize(self._context)

    def _chunk(self, function: str, nbytes: int, algorithm: str, protocol: str) -> int:
        chunk = ctypes.c_size_t(_USUAL_CHUNK)
        self._tuner.get_chunk_size(
            self._context,
            FUNCTIONS.index(function),
            nbytes,
            ALGORITHMS.index(algorithm),
            PROTOCOLS.index(protocol),
            1,
            ctypes.byref(chunk),
        )
        return chunk.value


@contextmanager
def opened(plugin: Path, environment: Mapping[str, str]) -> Generator[Any]:
    """A plugin that has seen nothing yet.

    Args:
        plugin: The library.
        environment: The variables of ours that it sees; no others, and what was set
            before is set again afterwards.

    Example:
        >>> from lagom_jax.nccl_plugin.build import compile_plugin
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = compile_plugin(Path(folder) / NAME)
        ...     with opened(made, {}) as tuner:
        ...         one = Communicator(tuner, ranks=8, hosts=1, domains=1)
        ...         print(tuner.name, one.ask("all-gather", 1 << 20))
        b'lagom' None
    """
    before = {name: os.environ.pop(name, None) for name in _VARIABLES}
    os.environ.update(environment)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # A library that this process has open already would keep its rules.
            library = ctypes.CDLL(shutil.copy(plugin, folder))
            yield _Tuner.in_dll(library, "ncclTunerPlugin_v6")
    except OSError as error:
        raise TunerError(f"cannot load the plugin {plugin}: {error}") from None
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
