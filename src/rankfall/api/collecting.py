"""``rf.collect``: from the messages of a broker to segments."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._errors import checked, stop_at_ctrl_c
from rankfall._tables import StoredTables
from rankfall.api.display import Progress, reported, warn
from rankfall.api.extras import requires_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.api.arguments import PathLike
    from rankfall.api.display import OnNotice, ProgressLike
    from rankfall.serving.recording.collect import CollectionCounts


@dataclass(frozen=True, repr=False)
class CollectedRecords(StoredTables):
    """What :func:`collect` has written.

    Attributes:
        messages: Number of messages that were received.
        samples: Number of samples that were written.
        events: Number of events that were written.
        repeated: Number of messages that were delivered again, and not written again.
        rejected: Number of messages that hold no records.
        missed: Number of messages that the broker deleted before they were collected.
    """

    messages: int
    samples: int
    events: int
    repeated: int
    rejected: int
    missed: int

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return one row."""
        return {"collected": [self.to_json()]}

    def to_json(self) -> dict[str, int]:
        """Return the numbers by their names."""
        return asdict(self)


@checked
def collect(
    url: str,
    out: PathLike,
    *,
    follow: bool = False,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    stop: Callable[[], object] | None = None,
) -> CollectedRecords:
    """Write the samples and events that services sent to a broker to files.

    Messages are acknowledged after their records are on disk. A call that was interrupted or killed can be repeated:
    nothing is lost.

    Args:
        url: Stream of NATS JetStream, nats://HOST:PORT/STREAM, or topic of Kafka, kafka://HOST:PORT/TOPIC.
        out: Directory of the files, as ``rankfall serve --samples`` writes them. Earlier files stay.
        follow: Wait for further messages until `stop` returns a true value, or Ctrl-C.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices about rejected messages and lost connections. Default: they are issued as
            :class:`~rankfall.RankfallWarning`.
        stop: Called between groups of messages; a true value ends the work. With it, Ctrl-C is left to the caller.

    Raises:
        ValueError: If the URL is wrong, or the package of the broker is not installed.
        OSError: If the broker cannot be reached, or the records cannot be written.
    """
    with requires_extra("collect", "serve"):
        from rankfall.serving.recording.collect import collect as run

    directory = Path(out)
    with reported(progress) as report, stop_at_ctrl_c(stop) as stopping:
        report(Progress("connecting"))

        def on_counts(counts: CollectionCounts) -> None:
            report(Progress("collecting", status=f"{counts.samples:,} samples, {counts.events:,} events"))

        try:
            counts = run(url, directory, follow=follow, stop=stopping, on_notice=on_notice, on_counts=on_counts)
        except ValueError as error:
            raise ValueError(f"url: {error}") from None
    return CollectedRecords(**asdict(counts)).stored_in(directory)
