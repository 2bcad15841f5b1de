"""A bundle after each day of a stream, which a service that watches their directory takes up."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rankfall.data import ImpressionLog
    from rankfall.studies.stream.stream_config import StreamRun

_OLD = ".old"  # at the end of the name of a bundle that is being deleted


def _silent(*told: object) -> None:
    """Nobody hears it."""


@dataclass(frozen=True)
class DayBundles:
    """Writes the weights after a day as ``DIRECTORY/METHOD/DAY``, and keeps the last `keep` of a method.

    A day behind which so many others are known gets none, as it would be deleted again. It can be pickled unless
    somebody listens: `on_step` hears what is being done, `on_note` what there is to know.
    """

    directory: Path
    keep: int
    on_step: Callable[[StreamRun, str, str], None] = _silent
    on_note: Callable[[str], None] = _silent

    def __call__(self, run: StreamRun, log: ImpressionLog, days: Sequence[str], day: str) -> str | None:
        """Write the bundle of a day, unless it is there; why that cannot be done, if so."""
        if day not in days[-self.keep :]:
            return None
        try:
            self._write(run, log, days, day)
        except (ValueError, OSError) as error:
            return f"no bundle of {day}: {error}"
        except Exception as error:  # whatever it is, learning goes on
            return f"no bundle of {day}: {type(error).__name__}: {error}"
        return None

    def _write(self, run: StreamRun, log: ImpressionLog, days: Sequence[str], day: str) -> None:
        from rankfall._files import checksum
        from rankfall.serving.bundle_files import is_bundle, read_manifest
        from rankfall.serving.export.export_run import Trained, export_trained
        from rankfall.studies.stream.day_learner import weights_file
        from rankfall.studies.stream.stream_config import file_name

        weights, place = weights_file(run.directory, day), self.directory / file_name(run.method)
        _clear(place)
        there = [one for one in days if is_bundle(place / one)]
        if there and days.index(there[-1]) > days.index(day):  # learned again; who serves has come further
            return
        if day in there and read_manifest(place / day)["source"]["checkpoint"] == checksum(weights):
            return
        if day not in log.days:
            raise ValueError(
                f"{log.path} does not have the day any more, and its requests are what a bundle is tried on"
            )
        exported = export_trained(
            Trained(run.directory, run.config, weights, log, [day], _measured(run.directory, day)),
            place / day,
            without=_later(log, day),
            force=True,
            on_step=lambda step, done, total: self.on_step(run, day, step),
        )
        for note in exported.notes:
            self.on_note(f"{run.method}, bundle of {day}: {note}")
        self.on_note(f"wrote {place / day}")
        others = [one for one in there if one != day]
        for old in others[: max(0, len(others) + 1 - self.keep)]:
            _delete(place / old)


def _clear(place: Path) -> None:
    """Take away what a process left that was killed while it wrote or deleted a bundle."""
    for left in filter(Path.is_dir, place.glob(".*")):
        shutil.rmtree(left)


def _delete(bundle: Path) -> None:
    """Take a bundle away such that nobody finds half of it."""
    aside = bundle.with_name(f".{bundle.name}{_OLD}")
    bundle.rename(aside)
    shutil.rmtree(aside)


def _measured(run: Path, day: str) -> dict[str, Any]:
    """What the weights before a day got on it."""
    from rankfall.training.run_directory import read_lines

    (line,) = (line for line in read_lines(run) if line["day"] == day)
    values = {name: value for name, value in sorted(line["validation"].items()) if math.isfinite(value)}
    return {"stream": {"day": day, "metrics": values}}


def _later(log: ImpressionLog, day: str) -> NDArray[np.int32] | None:
    """The items that came up after a day for the first time."""
    from rankfall.data.impressions.loader import ItemFirstSeen

    days = list(log.days)
    if days[-1] == day:
        return None
    items: NDArray[np.int32] = log.items()["item"].to_numpy()
    first = ItemFirstSeen().numbers(log, days, items)
    return items[(first > days.index(day)) & (first < len(days))]
