"""Training on one day after another: each is measured by what was learned before it, then learned from, once.

The epochs of such a run are days, in the order in which they came. It can go on whenever there are more of them, so its
last checkpoints stay. Besides what the directories of all runs have:

================================  ====================================================================================
``days/2024-01-14.parquet``       of every impression of a day what the weights before it got, and chance
``days/2024-01-14.safetensors``   the weights after that day, if they are asked for
``days/latest.safetensors``       a link to the newest of these
================================  ====================================================================================

The best weights of a stream are the last, and both names lead to them.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rankfall._files import new_content
from rankfall._settings import ConfigError
from rankfall.data.impressions.compatibility import check_meaning, meaning_of
from rankfall.data.impressions.loader import FirstDays
from rankfall.data.impressions.log import open_day
from rankfall.training.build_cascade import check_kept, check_quotas, with_depths
from rankfall.training.config.component_checks import has_schedule
from rankfall.training.config.overrides import dump_absolute
from rankfall.training.config.sections import Role
from rankfall.training.loop import Loop, train_in
from rankfall.training.per_list_table import values_table
from rankfall.training.run_directory import (
    CONFIG,
    DAYS,
    LOG,
    Step,
    Stopped,
    check_free,
    check_same,
    check_same_data,
    read_config,
    repeatable,
)
from rankfall.training.train_cascade import (
    CascadeLearner,
    Epoch,
    build_objective,
    means_of,
    measure,
    measuring_loader,
    training_loader,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rankfall.data import ImpressionLoader, ImpressionLog
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.build_cascade import BuiltObjective
    from rankfall.training.checkpoint import State
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.learner import Position
    from rankfall.training.loop import OnNotice, Progress
    from rankfall.training.run_directory import TrainResult

    OnDay = Callable[[str], None]

LATEST = "latest.safetensors"


@dataclass(frozen=True, slots=True)
class DayEpoch(Epoch):
    """What is known after a day; `validation` is of that day, by the weights before it."""

    day: str


def stream(
    config: CascadeConfig,
    out: Path,
    log: ImpressionLog,
    days: Mapping[str, str],
    *,
    resume: bool = False,
    weights: bool = False,
    first_days: FirstDays | None = None,
    progress: Progress = lambda step: None,
    on_day: OnDay = lambda day: None,
    on_notice: OnNotice = warnings.warn,
    stop: Callable[[], int] = lambda: False,
) -> TrainResult:
    """Learn from days one after the other, measure each before that, and leave a run directory.

    `days` are all of the stream, in their order and with the checksums of their files; the log must have those that
    the run has not learned from yet. With `resume` it goes on where it was, as if it had never been interrupted.
    `weights` keeps those after every day. Runs may share what `first_days` knows of the log. `progress` hears of every
    batch, and `stop` is asked after each whether to end early. `on_day` hears of every day that was learned from, once
    a checkpoint has it, and of the last one again if the run goes on from there: whoever was killed meanwhile has not
    done what there is to do after a day.
    """
    config, first_days = with_depths(config, log.spec.stage_names), first_days or FirstDays()
    # negatives are drawn from what the stream has seen, whatever else the log has
    log = replace(log, days={day: log.days[day] for day in days if day in log.days})
    _check_pool(config, log, days)
    built = build_objective(log, config)
    check_free(out, force=False, resume=resume)
    if resume and (out / CONFIG).is_file():
        check_begun(config, out, log)
    else:
        there = [day for day in days if day in log.days]
        check_quotas(config, measuring_loader(log, config, there[1:] or there, first_days))
        check_kept(built[0], training_loader(log, config, there, first_days=first_days))
    with repeatable(config.training.seed, config.training.threads):
        try:
            learner = _DayLearner(config, out, log, days, first_days, built)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        loop = _DayLoop(learner, config, out, days=days, weights=weights, on_day=on_day, progress=progress, stop=stop)
        files = {CONFIG: dump_absolute(config), LOG: json.dumps(meaning_of(log), indent=1) + "\n"}
        return train_in(loop, files, resume=resume, on_notice=on_notice)


def check_begun(config: CascadeConfig, out: Path, log: ImpressionLog) -> None:
    """Refuse to go on with a run by another configuration, or with a log whose ids and numbers mean other things."""
    if (out / CONFIG).is_file():
        before = read_config(out)
        check_same(out, _told(before), _told(with_depths(config, log.spec.stage_names)))
        _check_log(out, log)


def _check_pool(config: CascadeConfig, log: ImpressionLog, days: Iterable[str]) -> None:
    """Refuse to draw items without knowing all days on which they came up: others would be drawn than before."""
    data = config.data
    drawn = (data.negatives and data.negatives_from == "items") or data.length is not None
    gone = [day for day in days if day not in log.days]
    if drawn and gone:
        name = "negatives" if data.negatives else "length"
        raise ConfigError(
            f"data.{name}: items are drawn from those of all days of the stream so far, but {log.path} does not have "
            f"{', '.join(gone)} any more; put them back, or begin another stream"
        )


def _told(config: TrainConfig) -> dict[str, Any]:
    """What a run must be told again to go on, but for the days: there may be more of them."""
    told = config.model_dump(mode="json")
    told["data"] = {key: value for key, value in told["data"].items() if key not in get_args(Role)}
    return told


def values_file(run: Path, day: str) -> Path:
    """Where the values of a day's impressions stand in the directory of a run."""
    return run / DAYS / f"{day}.parquet"


