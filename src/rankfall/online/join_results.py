"""What joining did with the records of each day."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rankfall._config import Result
from rankfall._tables import Tables


@dataclass(frozen=True)
class DayReport(Result):
    """What became of the records of a day (``report.json``).

    Records are counted when their day is closed. Late records belong to earlier days; they are counted in the report of
    the day that is closed after they came.
    """

    day: str
    limit: int
    """The last moment at which a record was in time, in milliseconds since 1970."""
    requests: int
    """Requests of the day, sampled or not."""
    sampled: int
    items: int
    """Rows: items of sampled requests."""
    events: int
    """Events that count for these rows."""
    repeated_requests: int
    """Records with the id of a request that was received before."""
    repeated_events: int
    unsampled_events: int
    """Events of requests that were not sampled."""
    unused_events: dict[str, int]
    """Events of kinds that the spec of the log does not name."""
    late_requests: dict[str, int]
    """By their day."""
    late_events: dict[str, int]
    apart: dict[str, int]
    """Requests and events that are set apart, by reason; ``apart.parquet`` has them."""
    apart_because: dict[str, list[str]]
    """The first ones of each reason."""
    capped: int
    """Sums of events that were reduced to the bounds of their kind."""
    checked: int
    """Requests that were encoded and scored again."""
    models: dict[str, int]
    """Sampled requests by the model that answered them."""

    def warning(self) -> str | None:
        """Return a warning if more than half of the sampled requests are set apart."""
        apart = {reason: count for reason, count in self.apart.items() if reason.startswith("request: ")}
        total = sum(apart.values())
        if 2 * total <= self.sampled:
            return None
        reason = max(apart, key=lambda name: apart[name])
        return (
            f"{self.day} is closed without {total:,} of its {self.sampled:,} sampled requests, which are set "
            f"apart, mostly {apart[reason]:,} for {reason!r}, such as {self.apart_because[reason][0]}"
        )


@dataclass(frozen=True, repr=False)
class JoinResult(Tables, Result):
    """The joined days of a log."""

    log: str
    closed: list[str]
    """Days that were closed by this call."""
    days: list[DayReport]
    """All days that were joined so far."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Days with records that are not closed yet, and why."""
    late: dict[str, int] = field(default_factory=dict)
    """Requests that came too late for their day and that no report counts yet, by day."""

    def of_call(self, closed: list[str]) -> JoinResult:
        """Return the result with all days that one call has closed."""
        return replace(self, closed=closed)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the days of this call has to know."""
        return [text for report in self.days if report.day in self.closed and (text := report.warning())]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return one row per day."""
        return {"days": [self._row(report) for report in self.days]}

    def _row(self, report: DayReport) -> dict[str, Any]:
        late = {
            name: sum(getattr(one, f"late_{name}").get(report.day, 0) for one in self.days)
            for name in ("requests", "events")
        }
        return {
            "day": report.day,
            "requests": report.requests,
            "sampled": report.sampled,
            "items": report.items,
            "events": report.events,
            "repeated": report.repeated_requests + report.repeated_events,
            "late": sum(late.values()),
            "set apart": sum(report.apart.values()),
            "checked": report.checked,
        }
