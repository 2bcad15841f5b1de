"""Write a bundle after each day of a stream, for a service that watches their directory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall._errors import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from rankfall.data import ImpressionLog
    from rankfall.studies.stream.stream_config import StreamRun


def _ignore(*arguments: object) -> None:
    """Do nothing: the default callback, which can be pickled."""


@dataclass(frozen=True)
class DayBundles:
    """Exports the weights after a day to ``DIRECTORY/METHOD/DAY``, and keeps the last `keep` bundles of a method.

    No bundle is written for a day with `keep` later days, because it would be deleted again. `items` is a file with the
    items of bundles, which is read for each bundle; by default they are those of the log up to the day. `on_step`
    receives the progress of an export, `on_note` messages; an object with the default callbacks can be pickled.
    """

    directory: Path
    keep: int
    items: Path | None = None
    on_step: Callable[[StreamRun, str, str], None] = _ignore
    on_note: Callable[[str], None] = _ignore

    def __call__(self, run: StreamRun, log: ImpressionLog, days: Sequence[str], day: str) -> str | None:
        """Write the bundle of a day unless it exists; return an error message or None."""
        if day not in days[-self.keep :]:
            return None
        try:
            self._write(run, log, days, day)
        except Exception as error:  # training continues in any case
            return f"no bundle of {day}: {one_line(error)}"
        return None

    def _write(self, run: StreamRun, log: ImpressionLog, days: Sequence[str], day: str) -> None:
        from rankfall.serving.bundle_files import is_bundle, read_manifest
        from rankfall.serving.export.export_run import ExportOptions, Trained, export_trained
        from rankfall.storage.files import checksum, remove_directory, sweep
        from rankfall.studies.stream.day_learner import weights_file
        from rankfall.studies.stream.stream_config import file_name

        weights, place = weights_file(run.directory, day), self.directory / file_name(run.method)
        if place.is_dir():
            sweep(place)  # days that no longer get a bundle, too
        existing = [one for one in days if is_bundle(place / one)]
        if existing and days.index(existing[-1]) > days.index(day):  # a repeated day; the service has a later one
            return
        if day in existing and read_manifest(place / day)["source"]["checkpoint"] == checksum(weights):
            return
        if day not in log.days:
            raise ValueError(f"{log.path} no longer has the day, whose requests are needed to check the bundle")
        exported = export_trained(
            Trained(run.directory, run.config, weights, log, [day], _measured(run.directory, day)),
            place / day,
            ExportOptions(items=self.items, known=None if self.items else _items_after(log, day), force=True),
            on_step=lambda step, done, total: self.on_step(run, day, step),
        )
        for note in exported.notes:
            self.on_note(f"{run.method}, bundle of {day}: {note}")
        self.on_note(f"wrote {place / day}")
        others = [one for one in existing if one != day]
        for old in others[: max(0, len(others) + 1 - self.keep)]:
            remove_directory(place / old)


def _measured(run: Path, day: str) -> dict[str, Any]:
    """Return the metrics of a day with the weights before it."""
    from rankfall.training.run_directory import read_lines

    (line,) = (line for line in read_lines(run) if line["day"] == day)
    values = {name: value for name, value in sorted(line["validation"].items()) if math.isfinite(value)}
    return {"stream": {"day": day, "metrics": values}}


def _items_after(log: ImpressionLog, day: str) -> pa.Table | None:
    """Return the items as they were after a day, without those of later days; None after the newest day."""
    import pyarrow.compute as pc

    from rankfall.data.impressions.loader import ItemFirstSeen

    days = list(log.days)
    if days[-1] == day:
        return None
    table = log.items_on(days[days.index(day) + 1])
    first = ItemFirstSeen().numbers(log, days, table["item"].to_numpy())
    return table.filter(pc.invert((first > days.index(day)) & (first < len(days))))
