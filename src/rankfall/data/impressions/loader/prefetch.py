"""An iterator that computes its next results in a thread."""

from __future__ import annotations

import weakref
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class _End:
    """Marks the end of the results, with the error that caused it, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Exchange(Generic[T]):
    """The queues between the thread and the iterator.

    Simple queues can be used while garbage is collected, whatever the thread was doing at that moment.
    """

    def __init__(self, depth: int) -> None:
        self.results: SimpleQueue[T | _End] = SimpleQueue()
        self.room: SimpleQueue[None] = SimpleQueue()  # one entry per result that may still be queued
        self.stopped = False
        for _ in range(depth):
            self.room.put(None)

    def work(self, source: Iterator[T]) -> None:
        """Put results into the queue until the iterator stops."""
        end = _End()
        try:
            for result in source:
                self.room.get()
                if self.stopped:
                    return
                self.results.put(result)
                del result  # otherwise it would stay in memory until the next one is ready
        except BaseException as error:
            end = _End(error)
        self.results.put(end)

    def stop(self, thread: Thread) -> None:
        """Stop the thread after its current result."""
        self.stopped = True
        self.room.put(None)  # the thread may be waiting for room
        if thread is not current_thread():
            thread.join()


class Prefetcher(Generic[T]):
    """An iterator over `source` whose next results are computed in a thread.

    Errors of the thread are raised here, after the results before them. The thread ends with :meth:`close`, when the
    iterator is garbage collected and at the end of the program, in each case after its current result.

    Args:
        source: The iterator to run in the thread.
        depth: The largest number of results to compute ahead.
    """

    def __init__(self, source: Iterator[T], depth: int) -> None:
        self._exchange: _Exchange[T] = _Exchange(depth)
        # The thread must not refer to this object, or it would never be garbage collected.
        thread = Thread(target=self._exchange.work, args=(source,), name="rankfall-loader", daemon=True)
        self.close = weakref.finalize(self, self._exchange.stop, thread)
        thread.start()

    def __iter__(self) -> Iterator[T]:
        """Return the iterator itself."""
        return self

    def __next__(self) -> T:
        """Return the next result; wait for it if necessary."""
        result = self._exchange.results.get()
        if isinstance(result, _End):
            self.close()
            raise StopIteration if result.error is None else result.error
        self._exchange.room.put(None)
        return result
