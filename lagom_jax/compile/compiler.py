"""Processes that compile, and what they keep for each other and for the next time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from lagom_jax.compile import assembler, failures, kernels, store
from lagom_jax.compile.child import NO_RULES, Child, WorkerAnswer, environment
from lagom_jax.compile.kernels import KernelCache
from lagom_jax.compile.partitioning import PartitioningRule
from lagom_jax.compile.store import Store
from lagom_jax.compile.toolchain import Toolchain
from lagom_jax.errors import CompileError, ToolchainError
from lagom_jax.files import digest_of_code

LOG = logging.getLogger("lagom_jax")


# A plan looks for orders of the best of what it has compiled lately.
_SCHEDULES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class KeptSchedule:
    """A module as XLA's scheduler left it, and what was said of its compile."""

    header: dict[str, Any]
    module: bytes = dataclasses.field(repr=False)

    @classmethod
    def of(cls, header: dict[str, Any], payload: bytes) -> KeptSchedule | None:
        """The schedule in an answer of `worker`, if it has one.

        Args:
            header: The answer.
            payload: The modules that came with it.
        """
        size = header.get("scheduled_size", 0)
        return cls(header, payload[len(payload) - size :]) if size else None


class Compiler:
    """XLA's GPU compiler, with processes that are kept from one compile to the next.

    Several threads may use one at the same time. It ends with its `with` block, and so
    do its processes; where a single step is compiled none has to be made.

    Example:
        >>> with Compiler(store=False) as compiler:
        ...     compiler.store is None
        True
    """

    def __init__(self, *, store: bool | str | Path = True) -> None:
        """Sets it up; nothing is started before it is used.

        Args:
            store: Where compiled steps are kept: the folder, True for the usual one
                (see `Store.usual`), False for none.
        """
        if isinstance(store, bool):
            self.store = Store.usual() if store else None
        else:
            self.store = Store(Path(store).expanduser())
        self.toolchain = Toolchain.probe()
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._kernels: dict[str, KernelCache] = {}
        self._lacking: set[str] = set()
        self._schedules: dict[str, KeptSchedule] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._stack = contextlib.ExitStack()
        self._stand_in: list[Path | None] = []
        # A process is ended by the system with the thread that started it.
        self._starter: concurrent.futures.ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        """The compiler itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends its processes, also those that are compiling."""
        self.close()

    def close(self) -> None:
        """Ends its processes, also those that are compiling, and starts no more."""
        with self._lock:
            self._closed = True
            idle, busy, self._idle, self._busy = self._idle, self._busy, [], set()
            starter, self._starter = self._starter, None
        for child in idle:
            child.close()
        for child in busy:
            # Whoever asks it puts it away.
            child.kill()
        if starter is not None:
            starter.shutdown()
        self._stand_in.clear()
        self._stack.close()

    def ask(
        self,
        request: dict[str, Any],
        module: bytes,
        *,
        timeout_s: float,
        rules: Mapping[str, PartitioningRule] = NO_RULES,
    ) -> WorkerAnswer:
        """Has one of the processes compile.

        Args:
            request: What `worker` takes.
            module: The program.
            timeout_s: When to give up.
            rules: The rules by which its calls are partitioned.

        Returns:
            What the process answered, or how it ended.
        """
        with self._cached_kernels(request) as options:
            while True:
                with self._child() as child:
                    asked = {**request, "options": {**request["options"], **options}}
                    answer = child.ask(asked, module, timeout_s=timeout_s, rules=rules)
                lacking = failures.unknown_option(answer)
                if lacking not in options:
                    return answer
                # Options come and go with versions of XLA; these only save time.
                del options[lacking]
                self._lacking.add(lacking)

    def key(self, request: Mapping[str, Any], program: str) -> str | None:
        """The key of a compile in the store; None where it is not kept.

        Args:
            request: What `worker` takes.
            program: A digest of the program.
        """
        return None if self.store is None else self._key(request, program)

    def schedule_of(
        self, request: Mapping[str, Any], program: str
    ) -> KeptSchedule | None:
        """The schedule of the same compile without an order, if it was kept.

        Args:
            request: What `worker` takes.
            program: A digest of the program.
        """
        asked = {**request, "order": None, "capture": True}
        key = self._key(asked, program)
        if key is None:
            return None
        with self._lock:
            kept = self._schedules.get(key)
        if kept is None and self.store is not None:
            found = self.store.find(key)
            kept = None if found is None else KeptSchedule.of(*found)
        return kept

    def remember(
        self,
        request: Mapping[str, Any],
        program: str,
        header: dict[str, Any],
        payload: bytes,
    ) -> None:
        """Keeps what the scheduler left, for orders that are asked for soon.

        Args:
            request: What `worker` took.
            program: A digest of the program.
            header: Its answer.
            payload: The modules that came with it.
        """
        key = self._key(request, program)
        kept = KeptSchedule.of(header, payload)
        if key is None or kept is None:
            return
        with self._lock:
            self._schedules[key] = kept
            while len(self._schedules) > _SCHEDULES:
                del self._schedules[next(iter(self._schedules))]

    def _key(self, request: Mapping[str, Any], program: str) -> str | None:
        if store.depends_on_files(request["options"]):
            return None
        ours = digest_of_code(Path(__file__).parent)
        versions = {**self.toolchain.versions, "lagom_jax": ours}
        if self.toolchain.ptxas is not None:
            versions["ptxas"] = str(self.toolchain.ptxas.stat().st_size)
        return store.key_of(request, program, versions)

    @contextlib.contextmanager
    def _child(self) -> Iterator[Child]:
        with self._lock:
            child = self._idle.pop() if self._idle else None
        if child is None:
            child = self._started()
        with self._lock:
            self._busy.add(child)
            if self._closed:
                child.kill()
        try:
            yield child
        finally:
            with self._lock:
                mine = child in self._busy
                self._busy.discard(child)
                if mine and child.alive:
                    self._idle.append(child)
                    child = None
            if child is not None:
                child.close()

    def _started(self) -> Child:
        with self._lock:
            if self._closed:
                raise CompileError("the compiler was ended while it was asked")
            if self._starter is None:
                self._starter = concurrent.futures.ThreadPoolExecutor(
                    1, thread_name_prefix="lagom-compilers"
                )
            starter = self._starter
        tools = self._tools()
        try:
            return starter.submit(Child, environment(tools)).result()
        except OSError as error:
            raise ToolchainError(
                f"no process can be started to compile in: {error}"
            ) from error

    def _tools(self) -> Path | None:
        """The CUDA folder of the stand-in; None where the real tools are used."""
        with self._lock:
            if not self._stand_in:
                made = self._stack.enter_context(assembler.stand_in(self.toolchain))
                self._stand_in.append(made)
            return self._stand_in[0]

    @contextlib.contextmanager
    def _cached_kernels(self, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Options that make XLA take and keep kernels."""
        if kernels.asked_by_user(request["options"]):
            yield {}
            return
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(self._cache_for(request).copy())
            except OSError as error:
                LOG.info("kernels are compiled anew: %s", error)
                yield {}
            else:
                options: dict[str, Any] = {kernels.FILE_OPTION: str(file)}
                assembled = self._tools() is None
                # What is not assembled is never run, and need not be fast.
                if not assembled:
                    options[kernels.QUICK_OPTION] = 0
                # Without a linker XLA refuses to compile kernels one by one.
                if not assembled or self.toolchain.nvlink is not None:
                    options[kernels.SPLIT_OPTION] = True
                yield {n: v for n, v in options.items() if n not in self._lacking}

    def _cache_for(self, request: Mapping[str, Any]) -> KernelCache:
        """The kernels for a GPU, by this version of the compiler."""
        stated = repr((request["target_text"], sorted(self.toolchain.versions.items())))
        name = hashlib.sha256(stated.encode()).hexdigest()
        with self._lock:
            if name not in self._kernels:
                file = None
                if self.store is not None:
                    file = self.store.folder / f"{name}.kernels"
                self._kernels[name] = KernelCache(file)
            return self._kernels[name]