def weights_file(run: Path, day: str) -> Path:
    """Where the weights after a day stand in the directory of a run, if they are kept."""
    return run / DAYS / f"{day}.safetensors"


# --- one day at a time --------------------------------------------------------------------------------------------


class _OneDay:
    """The batches of one day at a time: the epochs of a stream, every one in the order of a first epoch."""

    def __init__(
        self, log: ImpressionLog, config: CascadeConfig, days: Mapping[str, str], first_days: FirstDays
    ) -> None:
        self._log, self._config, self._days, self._checksums = log, config, list(days), days
        self._first_days = first_days
        self._number = -1
        self._loader: ImpressionLoader | None = None
        self._state: Mapping[str, Any] = {}

    @property
    def day(self) -> str:
        """The one that was chosen last."""
        return self._days[self._number]

    @property
    def loader(self) -> ImpressionLoader:
        """That of the day."""
        assert self._loader is not None  # a day is chosen before it is read
        return self._loader

    def has_chosen(self, epoch: int) -> bool:
        """Whether that is the day."""
        return self._loader is not None and self._number == epoch

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Impressions]:
        return iter(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Choose a day by its number, from 0 on."""
        if self.has_chosen(epoch):
            return
        self._number, self._loader = epoch, None
        self._check_day()
        self._loader = training_loader(self._log, self._config, [self.day], first_days=self._first_days)
        if self._state.get("day") == self.day:
            self._loader.load_state_dict(self._state["loader"])

    def _check_day(self) -> None:
        """Refuse a day that is another by now: the log was looked at before the days before it were learned from."""
        try:
            (listed,) = self._log.choose([self.day])
            day = open_day(listed.path, self.day)
        except ValueError as error:
            raise ConfigError(f"data.{error}") from None
        for found in (listed, day):
            if found.manifest.get("sha256") != self._checksums[self.day]:
                raise ConfigError(f"data.path: {day.path} has changed since the stream took it up")

    def state_dict(self) -> dict[str, Any]:
        """The day and the position in it."""
        return {"day": self.day, "loader": self.loader.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position, once its day is chosen: if that is done with, the log may not have it any more."""
        self._state = state

    def requests(self, batch: Impressions) -> pa.ChunkedArray:
        """The ids of the requests of a batch."""
        return self.loader.requests(batch)


class _DayLearner(CascadeLearner):
    """A cascade that learns from one day after the other."""

    loader: _OneDay

    def __init__(
        self,
        config: CascadeConfig,
        out: Path,
        log: ImpressionLog,
        days: Mapping[str, str],
        first_days: FirstDays,
        built: BuiltObjective,
    ) -> None:
        super().__init__(config, out, log.features, built)
        self.log, self._first_days = log, first_days
        self.loader = _OneDay(log, config, days, first_days)
        self.batches = _batches(log, config, days) if has_schedule(config.objective.options) else 0
        self.measured: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}

    def validate(self, on_batch: Callable[[int], None] = lambda count: None) -> dict[str, float]:
        """Measure the day that comes next."""
        loader = measuring_loader(self.log, self.config, [self.loader.day], self._first_days)
        self.measured = measure(self.cascade, loader, self.config, on_batch=on_batch)
        return means_of(self.measured[0])

    def line(self, position: Position) -> DayEpoch:
        """What is known after a day."""
        epoch = super().line(position)
        return DayEpoch(**{name: getattr(epoch, name) for name in Epoch.__slots__}, day=self.loader.day)

    def table(self) -> pa.Table:
        """What was measured, impression by impression."""
        requests = self.log.days[self.loader.day].table()["request"].cast(pa.string())
        return values_table(requests, *self.measured)


