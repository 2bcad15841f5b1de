"""Train one run on one day after another: each day is measured with the weights before it, then trained on once.

The epochs of such a run are days, in order of time. The run can be continued when there are more days, so its last
checkpoints are kept. Files besides those of every run directory:

================================  ====================================================================================
``days/2024-01-14.parquet``       metrics and chance levels of every impression of a day, with the weights before it
``days/2024-01-14.safetensors``   the weights after that day, if requested
``days/latest.safetensors``       a link to the newest of these
================================  ====================================================================================

``best`` and ``last`` are the same weights.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rankfall._config import ConfigError
from rankfall.data.impressions.compatibility import check_compatible, encoding_signature
from rankfall.data.impressions.loader import ItemFirstSeen
from rankfall.data.impressions.log import Day, LogWatcher, open_day
from rankfall.data.impressions.spec import Features
from rankfall.storage.disk import make_directory, open_new
from rankfall.storage.files import new_content, parse_json, replace_link, write_file
from rankfall.training import run_directory as runs
from rankfall.training.build import check_kept, check_quotas, with_depths
from rankfall.training.cascade_loaders import measuring_loader, training_loader
from rankfall.training.cascade_metrics import ground_truth, values_table
from rankfall.training.checks import check_training_labels
from rankfall.training.config.component_checks import has_schedule
from rankfall.training.config.load_config import dump_absolute
from rankfall.training.config.sections import Role
from rankfall.training.device import placement_of, seeded
from rankfall.training.distributed.group import ALONE
from rankfall.training.item_weights import PropensityWeights, item_weights
from rankfall.training.loop import Loop, train_in
from rankfall.training.measured_lists import means_of
from rankfall.training.measured_lists import measure_cascade as measure
from rankfall.training.start_weights import grow_cascade, rows_of
from rankfall.training.train_cascade import CascadeLearner, Epoch, build_objective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.data import ImpressionLoader, ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.build import BuiltObjective
    from rankfall.training.checkpoint import State
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.learner import Position
    from rankfall.training.loop import OnNotice
    from rankfall.training.methods import Callbacks

    OnDay = Callable[[str], None]

LATEST = "latest.safetensors"
LENGTH, RELEVANT = "mean_length", "mean_relevant"  # metadata of the values of a day
_FIRST_ROWS = "first_rows"  # key of the rows of embedding tables on the first day, in the file about the log


@dataclass(frozen=True, slots=True)
class DayEpoch(Epoch):
    """Metrics of a day; `validation` is measured with the weights before it."""

    day: str


def train_days(
    config: CascadeConfig,
    out: Path,
    log: ImpressionLog,
    days: Mapping[str, str],
    *,
    resume: bool = False,
    weights: bool = False,
    first_days: ItemFirstSeen | None = None,
    on_day: OnDay = lambda day: None,
    on_notice: OnNotice = warnings.warn,
    **callbacks: Unpack[Callbacks],
) -> runs.TrainResult:
    """Measure and train on days one after the other, and leave a run directory.

    Args:
        config: the training configuration.
        out: directory of the run.
        log: the log; it must have the days that the run has not been trained on yet.
        days: checksums of all days of the stream, in order.
        resume: continue a run, with the same result as if it had never been interrupted.
        weights: keep the weights after every day.
        first_days: first days of items, which runs on the same log can share.
        on_day: receives every day that was trained on, after its checkpoint is written. A continued run passes the
            last day again, because the process may have been killed before the callback returned.
        on_notice: receives messages, for instance about damaged checkpoints.
        callbacks: further ones of :func:`rankfall.training.methods.train`.
    """
    with runs.own_code(config, trains=True):
        first_days = first_days or ItemFirstSeen()
        placement = placement_of(config.training)
        config = with_depths(config, log.spec.stage_names)
        # negatives are drawn from days of the stream, whatever other days the log has
        log = replace(log, days={day: log.days[day] for day in days if day in log.days})
        _check_pool(config, log, days)
        built = build_objective(log, config)
        runs.check_free(out, force=False, resume=resume)
        if resume and (out / runs.CONFIG).is_file():
            check_begun(config, out, log)
        else:
            present = [day for day in days if day in log.days]
            check_training_labels(log, config, present, built[0], on_notice)
            weights_of_items = item_weights(config, log)
            if isinstance(weights_of_items, PropensityWeights):
                on_notice(weights_of_items.describe(log, present))
            check_quotas(config, measuring_loader(log, config, present[1:] or present, first_days))
            check_kept(built[0], training_loader(log, config, present, first_days=first_days))
        with seeded(config.training.seed, config.training.threads, placement.device):
            try:
                # rows of embedding tables on the first day, with which a run is built before its tables grow
                stored = runs.read_json(out / runs.LOG) if resume and (out / runs.LOG).is_file() else {}
                rows = stored.get(_FIRST_ROWS) or log.as_of(next(iter(days))).features.tables
                learner = _DayLearner(config, out, log, rows, days, first_days, built, on_notice)
            except ValueError as error:
                raise ConfigError(str(error)) from error
            loop = _DayLoop(learner, days, weights=weights, on_day=on_day, **callbacks)
            files = {
                runs.CONFIG: dump_absolute(config),
                runs.LOG: json.dumps(encoding_signature(log) | {_FIRST_ROWS: rows}, indent=1) + "\n",
                **runs.component_files(config),
            }
            return train_in(loop, files, resume=resume, on_notice=on_notice)


def check_begun(config: CascadeConfig, out: Path, log: ImpressionLog) -> None:
    """Raise if a run was started with a different configuration, or with a log that is encoded differently."""
    if not (out / runs.CONFIG).is_file():
        return
    before, now = runs.read_config(out), with_depths(config, log.spec.stage_names)
    runs.check_same_code(out, config)
    runs.check_same(out, _resumable_settings(before), _resumable_settings(now))
    if (out / runs.LOG).is_file():
        runs.verify_run(out, runs.LOG)
    try:
        trained = parse_json((out / runs.LOG).read_text())
    except (FileNotFoundError, ValueError):
        return  # the run was killed before it trained
    tables = log.features.tables
    for table, rows in Features.from_json(trained["features"]).tables.items():
        if table not in trained["vocabularies"] and tables.get(table, rows) != rows:
            raise ConfigError(
                f"data.path: {out} was started with {rows:,} rows of {table}, {log.path} now has {tables[table]:,}. "
                "The size of a table without a vocabulary is fixed: add days with the ids of the first, or start a "
                "new stream"
            )
    sequences = (f"sequence.{one['name']}" for one in trained["features"]["sequences"])
    check_compatible(trained, log, used={*trained["rules"], *sequences})


def _check_pool(config: CascadeConfig, log: ImpressionLog, days: Iterable[str]) -> None:
    """Raise if items are drawn and a day of the stream is missing: other items would be drawn than before."""
    data = config.data
    drawn = (data.negatives and data.negatives_from == "items") or (data.length and data.length_from == "items")
    missing = [day for day in days if day not in log.days]
    if drawn and missing:
        name = "negatives" if data.negatives else "length"
        raise ConfigError(
            f"data.{name}: items are drawn from all days of the stream, but {log.path} no longer has "
            f"{', '.join(missing)}; restore these days, or start another stream"
        )


def _resumable_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that must not change when a run is continued: all but the days, which may increase."""
    settings = config.model_dump(mode="json")
    settings["data"] = {key: value for key, value in settings["data"].items() if key not in get_args(Role)}
    return settings


