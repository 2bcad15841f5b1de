"""The files of a loop, and what a new one begins with: a log of the platform's own cascade.

::

    DIR/loop.json            settings, written when the rest of the beginning is there
    DIR/past/                rows.arrow, requests.arrow: the log of the first days
    DIR/spec.yaml            its description
    DIR/items.arrow        all items uploaded so far
    DIR/catalogue.arrow    the items of the next day: those that are bundled
    DIR/stream.yaml          the cascade and its objective
    DIR/log                  the prepared log, to which the joiner appends days
    DIR/records              what the service records
    DIR/stream               weights and bundles
    DIR/answers              what the service answered, one file per portion of requests
    DIR/logs                 output of the commands
    DIR/days.json            the result
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._disk import make_directory, open_new
from rankfall._files import new_content, remove_directory, write_file
from rankfall._json_reader import parse_json
from rankfall._manifest import has_format
from rankfall._yaml_config import to_yaml
from rankfall.simulation.live_users import LiveUsers
from rankfall.simulation.loop_tables import item_rows, loop_spec, past_rows, request_rows
from rankfall.simulation.matching import NO_ITEM
from rankfall.simulation.platform import Platform
from rankfall.simulation.presets import LOOP

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.simulation.live_users import LivePortion
    from rankfall.simulation.platform import ServedPortion

FORMAT = "loop of a demonstration"
METHOD = "bce"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Settings of a loop, which do not change when it is continued."""

    seed: int
    requests_per_day: int
    first_days: int  # that the platform's own cascade serves
    batch: int


FULL = {"requests_per_day": 1000, "first_days": 4, "batch": 32}
QUICK = {"requests_per_day": 100, "first_days": 2, "batch": 16}

STAGES: list[dict[str, Any]] = [
    {"name": "retrieval", "quota": 100, "model": {"kind": "two_tower"}},
    {"name": "preranking", "quota": 40, "model": {"kind": "mlp"}},
    {"name": "ranking", "quota": 20, "model": {"kind": "din"}},
]
ANSWERED = STAGES[-1]["quota"]


class LoopFiles:
    """Paths of a loop.

    Args:
        directory: Its directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest = directory / "loop.json"
        self.rows, self.requests = directory / "past" / "rows.arrow", directory / "past" / "requests.arrow"
        self.spec, self.config = directory / "spec.yaml", directory / "stream.yaml"
        self.items, self.catalogue = directory / "items.arrow", directory / "catalogue.arrow"
        self.log, self.records, self.stream = directory / "log", directory / "records", directory / "stream"
        self.joined = directory / "log.join" / "days"
        self.bundles = self.stream / "bundles" / METHOD
        self.logs, self.answers = directory / "logs", directory / "answers"
        self.result = directory / "days.json"

    def check(self, settings: LoopSettings) -> bool:
        """Return whether the directory has a loop with these settings, which can be continued.

        Raises:
            ValueError: If it has something else, or a loop with other settings.
        """
        if not self.directory.exists() or not any(self.directory.glob("[!.]*")):
            return False
        if not has_format(self.manifest, FORMAT):
            if self.rows.parent.is_dir():  # interrupted before it began
                return False
            raise ValueError(f"out: {self.directory} is not empty and has no loop; name another directory")
        stored = parse_json(self.manifest.read_bytes())["settings"]
        for name, value in asdict(settings).items():
            if stored[name] != value:
                raise ValueError(
                    f"{name}: found {value}, but the loop in {self.directory} has {stored[name]}; --force begins again"
                )
        return True

    def remove(self) -> None:
        """Delete a loop.

        Raises:
            ValueError: If the directory has something else.
        """
        if has_format(self.manifest, FORMAT):
            remove_directory(self.directory)
        elif self.directory.exists() and any(self.directory.glob("[!.]*")):
            raise ValueError(f"out: {self.directory} is not empty and has no loop; name another directory")

    def begin(self, settings: LoopSettings, users: LiveUsers, past: Iterable[ServedPortion]) -> None:
        """Write what a loop begins with: `past` has the first days of users."""
        make_directory(self.rows.parent)
        make_directory(self.answers)
        portions = [
            (past_rows(users.platform, portion), request_rows(users.platform, portion.requests)) for portion in past
        ]
        write_table(self.rows, pl.concat([rows for rows, _ in portions]))
        write_table(self.requests, pl.concat([requests for _, requests in portions]))
        self.write_items(users)
        spec = loop_spec(users.platform).model_dump(mode="json", exclude_unset=True)
        write_file(self.spec, to_yaml(spec))
        write_file(self.config, to_yaml(stream_config(self.log, settings)))
        content = {"format": FORMAT, "settings": asdict(settings)}
        write_file(self.manifest, json.dumps(content, indent=1) + "\n")

    def write_items(self, users: LiveUsers) -> None:
        """Write the items that were uploaded so far, and those of the next day."""
        items, alive = users.tomorrow()
        write_table(self.items, item_rows(items, np.arange(len(items))))
        write_table(self.catalogue, item_rows(items, alive))

    # --- answers --------------------------------------------------------------------------------------------------

    def save_answers(self, portion: LivePortion, answers: Answers) -> None:
        """Store what the service answered to a portion of requests."""
        content = {"models": answers.models, "items": [row[row != NO_ITEM].tolist() for row in answers.items]}
        write_file(self._answers(portion), json.dumps(content) + "\n")

    def load_answers(self, portion: LivePortion) -> Answers | None:
        """Return what the service answered, None if it was not asked yet."""
        path = self._answers(portion)
        if not path.is_file():
            return None
        content = parse_json(path.read_bytes())
        return Answers.of(content["items"], content["models"])

    def _answers(self, portion: LivePortion) -> Path:
        return self.answers / f"{portion.day:04d}-{portion.number:02d}.json"


@dataclass(frozen=True, slots=True)
class Answers:
    """Items (requests, n) that the service answered, and the model of each answer."""

    items: NDArray[np.int32]
    models: list[str]

    @classmethod
    def of(cls, lists: list[list[int]], models: list[str]) -> Answers:
        """Return answers from lists of items, which may be of different lengths."""
        items = np.full((len(lists), max([1, *map(len, lists)])), NO_ITEM, np.int32)
        for row, of_request in zip(items, lists, strict=True):
            row[: len(of_request)] = of_request
        return cls(items, models)


def new_users(settings: LoopSettings) -> LiveUsers:
    """Return the users of a loop before its first day."""
    return LiveUsers(Platform(LOOP, settings.seed, settings.requests_per_day), settings.first_days)


def stream_config(log: Path, settings: LoopSettings) -> dict[str, Any]:
    """Return the cascade that learns from the log day by day."""
    return {
        "data": {"path": str(log.resolve()), "length": 150},
        "relevant": 10,
        "stages": STAGES,
        "objective": {"name": METHOD, "min_depth": 0},
        "optimizer": {"lr": 0.01},
        "training": {"batch": settings.batch},
        "seeds": [settings.seed],
    }


def write_table(path: Path, frame: pl.DataFrame) -> None:
    """Write a table atomically as an Arrow file."""
    table = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    with (
        new_content(path) as temporary,
        open_new(temporary, "r+b") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
