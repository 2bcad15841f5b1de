"""A thread that works ahead of whoever takes its results."""

from __future__ import annotations

import weakref
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class _End:
    """After the last result: with the error that ended the work, if one did."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Line(Generic[T]):
    """What the thread and its iterator share.

    Simple queues, since those may be used while garbage is collected, whatever the thread was doing at that moment.
    """

    def __init__(self, depth: int) -> None:
        self.results: SimpleQueue[T | _End] = SimpleQueue()
        self.room: SimpleQueue[None] = SimpleQueue()  # an entry for each result that may still wait
        self.stopped = False
        for _ in range(depth):
            self.room.put(None)

    def work(self, source: Iterator[T]) -> None:
        """Put one result after the other as long as they are wanted."""
        end = _End()
        try:
            for result in source:
                self.room.get()
                if self.stopped:
                    return
                self.results.put(result)
                del result  # or it would live until the next one is there
        except BaseException as error:
            end = _End(error)
        self.results.put(end)

    def stop(self, thread: Thread) -> None:
        """Let the thread finish the result it is working on, and no more."""
        self.stopped = True
        self.room.put(None)  # it may be waiting for room
        if thread is not current_thread():
            thread.join()


class Ahead(Generic[T]):
    """An iterator over `source`, which a thread keeps at most `depth` results ahead.

    What goes wrong in the thread is raised here, after the results before it. The thread ends with :meth:`close`,
    when the iterator is forgotten, and at the end of the program, each after the result it is working on.
    """

    def __init__(self, source: Iterator[T], depth: int) -> None:
        self._line: _Line[T] = _Line(depth)
        # The thread must not know this object, or that would never be forgotten.
        thread = Thread(target=self._line.work, args=(source,), name="rankfall-loader", daemon=True)
        self.close = weakref.finalize(self, self._line.stop, thread)
        thread.start()

    def __iter__(self) -> Iterator[T]:
        """Itself."""
        return self

    def __next__(self) -> T:
        """The next result."""
        result = self._line.results.get()
        if isinstance(result, _End):
            self.close()
            raise StopIteration if result.error is None else result.error
        self._line.room.put(None)
        return result
