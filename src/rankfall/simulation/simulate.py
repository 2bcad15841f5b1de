"""Write the log of a simulated platform as impressions or in RecFlow's layout."""

from __future__ import annotations

import json
import pickle
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError, did_you_mean
from rankfall.data.impressions.assemble import assemble
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.items import item_table
from rankfall.data.impressions.log import ImpressionLog, appending, is_log
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.requests import Counts
from rankfall.data.impressions.spec import Relevant
from rankfall.data.sources.recflow import (
    FEEDBACK,
    FLAGS,
    ITEM_IDS,
    POSITION,
    RANK,
    TRUTH,
    position_expression,
    rank_expression,
    recflow_spec,
    sequence_column,
)
from rankfall.simulation.industry_tables import IndustryTables
from rankfall.simulation.platform import COARSE, POSITIVES, PRERANK, Platform
from rankfall.simulation.presets import preset_of
from rankfall.simulation.world import AGES, GENDERS, NO_ITEM, PROVINCES, UPLOAD_TYPES
from rankfall.storage.disk import make_directory, open_new
from rankfall.storage.files import fresh_directory, write_file
from rankfall.storage.manifests import has_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec
    from rankfall.simulation.platform import RecentViews, ServedPortion
    from rankfall.simulation.world import Items, Users

    Integers = NDArray[np.int64]
    OnRequests = Callable[[int], None]


class RecFlowTables:
    """Converts served requests to rows and sequences."""

    per_request = False  # the features of an item never change

    def __init__(self, platform: Platform, days: int) -> None:
        preset = platform.preset
        self._platform = platform
        self._stages: Literal[2, 3] = 3 if len(preset.sample) == 5 else 2
        self.id_counts = {
            "user_id": len(platform.users),
            "device_id": platform.users.devices,
            "age": AGES,
            "gender": GENDERS,
            "province": PROVINCES,
            "video_id": len(platform.items) + (days - 1) * preset.births,
            "author_id": preset.authors,
            "category_level_two": preset.categories * preset.subcategories,
            "category_level_one": preset.categories,
            "upload_type": UPLOAD_TYPES,
        }
        spec = recflow_spec(self.id_counts, stages=self._stages, sample=preset.sample)
        self.spec: Spec = spec.model_copy(update={"position": POSITION})

    def rows(self, portion: ServedPortion) -> pl.DataFrame:
        """Return one row per request and logged item."""
        requests, served = portion.requests, portion.served
        real = portion.items != NO_ITEM
        row = np.nonzero(real)[0]
        item = portion.items[real]
        rank_index, rerank_index = served.rank_index[real], served.rerank_index[real]
        columns: dict[str, Integers] = {
            "request_id": requests.number[row],
            "request_timestamp": requests.time[row],
            **user_columns(self._platform.users, requests.user[row], requests.device[row]),
            **item_columns(self._platform.items, item),
            "rerank_pos": (rerank_index >= 0) & (rerank_index < POSITIVES),
            "rerank_neg": rerank_index >= POSITIVES,
            "rank_pos": (rank_index >= 0) & (rank_index < POSITIVES),
            "rank_neg": rank_index >= POSITIVES,
            "coarse_neg": served.last_model[real] == COARSE,
            "prerank_neg": served.last_model[real] == PRERANK,
            "rank_index": rank_index,
            "rerank_index": rerank_index,
            **{name: portion.feedback[name][real] for name in FEEDBACK},
        }
        frame = pl.DataFrame({name: values.astype(np.int64, copy=False) for name, values in columns.items()})
        truth = pl.Series(TRUTH, portion.relevance[real])
        return frame.with_columns(rank_expression(self._stages), position_expression(), truth)

    def requests(self, portion: ServedPortion) -> pl.DataFrame:
        """Return one row per request with the earlier views of its user, as lists."""
        history = portion.requests.history
        real = history.item != NO_ITEM
        edges = pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(real.sum(axis=1))]))
        columns = item_columns(self._platform.items, history.item[real])
        lists = {sequence_column(name): pa.LargeListArray.from_arrays(edges, columns[name]) for name in ITEM_IDS}
        frame = pl.from_arrow(pa.table({"request_id": portion.requests.number, **lists}))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def items(self, seen: Integers) -> pl.DataFrame:
        """Return one row per item."""
        return pl.DataFrame(item_columns(self._platform.items, seen))


