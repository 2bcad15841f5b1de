"""The interface of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["samples", "events"]


class SinkError(OSError):
    """A sink that did not take records, or did not confirm them in time."""


class Sink(Protocol):
    """Takes records. All methods are called in one thread, and return or raise within a few seconds."""

    def check(self) -> None:
        """Raise an OSError unless records can be written now, for example because a server refuses the password."""

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        """Write records.

        Args:
            kind: Samples or events.
            batch: Records with the schema of the kind, at least one.
            durable: Return after the records are safe, such that neither a crash of this process nor one of the sink's
                server loses them.

        Raises:
            OSError: The records were not written or, if `durable`, are not known to be: part of them may have been.
        """

    def tick(self) -> None:
        """Do what is due by now; to be called about every 100 ms.

        Raises:
            OSError: Something could not be completed; later calls may succeed.
        """

    def take_lost(self) -> int:
        """Return the number of records lost since the last call, which `write` took without `durable`."""

    def close(self) -> None:
        """Write what is still buffered and release everything; `take_lost` can be called afterwards.

        Raises:
            OSError: Something could not be completed.
        """
