"""RecFlow's published layout, written from a simulated platform.

::

    OUT/all_stage/2024-01-13.feather            one row per request and item
    OUT/seq_effective_50_dict/2024-01-13.pkl    {request: array (50, 10)}
    OUT/request_id_dict/2024-01-13.pkl          {request: {stage: array (n, 8)}}
    OUT/others/id_cnt.pkl                       {feature: number of ids}
    OUT/simulated.json                          settings and counts, written last
"""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall._disk import make_directory, open_new
from rankfall._files import write_file
from rankfall._manifest import has_format
from rankfall.data.sources.recflow_spec import FLAGS, POSITION, RANK
from rankfall.simulation.recflow_tables import event_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import polars as pl

    from rankfall.simulation.platform import ServedPortion
    from rankfall.simulation.world import Items

FORMAT = "simulated log in RecFlow's layout"
MANIFEST = "simulated.json"
STAGES = ("realshow", *FLAGS)
# columns of the arrays in request_id_dict
_ITEM_COLUMNS = (
    "video_id",
    "author_id",
    "duration",
    "category_level_two",
    "upload_type",
    "upload_timestamp",
    "category_level_one",
    "effective_view",
)
_PROTOCOL = 3  # the last one without frames, so that parts can be concatenated


def is_simulated(path: Path) -> bool:
    """Return whether a directory was written by this module."""
    return has_format(path / MANIFEST, FORMAT)


class RecFlowWriter:
    """Writes the layout day by day, with one portion in memory."""

    def __init__(self, directory: Path, id_counts: Mapping[str, int]) -> None:
        self._directory = directory
        self._id_counts = id_counts
        self._day: _Day | None = None
        self._days: list[str] = []
        self._requests = self._rows = 0
        self._stages = dict.fromkeys(STAGES, 0)
        for name in ("all_stage", "seq_effective_50_dict", "request_id_dict", "others"):
            make_directory(directory / name)

    def write(self, portion: ServedPortion, rows: pl.DataFrame, items: Items) -> None:
        """Append requests to their day; all requests of a day are written together."""
        rows = rows.drop(RANK, POSITION)  # RecFlow has one column of ranks per stage
        if self._day is None or portion.day != self._days[-1]:
            self.close()
            self._day = _Day(self._directory, portion.day, rows.to_arrow().schema)
            self._days.append(portion.day)
        self._day.rows.write_table(rows.to_arrow())
        numbers = portion.requests.number.tolist()
        self._day.sequences.write(dict(zip(numbers, event_arrays(portion.requests.history, items), strict=True)))
        self._day.stages.write(_by_stage(numbers, rows))
        self._requests += len(numbers)
        self._rows += len(rows)
        for name in STAGES:
            self._stages[name] += int(rows[name].sum())

    def finish(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Close the last day, write ``simulated.json`` and return its content."""
        self.close()
        counts = pickle.dumps(dict(self._id_counts), _PROTOCOL)
        write_file(self._directory / "others" / "id_cnt.pkl", counts)
        manifest = {
            "format": FORMAT,
            "about": {"command": "simulate", **about},
            "days": self._days,
            "requests": self._requests,
            "rows": self._rows,
            "stages": self._stages,
        }
        write_file(self._directory / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        return manifest

    def close(self) -> None:
        """Close the files of the current day."""
        if self._day is not None:
            self._day.close()
            self._day = None


class _Day:
    """The files of a day."""

    def __init__(self, directory: Path, day: str, schema: pa.Schema) -> None:
        self._file = open_new(directory / "all_stage" / f"{day}.feather")
        self.rows = pa.ipc.new_file(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self.sequences = _PickledDict(directory / "seq_effective_50_dict" / f"{day}.pkl")
        self.stages = _PickledDict(directory / "request_id_dict" / f"{day}.pkl")

    def close(self) -> None:
        for opened in (self.rows, self._file, self.sequences, self.stages):
            opened.close()


class _PickledDict:
    """A pickled dict that is written in parts: the content of each part's pickle between its head and its end."""

    _HEAD = pickle.PROTO + bytes([_PROTOCOL]) + pickle.EMPTY_DICT
    _REMEMBER = pickle.BINPUT + b"\0"

    def __init__(self, path: Path) -> None:
        self._file = open_new(path)
        self._file.write(self._HEAD)

    def write(self, part: dict[int, Any]) -> None:
        """Add keys and values."""
        content = pickle.dumps(part, _PROTOCOL)
        head = self._HEAD + self._REMEMBER
        assert content.startswith(head)
        assert content.endswith(pickle.STOP)
        self._file.write(content[len(head) : -len(pickle.STOP)])

    def close(self) -> None:
        self._file.write(pickle.STOP)
        self._file.close()


def _by_stage(numbers: list[int], rows: pl.DataFrame) -> dict[int, dict[str, Any]]:
    """Return the items of each request by stage. The layout has a dict per request, hence the loop over requests."""
    requests: dict[int, dict[str, Any]] = {number: {} for number in numbers}
    for stage in STAGES:
        chosen = rows.filter(rows[stage] > 0)
        values = np.ascontiguousarray(chosen.select(_ITEM_COLUMNS).to_numpy())
        for number, part in _runs(chosen["request_id"].to_numpy(), values):
            requests[number][stage] = part
    return requests


def _runs(keys: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Iterate over the values of each key; equal keys are consecutive."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return zip(keys[starts].tolist(), np.split(values, starts[1:]), strict=True)
