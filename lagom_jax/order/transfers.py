"""Transfers under way and queued, as values that are cheap to compare."""

from __future__ import annotations

from typing import TypeAlias

Transfer: TypeAlias = tuple[int, int]
"""Something launched that is not done: its task's number, and its token."""
_Queues: TypeAlias = tuple[tuple[Transfer, ...], ...]


class TransferQueues:
    """By stream its transfers in their turn; of those alike there is a single object.

    Example:
        >>> idle = TransferQueues.empty(2)
        >>> one = idle.launched(1, (7, 0))
        >>> one.queues, one.busy, one.first
        (((), ((7, 0),)), (1,), (7,))
        >>> one is idle.launched(1, (7, 0)), one.ended(0) is idle
        (True, True)
    """

    __slots__ = ("_all", "_ended", "_launched", "busy", "first", "queues", "tokens")

    def __init__(
        self, queues: _Queues, all_known: dict[_Queues, TransferQueues]
    ) -> None:
        """Reads off what is asked for at every turn; see `empty`.

        Args:
            queues: By stream its transfers.
            all_known: All objects of a family, by what they hold.
        """
        self.queues = queues
        self.busy = tuple([place for place, queue in enumerate(queues) if queue])
        """The streams that have something to do."""
        self.first = tuple([queue[0][0] for queue in queues if queue])
        """The number of the task that is under way, for each of these."""
        self.tokens = frozenset([token for queue in queues for _, token in queue])
        """Of all transfers."""
        self._all = all_known
        self._launched: dict[Transfer, TransferQueues] = {}
        self._ended: list[TransferQueues | None] = [None] * len(self.busy)

    @classmethod
    def empty(cls, streams: int) -> TransferQueues:
        """The first of a family: nothing is under way.

        Args:
            streams: How many there are.
        """
        found = cls(((),) * streams, {})
        found._all[found.queues] = found
        return found

    def launched(self, stream: int, transfer: Transfer) -> TransferQueues:
        """The same with one more behind the others of a stream.

        Args:
            stream: The stream; each transfer is always on the same one.
            transfer: What is launched.
        """
        found = self._launched.get(transfer)
        if found is None:
            queue = (*self.queues[stream], transfer)
            found = self._launched[transfer] = self._with(stream, queue)
        return found

    def ended(self, place: int) -> TransferQueues:
        """The same without the first of a stream.

        Args:
            place: The stream's place among those that have something to do.
        """
        found = self._ended[place]
        if found is None:
            stream = self.busy[place]
            queue = self.queues[stream][1:]
            found = self._ended[place] = self._with(stream, queue)
        return found

    def has_any(self, tasks: frozenset[int]) -> bool:
        """True if one of some tasks is under way, or queued."""
        return any(task in tasks for queue in self.queues for task, _ in queue)

    def _with(self, stream: int, queue: tuple[Transfer, ...]) -> TransferQueues:
        queues = (*self.queues[:stream], queue, *self.queues[stream + 1 :])
        found = self._all.get(queues)
        if found is None:
            found = self._all[queues] = TransferQueues(queues, self._all)
        return found
