"""The days of a loop: which model answered, and how good its answers were."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zlib import crc32

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._config import to_yaml
from rankfall._errors import RankfallError
from rankfall.simulation.live_users import LiveUsers, item_rows, loop_spec, past_rows, request_rows
from rankfall.simulation.platform import Platform, day_name
from rankfall.simulation.presets import LOOP
from rankfall.simulation.world import NO_ITEM
from rankfall.storage.disk import make_directory, open_new
from rankfall.storage.files import new_content, parse_json, remove_directory, write_file
from rankfall.storage.manifests import has_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.table import Table

    from rankfall.simulation.live_users import LivePortion, LiveReactions
    from rankfall.simulation.platform import ServedPortion


PLATFORM = "platform"  # its own cascade, in the first days


@dataclass
class LoopDay:
    """A day: requests, their answers and reactions.

    Attributes:
        day: Its date.
        models: Answered requests by model.
        recall: Of each request: the share of the truly best items that was answered; empty if it is not known.
        reward: Of each request: the number of effective views.
        samples: Sampled requests of the joined day, None while it is open.
        events: Events of the joined day.
    """

    day: str
    models: Counter[str] = field(default_factory=Counter)
    recall: list[float] = field(default_factory=list)
    reward: list[int] = field(default_factory=list)
    samples: int | None = None
    events: int | None = None

    @property
    def model(self) -> str:
        """The model that answered most requests."""
        return self.models.most_common(1)[0][0]

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the day."""
        return {
            "day": self.day,
            "model": self.model,
            "models": dict(self.models),
            "requests": len(self.reward),
            "samples": self.samples,
            "events": self.events,
            "joint_recall": float(np.mean(self.recall)) if self.recall else None,
            "reward": float(np.mean(self.reward)),
        }


class LoopDays:
    """The days of a loop so far.

    Args:
        files: The files of the loop.
    """

    def __init__(self, files: LoopFiles) -> None:
        self._files = files
        self._days: dict[str, LoopDay] = {}

    def add_past(self, portion: ServedPortion) -> None:
        """Add requests that the platform's own cascade served."""
        day = self._days.setdefault(portion.day, LoopDay(portion.day))
        day.models[PLATFORM] += len(portion.items)
        day.reward += portion.feedback["effective_view"].sum(axis=1).tolist()

    def add(self, portion: LivePortion, answers: Answers, reactions: LiveReactions) -> None:
        """Add requests that the service answered."""
        name = day_name(portion.day)
        day = self._days.setdefault(name, LoopDay(name))
        day.models.update(answers.models)
        day.recall += reactions.recall.tolist()
        day.reward += reactions.reward.tolist()

    def update(self) -> None:
        """Read what the joiner reports about days that it has closed."""
        for name, day in self._days.items():
            path = self._files.joined / name / "report.json"
            if day.samples is None and path.is_file():
                report = parse_json(path.read_bytes())
                day.samples, day.events = report["sampled"], report["events"]

    def to_json(self, last: int) -> dict[str, Any]:
        """Return the figures of the days up to the one of that number."""
        return {"days": [day.to_json() for day in self.upto(last)]}

    def save(self, last: int) -> None:
        """Write the figures of the days up to the one of that number."""
        write_file(self._files.result, json.dumps(self.to_json(last), indent=1) + "\n")

    def table(self, last: int) -> Table:
        """Return a table of the days up to the one of that number."""
        from rich.table import Table

        table = Table()
        table.add_column("day", style="cyan")
        table.add_column("model of")
        for name in ("requests", "samples", "events", "joint recall", "reward"):
            table.add_column(name, justify="right")
        for day in self.upto(last):
            recall = f"{np.mean(day.recall):.3f}" if day.recall else ""
            counts = [f"{count:,}" if count is not None else "" for count in (day.samples, day.events)]
            table.add_row(day.day, day.model, f"{len(day.reward):,}", *counts, recall, f"{np.mean(day.reward):.3f}")
        return table

    def upto(self, last: int) -> list[LoopDay]:
        """Return the days up to the one of that number."""
        return [day for name, day in self._days.items() if name <= day_name(last)]


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
            raise RankfallError(f"out: {self.directory} is not empty and has no loop; name another directory")
        stored = parse_json(self.manifest.read_bytes())["settings"]
        for name, value in asdict(settings).items():
            if stored[name] != value:
                raise RankfallError(
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
            raise RankfallError(f"out: {self.directory} is not empty and has no loop; name another directory")

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


CONNECTIONS = 4
TIMEOUT_SECONDS = 60.0
TRIES, PAUSE_SECONDS = 20, 0.5  # of a call that the service refuses for the moment
DEADLINE_MS = 30_000  # users of a demonstration are patient: other programs may use the processors
TWICE, LATER = 0.03, 0.02  # shares of events that are sent twice, and of requests whose events are sent later
_BUSY = (503, 504)


class ServiceError(OSError):
    """The service did not answer, or refused a call."""


class ServedModel(NamedTuple):
    """The name of a model in answers, and the day after which it was bundled."""

    model: str
    day: str


class HttpUsers:
    """A client of a service on this machine.

    Args:
        port: The port of the service.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="users")
        self._local = threading.local()
        self._opened: list[http.client.HTTPConnection] = []

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close all connections."""
        self._threads.shutdown(cancel_futures=True)
        for connection in self._opened:
            connection.close()

    def rank(self, bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send requests to ``POST /rank``, and return their answers in the same order."""
        late = ({**body, "deadline": DEADLINE_MS} for body in bodies)
        return list(self._threads.map(lambda body: self.call("POST", "/rank", body), late))

    def report(self, calls: Iterable[Sequence[dict[str, Any]]]) -> int:
        """Send the events of each call to ``POST /events``, and return the number of events that were accepted."""
        bodies = ({"events": events} for events in calls if events)
        answers = self._threads.map(lambda body: self.call("POST", "/events", body), bodies)
        return sum(answer["accepted"] for answer in answers)

    def served(self) -> ServedModel | None:
        """Return the model that is served; None while the service starts."""
        try:
            status, text = self._send("GET", "/model", None)
        except (OSError, http.client.HTTPException):
            return None
        main = json.loads(text)["bundles"]["main"] if status == 200 else None
        return None if main is None else ServedModel(main["model"], main["path"])

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a call and return the content of its answer; a busy service is asked again.

        Raises:
            ServiceError: The service does not answer, or refuses the call.
        """
        content = None if body is None else json.dumps(body)
        for tries in range(TRIES):
            if tries:
                time.sleep(PAUSE_SECONDS)
            try:
                status, text = self._send(method, path, content)
            except (OSError, http.client.HTTPException) as error:
                if tries == TRIES - 1:
                    raise ServiceError(f"{method} {path}: the service does not answer ({error})") from None
                continue
            if status == 200:
                answer: dict[str, Any] = json.loads(text)
                return answer
            if status not in _BUSY:
                break
        raise ServiceError(f"{method} {path}: the service answered {status}: {text[:500]}")

    def _send(self, method: str, path: str, content: str | None) -> tuple[int, str]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS)
            self._local.connection = connection
            self._opened.append(connection)
        try:
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            connection.close()  # the next call of this thread opens it again
            raise


def with_repetitions(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events of which some occur twice, as from clients that did not receive the first answer."""
    return [event for event in events for _ in range(2 if _share(event["id"]) < TWICE else 1)]


def is_late(request: str) -> bool:
    """Return whether the events of a request are sent later than those of others."""
    return _share(request) < LATER


def _share(text: str) -> float:
    """Return a number from 0 to 1 that depends on the text alone."""
    return crc32(text.encode()) / 2**32