def values_file(run: Path, day: str) -> Path:
    """Return the file of a run with the metrics of a day's impressions."""
    return run / runs.DAYS / f"{day}.parquet"


def weights_file(run: Path, day: str) -> Path:
    """Return the file of a run with the weights after a day."""
    return run / runs.DAYS / f"{day}.safetensors"


# --- one day at a time --------------------------------------------------------------------------------------------


class _OneDay:
    """Batches of one day at a time, shuffled as in a first epoch.

    Attributes:
        days: All days, in order.
        rows: Rows of the embedding tables of the model on the current day; it reads newer ids as never seen.
    """

    def __init__(
        self,
        log: ImpressionLog,
        config: CascadeConfig,
        days: Mapping[str, str],
        first_days: ItemFirstSeen,
        *,
        pin_memory: bool = False,
    ) -> None:
        self._log, self._config, self.days, self._checksums = log, config, list(days), days
        self.rows: Mapping[str, int] = {}
        self._first_days, self._pin_memory = first_days, pin_memory
        self._number = -1
        self._loader: ImpressionLoader | None = None
        self._state: Mapping[str, Any] = {}

    @property
    def day(self) -> str:
        """The current day."""
        return self.days[self._number]

    @property
    def loader(self) -> ImpressionLoader:
        """Loader of the current day."""
        assert self._loader is not None  # set_epoch is called before batches are read
        return self._loader

    def has_chosen(self, epoch: int) -> bool:
        """Whether the day of an epoch, counted from 0, is the current one."""
        return self._loader is not None and self._number == epoch

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Impressions]:
        return iter(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Open the day of an epoch, counted from 0."""
        if self.has_chosen(epoch):
            return
        self._number, self._loader = epoch, None
        try:
            (listed,) = self._log.choose([self.day])
            day = open_day(listed.path, self.day)
        except ValueError as error:
            raise ConfigError(f"data.{error}") from None
        if any(found.manifest.get("sha256") != self._checksums[self.day] for found in (listed, day)):
            raise ConfigError(f"data.path: {day.path} has changed since the stream accepted it")
        log = self._log.limited_to(self.rows)
        self._loader = training_loader(
            log, self._config, [self.day], first_days=self._first_days, pin_memory=self._pin_memory
        )
        if self._state.get("day") == self.day:
            self._loader.load_state_dict(self._state["loader"])

    def state_dict(self) -> dict[str, Any]:
        """Return the day and the position in it."""
        return {"day": self.day, "loader": self.loader.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position when its day is opened; a finished day may no longer be in the log."""
        self._state = state

    def requests(self, batch: Impressions) -> pa.ChunkedArray:
        """Return the ids of the requests of a batch."""
        return self.loader.requests(batch)


class _DayLearner(CascadeLearner):
    """A cascade that is trained on one day after the other."""

    loader: _OneDay

    def __init__(
        self,
        config: CascadeConfig,
        out: Path,
        log: ImpressionLog,
        rows: Mapping[str, int],
        days: Mapping[str, str],
        first_days: ItemFirstSeen,
        built: BuiltObjective,
        on_notice: OnNotice = warnings.warn,
    ) -> None:
        super().__init__(config, out, log.limited_to(rows), ALONE, built, on_notice)
        self.log, self._first_days = log, first_days  # the whole log, not that of the first day
        self.loader = _OneDay(log, config, days, first_days, pin_memory=self.placement.pins)
        sizes = map(len, log.choose(days)) if has_schedule(config.objective.options) else ()
        self.batches = sum(-(-size // config.training.batch) for size in sizes)
        self.measured: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        self.lists = {LENGTH: 0.0, RELEVANT: 0.0}  # means of the measured day

    def open_data(self) -> None:
        """Do nothing: the loaders of a day are made when it begins."""

    def begin_day(self, epoch: int) -> None:
        """Open the day of an epoch, counted from 0, and enlarge tables for the new values of the day."""
        self._grow(self.log.as_of(self.loader.days[epoch]).features.tables)
        self.loader.rows = rows_of(self.cascade)
        self.loader.set_epoch(epoch)

    def _grow(self, rows: Mapping[str, int]) -> None:
        try:
            grow_cascade(self.cascade, rows, self.optimizer)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def state_dict(self) -> State:
        """Return everything that decides the next batches, and the sizes of the tables."""
        return {**super().state_dict(), "rows": rows_of(self.cascade)}

    def load_state_dict(self, state: State) -> None:
        """Restore the state of a learner, whose tables may have grown."""
        self._grow(state["rows"])
        super().load_state_dict(state)

    def validate(self, on_batch: Callable[[int], None] = lambda count: None) -> dict[str, float]:
        """Measure the current day."""
        log = self.log.limited_to(self.loader.rows)
        loader = measuring_loader(log, self.config, [self.loader.day], self._first_days)
        relevant: list[Tensor] = []
        measured = measure(
            self.cascade,
            loader,
            self.config,
            on_batch=on_batch,
            on_scored=lambda loaded, _: relevant.append(ground_truth(loaded, self.config.relevant).sum(-1)),
        )
        self.measured = measured.values, measured.chance
        self.lists = {
            LENGTH: float(measured.ranked.double().mean()),
            RELEVANT: float(torch.cat(relevant).double().mean()),
        }
        return means_of(measured.values)

    def line(self, position: Position) -> DayEpoch:
        """Return the line of a day for ``metrics.jsonl``."""
        epoch = super().line(position)
        return DayEpoch(**{name: getattr(epoch, name) for name in Epoch.__slots__}, day=self.loader.day)

    def table(self) -> pa.Table:
        """Return the metrics of the current day, one row per impression; metadata describe its lists."""
        requests = self.log.days[self.loader.day].table()["request"].cast(pa.string())
        described = {name: str(value) for name, value in self.lists.items()}
        return values_table(requests, *self.measured).replace_schema_metadata(described)


class _DayLoop(Loop["Impressions"]):
    """A training loop whose epochs are days, and which can be continued with more days."""

    open_ended = True
    learner: _DayLearner

    def __init__(
        self,
        learner: _DayLearner,
        days: Mapping[str, str],
        *,
        weights: bool,
        on_day: OnDay,
        **callbacks: Unpack[Callbacks],
    ) -> None:
        data = {f"day {day}": found for day, found in days.items()}
        super().__init__(learner, learner.config, learner.out, data=data, **callbacks)
        self.epochs = len(days)
        self._days, self._weights, self._on_day = list(days), weights, on_day
        self._config = _resumable_settings(learner.config)

    def run(self) -> runs.TrainResult:
        """Finish the last day, then train on the remaining days."""
        place = self.position
        if place.lines and not place.batch:  # otherwise the next day has begun, and the last one was finished
            self._end_day(place.lines[-1]["day"])
        return super().run()

    def _train(self) -> None:
        """Measure a day, unless this was done before, and train on its remaining batches."""
        self.learner.begin_day(self.position.epoch - 1)
        if not self.position.batch:
            self._measure()
        super()._train()

    def _measure(self) -> None:
        place = self.position
        place.validation = {}
        if place.epoch == 1:  # there are no weights before the first day
            return
        self.progress(runs.Step(place.epoch, self.epochs, 0, len(self.learner.loader), {}, {}, 0.0))
        place.validation = self.learner.validate(self._pause)
        self._lap()
        with self.writing():
            file = values_file(self.out, self.learner.loader.day)
            make_directory(file.parent)
            with new_content(file) as temporary, open_new(temporary) as opened:
                pq.write_table(self.learner.table(), opened)

    def _pause(self, count: int) -> None:
        """Stop between two measured batches; the day is measured again when the run continues."""
        if self.stop():
            raise runs.Stopped(self._stopped())

    def _check_trained(self) -> None:
        """Warn of a day that trained nothing, or a stage not at all. It is an error if no day trained that stage."""
        place = self.position
        what = self.learner.find_untrained(place, new=True)
        if not what:
            return
        if place.epoch == self.epochs and 0 in place.gradients.values():
            raise self.learner.untrained(what, place)
        self.on_notice(f"{self.learner.loader.day}: {self.learner.untrained(what, place)}")

    def _validate(self) -> None:
        """End a day: write a checkpoint. Its weights are measured on the next day."""
        self._end_epoch(self.position.validation.get(self.learner.metric, math.nan), is_best=True)
        self.save()
        self._end_day(self.learner.loader.day)

    def _end_day(self, day: str) -> None:
        """Write the weights after a day, and call `on_day`, which does not change random numbers of the run."""
        if self._weights:
            with self.writing():
                file = weights_file(self.out, day)
                make_directory(file.parent)
                self.learner.save(file, self.position)
                replace_link(file.with_name(LATEST), file.name)
        with torch.random.fork_rng(devices=[]):
            self._on_day(day)
        self._lap_began = time.perf_counter()  # the callback does not count as training time

    def _check_data(self, state: State) -> None:
        """Raise if a checkpoint was trained on other days; additional days are allowed."""
        place = state["position"]
        begun = [line["day"] for line in place["lines"]]
        if place["batch"]:
            begun.append(state["loader"]["day"])
        now = self._days[: len(begun)]
        if len(now) < len(begun):
            raise ConfigError(
                f"data.days: {self.out} was trained on {len(begun)} days, up to {begun[-1]}, found {len(now)}; a "
                "stream is continued with all of its days"
            )
        for before, day in zip(begun, now, strict=True):
            if before != day:
                raise ConfigError(f"data.days: {self.out} was trained on {before} where the stream now has {day}")
        names = [f"day {day}" for day in begun]
        runs.check_same_data(self.out, *({name: data[name] for name in names} for data in (state["data"], self._data)))
        if has_schedule(self.learner.config.objective.options) and len(state["data"]) != len(self._data):
            raise ConfigError(
                f"objective: a temperature follows a schedule over the {len(state['data'])} days with which {self.out} "
                f"was started, now there are {len(self._data)}. Use one value, or start another stream"
            )

    def _check_best(self) -> None:
        """Do nothing: the best weights are the last, which are written again."""

    def _where(self) -> str:
        place = self.position
        if place.epoch > self.epochs:
            return f"after {self._days[-1]}"
        if not place.batch:
            return f"before {self._days[place.epoch - 1]}"
        day, loader = self._days[place.epoch - 1], self.learner.loader
        batches = f" of {len(loader)}" if loader.has_chosen(place.epoch - 1) else ""  # unknown before the day is opened
        return f"after batch {place.batch}{batches} of {day}"


LEDGER = "days.json"
_STOP_INTERVAL = 0.2  # seconds between calls of `stop` while waiting


class DayLedger:
    """Days of a stream: those recorded in its directory, and new days of the log.

    Args:
        directory: directory of the stream.
        log: path of the log.
        days: names and ranges of days that belong to the stream.
        follows: whether the stream waits for new days.
        on_notice: receives messages about days that are left out.
    """

    def __init__(
        self, directory: Path, log: Path, days: Sequence[str], *, follows: bool, on_notice: Callable[[str], None]
    ) -> None:
        self._file, self._chosen, self._follows, self._on_notice = directory / LEDGER, days, follows, on_notice
        self.recorded: dict[str, dict[str, Any]] = {}  # checksum and first time of each day
        self._noticed: set[str] = set()
        suffix = "; it is read again when it changes" if follows else "; it is left out"
        self._watcher = LogWatcher(log, lambda why: on_notice(why + suffix))

    @property
    def days(self) -> dict[str, str]:
        """Checksum of each recorded day, in order."""
        return {day: about["sha256"] for day, about in self.recorded.items()}

    def load(self) -> None:
        """Read the days that an earlier process recorded."""
        if self._file.is_file():
            self.recorded = runs.read_json(self._file)

    def open_log(self) -> ImpressionLog:
        """Open the log with its present days."""
        try:
            log = self._watcher.scan(trusted=self.recorded)
        except ValueError as error:
            raise ConfigError(f"data.{error}") from None
        for day, why in self._watcher.refused.items():
            if day in log.manifest["days"] and day not in self.recorded and not self._follows:
                raise ConfigError(f"data.path: {why}")
        return log

    def record(self, log: ImpressionLog) -> bool:
        """Record the new days of a log after those known before; return whether there are any."""
        new = self.new_days(log)
        if new:
            self.recorded |= {day.name: {key: day.manifest[key] for key in ("sha256", "first_time")} for day in new}
            write_file(self._file, json.dumps(self.recorded, indent=1) + "\n")
        return bool(new)

    def wait(self, seconds: float, stop: Callable[[], int]) -> ImpressionLog:
        """Look for new days at intervals of `seconds`, record them and return the log.

        Raises:
            Stopped: `stop` returned a true value.
        """
        while True:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if stop():
                    last = list(self.recorded)[-1]
                    raise runs.Stopped(f"stopped after {last}; the same command with --resume continues")
                time.sleep(min(_STOP_INTERVAL, max(0.0, until - time.monotonic())))
            log = self.open_log()
            if self.record(log):
                return log

    def new_days(self, log: ImpressionLog) -> list[Day]:
        """Return the days of a log that belong to the stream and are not recorded yet."""
        # with recorded days that the log no longer has, so that a range may begin with one of them
        recorded = {name: Day(name, log.path / "days" / name, about) for name, about in self.recorded.items()}
        days = sorted((recorded | log.days).values(), key=lambda day: day.manifest["first_time"])
        try:
            chosen = replace(log, days={day.name: day for day in days}).choose(self._chosen)
        except ValueError as error:
            raise ConfigError(f"data.{error}") from None
        for day, after in pairwise(chosen):
            if after.manifest["first_time"] < day.manifest["first_time"]:
                raise ConfigError(
                    f"data.days: found {day.name} before {after.name}, which is older; expected days in order of time, "
                    "in which a stream trains on them"
                )
        new = []
        for day in chosen:
            known = self.recorded.get(day.name)
            newer = [name for name, one in self.recorded.items() if one["first_time"] > day.manifest["first_time"]]
            if known is None and newer:
                self._notice_once(f"{day.name} arrived after {newer[-1]}, which is newer, and is left out")
            elif known is None:
                new.append(day)
            elif known["sha256"] != day.manifest["sha256"]:
                self._notice_once(f"{day.path} has changed since the stream accepted it; no day is trained on twice")
        return new

    def _notice_once(self, text: str) -> None:
        if text not in self._noticed:
            self._noticed.add(text)
            self._on_notice(text)
