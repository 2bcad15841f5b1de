"""Join recorded samples and events to a log, one closed day after the other.

A day D of a log has the sampled requests with a time in D that were received until its limit, the end of D plus
`wait`, and their events until then. It is closed when a record was received after the limit and no open segment can
have an earlier one. So the content of a day depends on the records only, not on when they are joined.

The steps of a day:

1. :mod:`window_records` lists the segments and what they hold, splits the records since the last limit into parts by
   request, and decides for each part which records count.
2. :mod:`day_rows` writes rows from samples, bodies (:mod:`request_columns`) and events, and :mod:`parity` scores some
   of them again.
3. The rows are appended to the log as ``rankfall prepare rows --append`` does it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.impressions.encoding import Encoding, hash_values
from rankfall.data.impressions.log import JOINED, ImpressionLog, is_log
from rankfall.data.sources.problems import without_hint
from rankfall.data.sources.rows.log_state import StoredState
from rankfall.data.sources.rows.prepare_rows import append_rows, check_same_spec, prepare_rows
from rankfall.data.sources.rows.row_files import RowFile, find_row_files
from rankfall.online.day_rows import DayRows, make_layout
from rankfall.online.join_results import DayReport, JoinResult
from rankfall.online.join_state import (
    APART,
    NEXT,
    REPORT,
    SERVED,
    JoinDirectory,
    LogDays,
    UsedSegments,
    day_name,
    save_used,
)
from rankfall.online.parity import DifferenceError, ParityCheck
from rankfall.online.request_columns import DAY, HASH, BundleFinder, ServedRequests, write_served
from rankfall.online.window_records import (
    CARRIED,
    UNKNOWN_REQUEST,
    DayCounts,
    Quarantine,
    RecordedSegments,
    Window,
    WindowSpool,
    match_records,
)
from rankfall.serving.recording.record_segments import EVENTS, SAMPLES
from rankfall.storage.disk import open_new
from rankfall.storage.files import about_file, scratch_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.prepare_rows import OnProgress
    from rankfall.online.day_rows import RowLayout
    from rankfall.online.join_state import JoinState
    from rankfall.online.request_columns import Hashes


SLACK = 5_000  # milliseconds after a limit until the workers of a service have written what they received before it
MOST_NAMED = 1_000  # kinds of events, and days of late records, that a report names
LEAST_GROWTH = 1_000  # new values that any vocabulary may get on one day


@dataclass(frozen=True)
class JoinSettings:
    """How records are joined.

    Attributes:
        items: A table of items, which has the columns that the spec names.
        users: A table of users.
        wait: How long records are waited for after the end of their day, in milliseconds.
        close: Close all days that have samples, whether all of their records have been received or not.
        parity: The share of the requests that are encoded and scored again.
        parity_limit: The share of these that may differ. They are set apart; more of them stop the day.
        user_requests: The largest number of requests of one user and day; further ones are set apart.
        bundles: Where bundles are searched that are not at their place any more.
        grow: Let vocabularies of the log grow by new values; see :func:`append_rows`.
        grow_limit: The largest number of new values of a vocabulary and day, the most frequent ones. By default a tenth
            of the vocabulary, and at least 1,000.
    """

    items: Path | None = None
    users: Path | None = None
    wait: int = 3_600_000
    close: bool = False
    parity: float = 0.01
    parity_limit: float = 0.01
    user_requests: int = 1_000
    bundles: Path | None = None
    grow: bool = False
    grow_limit: int | None = None


class Joiner:
    """Joins the records of a directory to a log. Enter its context to lock the log.

    Args:
        directory: The directory that a service writes.
        log: The log, which may not exist yet.
        spec: Its spec.
        settings: How records are joined.
        on_progress: Receives the name of a step, the amount done, and its total if it is known.
        on_notice: Receives notices.

    Raises:
        ValueError: If the directory has no records, or the log another spec.
    """

    def __init__(
        self,
        directory: Path,
        log: Path,
        spec: Spec,
        settings: JoinSettings,
        *,
        on_progress: OnProgress = lambda step, done, total: None,
        on_notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._log, self._spec, self._settings = log, spec, settings
        self._on_progress, self._on_notice = on_progress, on_notice
        self._days = LogDays(spec.zone, settings.wait)
        self._recorded = RecordedSegments(directory, self._days, on_notice)
        self._beside = JoinDirectory(log)
        if is_log(log):
            check_same_spec(spec, ImpressionLog.load(log))
        self._layout()  # raises what is wrong with the spec and the tables

    def locked(self) -> Any:
        """Return a context in which no other process joins records to the log."""
        return self._beside.locked()

    def close_days(self, on_day: Callable[[DayReport], None] = lambda report: None) -> JoinResult:
        """Close all days whose records have been received.

        Args:
            on_day: Receives the report of each day after the log has it.

        Raises:
            ParityError: If training and serving differ.
            ValueError: If a segment is damaged, or rows do not fit the log.
        """
        state = self._beside.load()
        used = state.used
        self._recorded.forget(set(used.finished))
        self._recorded.refresh(set(used.finished), lambda done, of: self._on_progress("reading new segments", done, of))
        if self._settings.close and self._recorded.first_open is not None:
            raise RankfallError(
                "close: a service still writes segments; stop it first, or wait until it has written them"
            )
        closed = []
        while (day := self._next(state)) is not None:
            report = self._close(day, state)
            on_day(report)
            closed.append(report.day)
            state = self._beside.load()
        waiting = {day_name(of): self._why_open(of) or "an earlier day is open" for of in self._open_days(state)}
        late: Counter[int] = Counter()  # by day: requests that came too late after the last day was closed
        for content in self._recorded.contents():
            if content.segment.path.name not in state.used.finished | state.used.begun:
                late += content.late
        late_days = {day_name(of): late[of] for of in sorted(late)}
        return JoinResult(str(self._log), closed, state.reports, waiting, late_days)

    # --- which days ---------------------------------------------------------------------------------------------------

    def _open_days(self, state: JoinState) -> list[int]:
        """Return the days that have samples in time and are not closed, in order."""
        first: dict[int, int] = {}
        for content in self._recorded.contents():
            for day, received in content.days.items():
                first[day] = min(first.get(day, received), received)
        days = {day for day, received in first.items() if received <= self._days.limit(day)}
        if SAMPLES in state.carried:
            carried = pl.read_ipc(state.carried[SAMPLES].read_bytes(), columns=["time", "received", "sampled"])
            days.update(self._days.of(carried.filter("sampled")).tolist())
        return sorted(day for day in days if state.last is None or day > state.last)

    def _next(self, state: JoinState) -> int | None:
        """Return the next day to close, None if there is none."""
        days = self._open_days(state)
        return days[0] if days and self._why_open(days[0]) is None else None

    def _why_open(self, day: int) -> str | None:
        """Return why a day cannot be closed yet, None if it can."""
        if day_name(day) > str(datetime.now(ZoneInfo(self._spec.zone)).date()):
            return "it is in the future"
        if self._settings.close:
            return None
        limit, is_open = self._days.limit(day), self._recorded.first_open
        last = max((content.last for content in self._recorded.contents()), default=0)
        if last <= limit + SLACK:
            return "no record was received after its limit"
        if is_open is not None and is_open <= limit:
            return "a segment is open that may have records of it"
        return None

    # --- one day --------------------------------------------------------------------------------------------------

    def _layout(self) -> RowLayout:
        log = ImpressionLog.load(self._log) if is_log(self._log) else None
        types = None if log is None else StoredState(log).types()
        layout = make_layout(self._spec, types, self._settings.items, self._settings.users)
        return layout if log is None else replace(layout, scalings=Encoding.of_log(log).scalings)

    def _close(self, day: int, state: JoinState) -> DayReport:
        """Join the records of a day and add it to the log; nothing remains of it after an error."""
        depths = {depth for content in self._recorded.contents() for depth in content.depths}
        stages = self._spec.stage_names
        if not is_log(self._log) and depths and len(stages) - 1 not in depths:
            raise RankfallError(
                f"spec: stages: found {', '.join(stages)}, expected {max(depths) + 1} stages: one for the items that "
                "each stage of the bundle dropped, and one for those that were answered"
            )
        different: dict[str, tuple[str, str]] = {}
        while (report := self._try_to_close(day, state, different)) is None:
            pass
        return report

    def _try_to_close(self, day: int, state: JoinState, different: dict[str, tuple[str, str]]) -> DayReport | None:
        """Join the records of a day without requests that differ; return None after such requests have been found."""
        settings, layout = self._settings, self._layout()
        finder, apart = BundleFinder(settings.bundles), Quarantine()
        # whether the log is, or will be, fitted to a joined day instead of the data of the models
        fitted = ImpressionLog.load(self._log).manifest["about"]["fit_days"] if is_log(self._log) else None
        is_new = fitted is None or any(report.day in fitted for report in state.reports)
        parity = ParityCheck(settings.parity, settings.parity_limit, finder, layout, is_new=is_new)
        parity.different, parity.is_repeated = different, bool(different)
        with scratch_directory("joining", self._beside.path) as scratch:
            logged = self._logged_requests(state)
            of_user = settings.user_requests
            counts = DayCounts()
            rows = DayRows(layout, scratch / "rows", apart, finder, parity, counts, logged=logged, of_user=of_user)
            with self._beside.closing() as directory:
                report = self._join(day, state, scratch, rows, counts, directory)
            try:
                parity.check_limit()
                if report.items:
                    self._add(rows, report)
            except DifferenceError:
                self._beside.abandon()
                parity.check_limit()
                self._note_not_compared(parity)
                return None
            except BaseException:
                if not (is_log(self._log) and report.day in ImpressionLog.load(self._log).days):
                    self._beside.abandon()
                raise
        self._note_not_compared(parity)
        return report

    def _note_not_compared(self, parity: ParityCheck) -> None:
        if parity.not_compared:
            names = ", ".join(sorted(parity.not_compared))
            self._on_notice(f"parity: {names} were not compared, as {self._log} is fitted to other data than the model")

    def _join(
        self, day: int, state: JoinState, scratch: Path, rows: DayRows, counts: DayCounts, directory: Path
    ) -> DayReport:
        """Write the rows of a day, and beside the log what the next days need."""
        name, limit, used = day_name(day), self._days.limit(day), state.used
        contents = [one for one in self._recorded.contents() if one.segment.path.name not in used.finished]
        window = Window(contents, state.limit, limit, used.begun, state.carried)
        total, done = window.count(SAMPLES) + window.count(EVENTS), 0

        def on_records(count: int) -> None:
            nonlocal done
            done += count
            self._on_progress(f"{name}: reading records", done, max(total, done))

        spool = WindowSpool(window, self._days, scratch / "spool", on_records)
        earlier, served = ServedRequests(state.served), []
        with ExitStack() as files:
            writers: dict[str, Any] = {}  # of the records of later days
            for number, part in enumerate(spool, start=1):
                matched = match_records(part, day, limit, earlier, counts)
                rows.write(matched)
                served.append(matched.served)
                rows.apart.add(UNKNOWN_REQUEST, matched.unknown)
                for kind, frame in ((SAMPLES, matched.later_samples), (EVENTS, matched.later_events)):
                    if not len(frame):
                        continue
                    # as a service writes them; `sampled` is a column of events only here
                    added = [HASH, DAY, CARRIED, *(["sampled"] if kind == EVENTS else [])]
                    table = frame.drop(added, strict=False).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
                    if kind not in writers:
                        file = files.enter_context(open_new(directory / NEXT / f"{kind}.arrow"))
                        writers[kind] = files.enter_context(pa.ipc.new_file(file, table.schema))
                    writers[kind].write_table(table)
                self._on_progress(f"{name}: joining parts", number, len(spool))
            write_served(directory / SERVED, served)
        rows.apart.write(directory / APART)
        read = [content for content in contents if content.first <= limit]
        finished = {content.segment.path.name for content in read if content.last <= limit}
        begun = {content.segment.path.name for content in read if content.last > limit}
        kept = self._recorded.existing(used.finished)
        save_used(directory, UsedSegments(frozenset(finished | kept), frozenset(begun)))
        report = DayReport(
            day=name,
            limit=limit,
            **vars(counts)
            | {
                "unused_events": _most_common(counts.unused_events),
                "late_requests": _most_common({day_name(day): of for day, of in counts.late_requests.items()}),
                "late_events": _most_common({day_name(day): of for day, of in counts.late_events.items()}),
                "models": dict(sorted(counts.models.items())),
            },
            apart=dict(sorted(rows.apart.counts.items())),
            apart_because=dict(sorted(rows.apart.examples.items())),
            checked=rows.parity.checked,
        )
        report.save(directory / REPORT)
        return report

    def _logged_requests(self, state: JoinState) -> Hashes:
        """Return the hashes of requests of days that were not joined, sorted. Others are known as served ones."""
        if not is_log(self._log):
            return np.empty(0, np.uint64)
        joined = {report.day for report in state.reports}
        days = [day for name, day in ImpressionLog.load(self._log).days.items() if name not in joined]
        ids = [pl.Series(pl.from_arrow(day.table()["request"])).cast(pl.String) for day in days]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *map(hash_values, ids)]))

    def _add(self, rows: DayRows, report: DayReport) -> None:
        """Add the rows of a day to the log, or make a log of them."""
        label = f"{JOINED}{report.day}"
        sources = [RowFile(file.path, label=label) for file in find_row_files([rows.log])]
        tables = rows.layout.tables
        about = {
            "sources": [{"path": label, "rows": report.items, "requests": report.sampled, "events": report.events}],
            "tables": {
                origin: [about_file(file.path) for file in find_row_files([tables[origin]])] for origin in tables
            },
        }
        options: dict[str, Any] = {
            "items": tables.get("items"),
            "users": tables.get("users"),
            "requests": rows.requests,
            "about": about,
            "inspect": rows.parity.inspect,
            "on_progress": lambda step, done, total: self._on_progress(f"{report.day}: {step}", done, total),
        }
        try:
            if is_log(self._log):
                append_rows(sources, self._log, grow=self._settings.grow, most_new=self._most_new, **options)
            else:
                prepare_rows(sources, self._log, self._spec, **options)
        except ValueError as error:
            raise RankfallError(without_hint(error)) from None

    def _most_new(self, table: str, known: int, found: int) -> int:
        """Return how many of the new values of a vocabulary get ids on one day."""
        limit = self._settings.grow_limit
        most = max(LEAST_GROWTH, known // 10) if limit is None else limit
        if found > most:
            self._on_notice(f"grow: {table} has {found:,} new values; {most:,} got ids, the most frequent ones")
        return most


def _most_common(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the largest counts by name, and the sum of the others: clients choose kinds, and days of late requests."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    rest = sum(count for _, count in ordered[MOST_NAMED:])
    return dict(sorted(ordered[:MOST_NAMED])) | ({"(others)": rest} if rest else {})