def user_columns(users: Users, chosen: Integers, device: Integers) -> dict[str, Integers]:
    """Return RecFlow's columns of users and their devices."""
    return {
        "user_id": chosen,
        "device_id": device,
        "age": users.age[chosen],
        "gender": users.gender[chosen],
        "province": users.province[chosen],
    }


def item_columns(items: Items, chosen: NDArray[np.integer]) -> dict[str, Integers]:
    """Return RecFlow's columns of items."""
    return {
        "video_id": chosen.astype(np.int64),
        "author_id": items.author[chosen],
        "category_level_one": items.category[chosen],
        "category_level_two": items.subcategory[chosen],
        "upload_type": items.upload_type[chosen],
        "upload_timestamp": items.upload_time[chosen],
        "duration": items.duration[chosen],
    }


def event_arrays(history: RecentViews, items: Items) -> NDArray[np.int64]:
    """Return the earlier views of users, (users, 50, 10) as in RecFlow's pickles: zeros before the first view."""
    columns: Mapping[str, Integers] = item_columns(items, history.item)
    names = (*ITEM_IDS, "upload_timestamp", "duration")
    events = np.stack([*(columns[name] for name in names), history.time, history.playing_time, history.request], axis=2)
    return np.where((history.item == NO_ITEM)[:, :, None], 0, events)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The settings of a simulation. Equal settings give the same bytes; more days do not change the first ones."""

    preset: str
    days: int
    requests_per_day: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the preset and the ranges of all settings."""
        preset_of(self.preset)
        for name, least in (("days", 1), ("requests_per_day", 1), ("seed", 0)):
            if not least <= getattr(self, name) < 2**63:
                raise RankfallError(f"{name}: found {getattr(self, name)}, expected at least {least} and below 2^63")

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in manifests."""
        return {name: getattr(self, name) for name in self.__slots__}

    def platform(self) -> Platform:
        """Return the platform before its first day."""
        return Platform(preset_of(self.preset), self.seed, self.requests_per_day)


def simulate_log(
    simulation: Simulation,
    out: Path,
    *,
    truth: bool = False,
    relevant: str | None = None,
    force: bool = False,
    on_requests: OnRequests = lambda count: None,
) -> ImpressionLog:
    """Write an impression log with the features, stages and sample sizes of the preset.

    Args:
        simulation: The settings.
        out: The directory to write.
        truth: Also write the true relevance of items.
        relevant: The feedback that makes an item relevant; by default reaching the last logged stage does.
        force: Replace an existing impression log.
        on_requests: Receives the number of requests served.

    Raises:
        ValueError: If the preset has no such feedback.
    """
    with fresh_directory(out, is_log, force=force) as directory:
        platform = simulation.platform()
        tables = _tables(platform, simulation.days)
        spec = tables.spec.model_copy(update={"truth": TRUTH}) if truth else tables.spec
        spec = spec if relevant is None else _with_relevant(spec, relevant)
        encoding = Encoding(spec)
        writer: LogWriter | None = None
        counts = Counts()
        seen: set[int] = set()
        for portion in platform.run(simulation.days):
            rows = tables.rows(portion)
            assembled = assemble(rows, encoding, seed=simulation.seed, requests=tables.requests(portion))
            ((day, impressions),) = assembled.days
            writer = writer or LogWriter(directory, spec, encoding.features, impressions.schema)
            writer.write(day, impressions)
            counts += assembled.counts
            seen.update(portion.items[portion.items != NO_ITEM].tolist())
            on_requests(len(portion.items))
        assert writer is not None  # there is at least one day with one request
        about: dict[str, Any] = {
            "command": "simulate",
            **simulation.to_json(),
            "truth": truth,
            "counts": counts.to_json(),
        }
        if tables.per_request:
            about["item_features"] = "per request"
        writer.finish(item_table(tables.items(np.array(sorted(seen), np.int64)), encoding), {}, about)
    return ImpressionLog.load(out)


def append_days(simulation: Simulation, out: Path, *, on_requests: OnRequests = lambda count: None) -> ImpressionLog:
    """Continue the platform of a log up to the days of `simulation`, and append the new days.

    The features of the log do not change, so new items have the id of items never seen.

    Args:
        simulation: The settings of the log, with more days.
        out: The directory of the log.
        on_requests: Receives the number of requests served.

    Raises:
        ValueError: If the log was not simulated with the same settings, or already has the days.
    """
    with appending(out) as growth:
        about = _check_same_platform(simulation, growth.log)
        platform = simulation.platform()
        tables = _tables(platform, simulation.days)
        encoding = Encoding(growth.log.spec)
        counts = Counts.from_json(about["counts"])
        seen: set[int] = set()
        for portion in platform.run(simulation.days):
            rows = tables.rows(portion)  # also of existing days, which update the statistics
            if portion.day not in growth.log.days:
                assembled = assemble(rows, encoding, seed=simulation.seed, requests=tables.requests(portion))
                ((day, impressions),) = assembled.days
                growth.write(day, impressions)
                counts += assembled.counts
            seen.update(portion.items[portion.items != NO_ITEM].tolist())
            on_requests(len(portion.items))
        about = about | simulation.to_json() | {"counts": counts.to_json()}
        growth.finish(item_table(tables.items(np.array(sorted(seen), np.int64)), encoding), about)
    return ImpressionLog.load(out)


def _tables(platform: Platform, days: int) -> RecFlowTables | IndustryTables:
    made = IndustryTables if platform.preset.layout == "industry" else RecFlowTables
    return made(platform, days)


def _with_relevant(spec: Spec, feedback: str) -> Spec:
    if feedback not in spec.feedback:
        raise RankfallError(
            f"relevant: found {feedback!r}{did_you_mean(feedback, spec.feedback)}; the feedback of this platform is "
            f"{', '.join(spec.feedback)}"
        )
    return spec.model_copy(update={"relevant": Relevant(column=feedback)})


def _check_same_platform(simulation: Simulation, log: ImpressionLog) -> dict[str, Any]:
    """Check that a log was simulated with these settings; return its provenance."""
    about: dict[str, Any] = log.manifest["about"]
    if about.get("command") != "simulate":
        raise RankfallError(f"out: {log.path} is not the log of a simulated platform, so no days can be added")
    for name in ("preset", "requests_per_day", "seed"):
        if about[name] != getattr(simulation, name):
            raise RankfallError(
                f"{name}: found {getattr(simulation, name)!r}, but {log.path} was made with {about[name]!r}"
            )
    if simulation.days <= about["days"]:
        raise RankfallError(f"days: found {simulation.days}, expected more than the {about['days']} of {log.path}")
    return about


def simulate_recflow(
    simulation: Simulation,
    out: Path,
    *,
    truth: bool = False,
    force: bool = False,
    on_requests: OnRequests = lambda count: None,
) -> dict[str, Any]:
    """Write a log in RecFlow's layout.

    Args:
        simulation: The settings.
        out: The directory to write.
        truth: Also write a column with the true relevance.
        force: Replace an existing simulated log.
        on_requests: Receives the number of requests served.

    Returns:
        The content of ``simulated.json``.
    """
    preset = preset_of(simulation.preset)
    if preset.layout != "recflow":
        raise RankfallError(f"preset: found {simulation.preset}, which cannot be written in RecFlow's layout")
    with fresh_directory(out, is_simulated, force=force) as directory:
        platform = simulation.platform()
        tables = RecFlowTables(platform, simulation.days)
        with closing(RecFlowWriter(directory, tables.id_counts)) as writer:
            for portion in platform.run(simulation.days):
                rows = tables.rows(portion)
                writer.write(portion, rows if truth else rows.drop(TRUTH), platform.items)
                on_requests(len(portion.items))
            return writer.finish({**simulation.to_json(), "truth": truth})
