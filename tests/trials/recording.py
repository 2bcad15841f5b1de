"""The cost of recording under load, and its correctness.

Two services of one bundle run at the same time, one of which records. Requests arrive at random times at a share of the
largest rate, in windows: to the service that records nothing, to the one that records samples, and to the same one
while clients also report events. The windows alternate, so that a change of the machine affects all of them; ratios
are medians over the rounds. Every answer is compared with that of the bundle, and at the end every sample and every
acknowledged event with what is on disk.

Run it as ``PYTHONPATH=tests python -m trials.recording [BUNDLE]`` in a clone. The exit code is 1
if an answer or a sample was wrong, a request failed, or a sample or an event was dropped or lost.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import BUNDLES, given_bundles, parse_settings, print_report, show_step
from benchmarks.answer_check import AnswerChecker
from benchmarks.load_client import started
from benchmarks.services import END_SECONDS, CheckedLoad, MemoryMonitor, Spread, median_ratio, running, spread
from rankfall.serving.bundle_files import read_manifest
from rankfall.serving.recording.record_segments import EVENTS as EVENT_RECORDS
from rankfall.serving.recording.record_segments import SAMPLES as SAMPLE_RECORDS
from rankfall.serving.recording.record_segments import recover, segments
from trials.attack import Honest, Memory, honest, memory_of
from trials.soak import PATIENT, SENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.load_client import Outcome
    from benchmarks.services import MedianRatio, OnStep, Service

OFF, SAMPLES, EVENTS = KINDS = ("off", "samples", "samples and events")
_SHORT = 0.2  # duration of the windows without events, compared with those with events
_WARM_UP = 0.1  # additional share of a window, not measured
RECORDS = {"--samples": {"type": Path, "help": "directory in which the service records"}}
_QUOTED = 5
_QUOTED_SAMPLES = 3
_SETTLING = 0.5  # seconds in which the service writes what it has answered
_COUNTER = re.compile(r'^(rankfall_(?:samples|events|sink_errors)_total)\{\w+="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Settings:
    """Duration and load of a trial."""

    minutes: float = 10.0  # with samples and events
    window: float = 60.0  # seconds of a window with samples and events
    rate: float = 0.6  # of requests, as a share of the largest rate
    events: float = 0.2  # events per answered request
    finding: float = 20.0  # seconds for finding the largest rate

    @property
    def rounds(self) -> int:
        """Number of windows of each kind."""
        return max(1, round(self.minutes * 60 / self.window))


@dataclass(frozen=True)
class Measured:
    """The windows of one kind."""

    kind: str
    requests: Honest
    cpu_ms: float | None  # per request, of all processes of the service; None if the system is not Linux
    p50_ratio: MedianRatio | None  # to windows without recording, over the rounds
    p99_ratio: MedianRatio | None
    cpu_ratio: MedianRatio | None


@dataclass
class RecordCheck:
    """What the records have, compared with what the load generator knows."""

    samples: int = 0
    events: int = 0
    megabytes: float = 0.0
    repeated: int = 0  # samples of requests that have another one
    missing: int = 0  # answered requests without a sample
    unanswered: int = 0  # samples of requests that the generator got no answer to
    wrong: int = 0  # samples with another answer than the bundle's, or with an item twice
    lost_events: int = 0  # acknowledged events that are not recorded
    quoted: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """All results of a trial."""

    bundle: str
    items: int
    largest_rate: float
    requests_per_second: float
    measured: list[Measured]
    events_acknowledged: int
    events_refused: dict[str, int]  # by status code
    event_ms: Spread  # until an event was acknowledged
    counters: dict[str, float]  # of the service that records, by metric and label
    records: RecordCheck
    memory: dict[str, Memory | None]  # of the services
    load_average: list[float]  # of the machine, at the end of each window
    problems: list[str] = field(default_factory=list)


def measure(path: Path, settings: Settings, *, on_step: OnStep, samples: Path | None = None) -> Report:
    """Measure what recording costs a service under load.

    Args:
        path: Directory of the bundle.
        settings: Duration and load.
        on_step: Called with the name of the step, the completed and the total amount.
        samples: Directory in which the service records; default a temporary one.
    """
    with tempfile.TemporaryDirectory() as scratch:
        load = CheckedLoad([path], Path(scratch), on_step=on_step)
        records = samples or Path(scratch) / "records"
        plan = _Plan(load, settings, on_step)
        with ExitStack() as stack:
            services = {
                OFF: stack.enter_context(running(path, PATIENT)),
                SAMPLES: stack.enter_context(
                    running(path, [*PATIENT, "--samples", str(records), "--time-window", "0"])
                ),
            }
            on_step("finding the largest rate", 0, None)
            largest = load.largest_rate(services[OFF].port, settings.finding)
            monitors = {kind: stack.enter_context(MemoryMonitor(service)) for kind, service in services.items()}
            plan.run(services, largest * settings.rate)
            counters = _counters(services[SAMPLES])
            services[SAMPLES].end(END_SECONDS)  # completes the segments
        on_step("checking the records", 0, None)
        outcomes = [*plan.outcomes[SAMPLES], *plan.outcomes[EVENTS]]
        answered = [request for outcome in outcomes for request in outcome.answered]
        found = check_records(records, load, answered, [event for one in outcomes for event in one.events])
        memory = {kind: memory_of(monitor.samples) for kind, monitor in monitors.items()}
        return _report(path, largest, plan, counters, found, memory)


class _Plan:
    """The windows of a trial, and what was found."""

    def __init__(self, load: CheckedLoad, settings: Settings, on_step: OnStep) -> None:
        self.settings = settings
        self.outcomes: dict[str, list[Outcome]] = {kind: [] for kind in KINDS}
        self.cpu_ms: dict[str, list[float]] = {kind: [] for kind in KINDS}  # per request, by window
        self.load_average: list[float] = []
        self.rate = 0.0
        self._load = load
        self._on_step = on_step

    def run(self, services: dict[str, Service], rate: float) -> None:
        """Run all windows."""
        self.rate = rate
        for number in range(self.settings.rounds):
            for kind in KINDS:
                self._window(kind, services.get(kind, services[SAMPLES]), number)

    def _window(self, kind: str, service: Service, number: int) -> None:
        seconds = self.settings.window * (1.0 if kind == EVENTS else _SHORT)
        events = {OFF: None, SAMPLES: 0.0, EVENTS: self.settings.events}[kind]
        job = self._load.job(
            service.port, seconds, rate=self.rate, warm_up=seconds * _WARM_UP, seed=number, events=events
        )
        before = service.cpu_seconds()
        with started(job) as wait:
            while (outcome := wait(1.0)) is None:
                self._on_step(f"{self.rate:,.0f} requests/s, {kind}", number, self.settings.rounds)
        after = service.cpu_seconds()
        if before is not None and after is not None:  # known for every window on Linux, otherwise for none
            self.cpu_ms[kind].append((after - before) * 1e3 / max(1, outcome.asked))
        self._load.verify_unexpected(outcome)
        self.outcomes[kind].append(outcome)
        self.load_average.append(os.getloadavg()[0])


def _counters(service: Service) -> dict[str, float]:
    """Return the counters of records by metric and label, such as ``samples dropped``, when all records are written."""
    names = {"rankfall_samples_total": "samples", "rankfall_events_total": "events"}
    before, found = None, list[tuple[str, str, str]]()
    while found != before:
        if before is not None:
            time.sleep(_SETTLING)
        before, found = found, _COUNTER.findall(service.call("GET", "/metrics")[1])
    return {f"{names.get(name, 'errors of')} {label}": float(value) for name, label, value in found}


# --- the records ------------------------------------------------------------------------------------------------


def check_records(directory: Path, load: CheckedLoad, answered: Sequence[str], events: Sequence[str]) -> RecordCheck:
    """Compare the records of a service that has ended with what clients know.

    Args:
        directory: The directory of the records.
        load: The requests and their expected answers.
        answered: Ids of the requests that were answered.
        events: Ids of the events that were acknowledged.
    """
    for kind in (SAMPLE_RECORDS, EVENT_RECORDS):
        recover(directory / kind)
    found = RecordCheck()
    found.megabytes = sum(path.stat().st_size for path in directory.rglob("*.arrows")) / 1e6
    checker = _SampleChecker(load, found)
    requests: Counter[str] = Counter()
    for batch in _batches(directory / SAMPLE_RECORDS):
        requests.update(batch["request"].to_pylist())
        checker.check(batch)
    recorded = Counter[str]()
    for batch in _batches(directory / EVENT_RECORDS):
        recorded.update(batch["id"].to_pylist())
    found.samples, found.events = requests.total(), recorded.total()
    found.repeated = requests.total() - len(requests)
    found.missing = len(set(answered) - requests.keys())
    found.unanswered = len(requests.keys() - set(answered))
    found.lost_events = len(set(events) - recorded.keys())
    return found


def _batches(directory: Path) -> Iterator[pa.RecordBatch]:
    for segment in segments(directory):
        yield from segment.batches()


class _SampleChecker:
    """Checks that samples have the expected answers of their bodies."""

    def __init__(self, load: CheckedLoad, found: RecordCheck) -> None:
        self._found = found
        self._checker = AnswerChecker(json.loads(load.expected.read_text()))
        self._places: dict[str, list[int]] = defaultdict(list)  # by body; requests may be equal
        for place, request in enumerate(load.requests):
            self._places[orjson.dumps(request, option=orjson.OPT_SORT_KEYS).decode()].append(place)

    def check(self, batch: pa.RecordBatch) -> None:
        sampled = batch.filter(batch["sampled"])
        if not len(sampled):
            return
        last = pc.max(pc.list_flatten(sampled["stage"])).as_py()
        for row in sampled.select(["request", "model", "body", "item", "stage", "score"]).to_pylist():
            why = self._difference(row, last)
            if why:
                self._found.wrong += 1
                if len(self._found.quoted) < _QUOTED_SAMPLES:
                    self._found.quoted.append(f"sample of {row['request']}: {why[:300]}")

    def _difference(self, row: dict[str, Any], last: int) -> str:
        if len(set(row["item"])) != len(row["item"]):
            return "an item occurs twice"
        places = self._places.get(row["body"])
        if places is None:
            return f"no request has the body {row['body']}"
        shown = [number for number, stage in enumerate(row["stage"]) if stage == last]
        ids, scores = [row["item"][number] for number in shown], [row["score"][number] for number in shown]
        verdict, why = self._checker(places[0], {"model": row["model"], "ids": ids, "scores": scores})
        return why if verdict == "wrong" else ""


# --- the report ---------------------------------------------------------------------------------------------------


def _report(
    path: Path,
    largest: float,
    plan: _Plan,
    counters: dict[str, float],
    records: RecordCheck,
    memory: dict[str, Memory | None],
) -> Report:
    events = plan.outcomes[EVENTS]
    refused: dict[str, int] = {}
    for outcome in events:
        for code, count in outcome.events_refused.items():
            refused[code] = refused.get(code, 0) + count
    report = Report(
        bundle=path.name,
        items=int(read_manifest(path)["items"]["count"]),
        largest_rate=largest,
        requests_per_second=plan.rate,
        measured=[_measured(kind, plan) for kind in KINDS],
        events_acknowledged=sum(len(outcome.events) for outcome in events),
        events_refused=refused,
        event_ms=spread([one for outcome in events for one in outcome.event_ms]),
        counters=counters,
        records=records,
        memory=memory,
        load_average=plan.load_average,
    )
    report.problems.extend(_problems(report))
    if report.problems:
        quoted = [text for outcomes in plan.outcomes.values() for outcome in outcomes for text in outcome.quoted]
        report.problems.extend(f"for example {text}" for text in [*records.quoted, *quoted][:_QUOTED])
    return report


def _measured(kind: str, plan: _Plan) -> Measured:
    own, off = ([spread(outcome.latency.get(200, [])) for outcome in plan.outcomes[one]] for one in (kind, OFF))
    cpu = plan.cpu_ms[kind]
    is_off = kind == OFF
    return Measured(
        kind=kind,
        requests=honest(plan.outcomes[kind]),
        cpu_ms=statistics.median(cpu) if cpu else None,
        p50_ratio=None if is_off else median_ratio([one.p50 for one in own], [one.p50 for one in off]),
        p99_ratio=None if is_off else median_ratio([one.p99 for one in own], [one.p99 for one in off]),
        cpu_ratio=None if is_off or not cpu else median_ratio(cpu, plan.cpu_ms[OFF]),
    )


def _problems(report: Report) -> list[str]:
    """Return the violated requirements as sentences."""
    records, counters = report.records, report.counters
    dropped, refused = counters.get("samples dropped", 0.0), sum(report.events_refused.values())
    found = {
        f"{records.wrong:,} samples were wrong": records.wrong,
        f"{records.repeated:,} requests were recorded twice": records.repeated,
        f"{dropped:,.0f} samples were dropped": dropped,
        f"{records.missing:,} samples are missing, but {dropped:,.0f} were counted as dropped": (
            records.missing != dropped
        ),
        f"{records.unanswered:,} samples are of requests that were not answered": records.unanswered,
        f"{refused:,} events were not acknowledged: {report.events_refused}": refused,
        f"{records.lost_events:,} acknowledged events were lost": records.lost_events,
        "no event was acknowledged": not report.events_acknowledged,
    }
    for one in report.measured:
        of = one.requests
        found |= {
            f"{one.kind}: {of.verdicts.get('wrong', 0):,} answers were wrong": of.verdicts.get("wrong", 0),
            f"{one.kind}: {of.failed + of.refused:,} of {of.asked:,} requests were not answered": (
                of.failed + of.refused
            ),
            f"{one.kind}: the generator sent only {of.sent_share:.0%} of the requests in time": of.sent_share < SENT,
        }
    return [text for text, is_one in found.items() if is_one]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trial."""
    settings, given = parse_settings(__doc__, Settings, arguments, BUNDLES | RECORDS)
    settings = replace(settings, window=min(settings.window, settings.minutes * 60))
    with given_bundles(given, 1) as (bundle,):
        return print_report(measure(bundle, settings, on_step=show_step, samples=given.samples))


if __name__ == "__main__":
    sys.exit(main())