def _batches(log: ImpressionLog, config: CascadeConfig, days: Iterable[str]) -> int:
    return sum(-(-len(day) // config.training.batch) for day in log.choose(days))


class _DayLoop(Loop["Impressions"]):
    """A loop whose epochs are days, and which can go on when there are more of them."""

    open_ended = True
    learner: _DayLearner

    def __init__(
        self,
        learner: _DayLearner,
        config: CascadeConfig,
        out: Path,
        *,
        days: Mapping[str, str],
        weights: bool,
        on_day: OnDay,
        progress: Progress,
        stop: Callable[[], int],
    ) -> None:
        data = {f"day {day}": found for day, found in days.items()}
        super().__init__(learner, config, out, data=data, progress=progress, stop=stop)
        self.epochs = len(days)
        self._days, self._weights, self._on_day = list(days), weights, on_day
        self._config = _told(config)

    def run(self) -> TrainResult:
        """Do what is left to do after the last day, then learn from the days that are left."""
        place = self.position
        if place.lines and not place.batch:  # otherwise the next one has begun, and all of that was done
            self._end_day(place.lines[-1]["day"])
        return super().run()

    def _train(self) -> None:
        """Measure a day, unless that was done, and take the batches of it that are left."""
        self.learner.loader.set_epoch(self.position.epoch - 1)
        if not self.position.batch:
            self._measure()
        super()._train()

    def _measure(self) -> None:
        place = self.position
        place.validation = {}
        if place.epoch == 1:  # nothing was learned before it
            return
        self.progress(Step(place.epoch, self.epochs, 0, len(self.learner.loader), {}, {}, 0.0))
        place.validation = self.learner.validate(self._pause)
        self._lap()
        with self.writing():
            file = values_file(self.out, self.learner.loader.day)
            file.parent.mkdir(exist_ok=True)
            with new_content(file) as temporary:
                pq.write_table(self.learner.table(), temporary)

    def _pause(self, count: int) -> None:
        """End early between two batches that are measured; the day is measured again."""
        if self.stop():
            raise Stopped(self._stopped())

    def _validate(self) -> None:
        """Keep what a day has come to; how good it is will be measured on the next."""
        self._end_epoch(self.position.validation.get(self.learner.metric, math.nan), is_best=True)
        self.save()
        self._end_day(self.learner.loader.day)

    def _end_day(self, day: str) -> None:
        """Keep the weights after a day, and let others do what they do with them, which changes nothing here."""
        if self._weights:
            with self.writing():
                self._keep_weights(weights_file(self.out, day))
        with torch.random.fork_rng(devices=[]):
            self._on_day(day)
        self._lap_began = time.perf_counter()  # it was no work of this run

    def _keep_weights(self, file: Path) -> None:
        file.parent.mkdir(exist_ok=True)
        self.learner.save(file, self.position)
        with new_content(file.with_name(LATEST)) as temporary:
            temporary.symlink_to(file.name)

    def _check_data(self, state: State) -> None:
        """Refuse a checkpoint that learned from other days than these; there may be more of them."""
        place = state["position"]
        begun = [line["day"] for line in place["lines"]]
        if place["batch"]:
            begun.append(state["loader"]["day"])
        now = self._days[: len(begun)]
        if len(now) < len(begun):
            raise ConfigError(
                f"data.days: {self.out} has learned from {len(begun)} days, up to {begun[-1]}, found {len(now)}; a "
                "stream goes on with all of its days and maybe more"
            )
        for before, day in zip(begun, now, strict=True):
            if before != day:
                raise ConfigError(f"data.days: {self.out} learned from {before} where the stream now has {day}")
        names = [f"day {day}" for day in begun]
        check_same_data(self.out, *({name: data[name] for name in names} for data in (state["data"], self._data)))
        if has_schedule(self.learner.config.objective.options) and len(state["data"]) != len(self._data):
            raise ConfigError(
                f"objective: a temperature follows a schedule over the {len(state['data'])} days with which {self.out} "
                f"was begun, now there are {len(self._data)}. Give it one value, or begin another stream"
            )

    def _check_best(self) -> None:
        """The best weights are the last, which are written again."""

    def _where(self) -> str:
        place = self.position
        if place.epoch > self.epochs:
            return f"after {self._days[-1]}"
        if not place.batch:
            return f"before {self._days[place.epoch - 1]}"
        day, loader = self._days[place.epoch - 1], self.learner.loader
        batches = f" of {len(loader)}" if loader.has_chosen(place.epoch - 1) else ""  # unknown before it is opened
        return f"after batch {place.batch}{batches} of {day}"


def _check_log(run: Path, log: ImpressionLog) -> None:
    """Refuse a log whose ids or numbers mean something else than those that the run began with."""
    try:
        trained = json.loads((run / LOG).read_text())
    except (FileNotFoundError, ValueError):
        return  # killed before it was written, and so before anything was learned
    before, now = (
        {one["embedding"]: one["rows"] for one in of["features"]}
        for of in (trained["features"], log.features.to_json())
    )
    for table, rows in before.items():
        if table is not None and now.get(table, rows) != rows:
            raise ConfigError(
                f"data.path: {run} was begun with {rows:,} rows of {table}, {log.path} now has {now[table]:,}. Tables "
                "have the size they began with: days are added with the ids of the first, or a new stream is begun"
            )
    check_meaning(
        trained, log, used={*trained["rules"], *(f"sequence.{one['name']}" for one in trained["features"]["sequences"])}
    )
