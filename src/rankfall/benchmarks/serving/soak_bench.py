"""A service under load for minutes, while bundles are swapped and bad ones offered, and then under far too much.

Requests arrive at random times at a share of the largest rate. Every answer is held against that of the bundle whose
name it bears, which was asked beforehand without a service. Requests may wait for long there, so that a slow moment of
the machine is no reason to refuse any. At the end three times the largest rate arrives at a service that has the usual
deadline: then every request has to be answered or refused by it, and the service has to be well right after.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.benchmarks.serving.answer_check import expected_answers, model_name, wrong_strangers
from rankfall.benchmarks.serving.bench_bundles import bad_bundles, requests_like_examples
from rankfall.benchmarks.serving.load_generator import Job, drive, started, write_bodies
from rankfall.benchmarks.serving.serve_bench import Spread, spread
from rankfall.benchmarks.serving.service_process import Watch, running
from rankfall.serving import Bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rankfall.benchmarks.serving.load_generator import Outcome
    from rankfall.benchmarks.serving.service_process import Service

    OnStep = Callable[[str, int, int | None], None]  # what is done, how much of it, and of how much

POOL = 2048  # different requests
CLIENTS = 32  # with whom the largest rate is found
OVERLOAD = 3.0  # times the largest rate
PATIENT = ("--deadline", "10000", "--queue", "4096")  # the service under load: its limits are not to be reached
DEADLINE = 1000.0  # milliseconds, of the service under overload
SLOWEST = 5000.0  # milliseconds of an answer under load, beyond which it was no slow moment
SLACK = 250.0  # milliseconds beyond it within which an answer has to be there
REFUSED = (503, 504)
SENT = 0.9  # of what is due, below which the generator did not keep up
TIED = 0.01  # of the answers; more of them are no chance
GROWTH = 0.01  # of memory, a minute, that passes as flat
_MINUTE = 60.0
_SETTLING = 2 * _MINUTE  # until memory counts
_LONG_ENOUGH = 3 * _MINUTE  # after that, to tell


@dataclass(frozen=True)
class Settings:
    """How long, and how hard."""

    minutes: float = 10.0
    every: float = 20.0  # seconds between two swaps
    rate: float = 0.8  # of the largest
    finding: float = 20.0  # seconds in which that is found
    overload: float = 10.0  # seconds of too many requests


@dataclass
class Swaps:
    """What was offered to the service, and what came of it."""

    taken: int = 0
    seconds: list[float] = field(default_factory=list)  # of those taken
    refused: dict[str, int] = field(default_factory=dict)  # bad bundles, by what is wrong with them
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LogAppender:
    """Megabytes of memory once it has settled, and those by which a straight line through them rises a minute."""

    megabytes: float  # on average
    per_minute: float
    error: float  # the standard error of that

    @property
    def is_real(self) -> bool:
        """Whether it grows by more than passes as flat, and by more than chance."""
        return self.per_minute - 2 * self.error > GROWTH * self.megabytes


@dataclass(frozen=True)
class Memory:
    """That of the service, with and without the files that are mapped."""

    whole: LogAppender
    without_files: LogAppender
    flat: bool


@dataclass(frozen=True)
class Overload:
    """Far more requests than the service can answer."""

    requests_per_second: float
    sent_per_second: float  # really
    sent_share: float  # of what was due
    unsent: int  # requests that never found a free connection, whose number has a limit
    codes: dict[int, int]
    slowest_ms: float  # until a request had any answer, with any wait for a connection
    answered_ms: Spread
    late_ms: float  # by which the generator itself was behind with the 99th of 100 requests
    verdicts: dict[str, int]  # of the answers
    well_after: bool


@dataclass(frozen=True)
class Report:
    """Everything that happened."""

    bundles: list[str]
    largest_rate: float
    requests_per_second: float
    sent_per_second: float  # really
    sent_share: float  # of what was due
    minutes: float
    asked: int
    unsent: int  # requests that never found a free connection, whose number has a limit
    answered: int
    refused: int  # with 503 or 504
    failed: int  # any other code, and lost connections
    verdicts: dict[str, int]  # of the answers
    by_model: dict[str, int]
    call_ms: Spread
    slowest_ms: float  # until a request had any answer, with any wait for a connection
    late_ms: float  # by which the generator itself was behind with the 99th of 100 requests
    swaps: Swaps
    memory: Memory | None  # None: this system does not tell, or it was too short
    overload: Overload
    problems: list[str]  # what must not be


def soak(first: Path, second: Path, settings: Settings, *, on_step: OnStep) -> Report:
    """Put a service of two bundles under load, and find out whether all was right."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        models = _expect(first, second, directory, on_step)
        bad = bad_bundles(second, directory)
        plan = _Plan({models[0]: first, models[1]: second}, bad, settings, directory)
        with running(first, PATIENT) as plan.service:
            largest = plan.largest_rate(on_step)
            outcome, memory = plan.under_load(settings.rate * largest, on_step)
        with running(first, ["--deadline", str(round(DEADLINE))]) as plan.service:
            on_step("overload", 0, None)
            overload = plan.overload(OVERLOAD * largest)
        return _report(settings, models, largest, outcome, plan.swaps, memory, overload)


def _expect(first: Path, second: Path, directory: Path, on_step: OnStep) -> list[str]:
    """Write requests and what both bundles answer to them; gives the names of the bundles."""
    bundles = [Bundle.load(first), Bundle.load(second)]
    requests = requests_like_examples(bundles[0], POOL)
    write_bodies(directory / "bodies.jsonl", requests)
    expected: dict[str, Any] = {}
    done = 0

    def on_requests(count: int) -> None:
        nonlocal done
        on_step("asking the bundles themselves", done := done + count, 2 * POOL)

    for bundle in bundles:
        name = model_name(bundle.manifest)
        if name in expected:
            raise ValueError(f"bundle: {second} is the same as {first}, expected two different ones")
        expected[name] = expected_answers(bundle, requests, on_requests)
    (directory / "expected.json").write_text(json.dumps(expected))
    return list(expected)


class _Plan:
    """What is done to a service."""

    service: Service

    def __init__(self, models: dict[str, Path], bad: dict[str, Path], settings: Settings, directory: Path) -> None:
        self._models = models  # paths by name; the first is served
        self._bad = cycle(bad.items())
        self._settings = settings
        self._bodies, self._expected = str(directory / "bodies.jsonl"), str(directory / "expected.json")
        self.swaps = Swaps()

    def largest_rate(self, on_step: OnStep) -> float:
        """How much the service answers if somebody always waits; answers are looked at as they will be later."""
        on_step("finding the largest rate", 0, None)
        seconds = self._settings.finding
        found = drive(self._job(seconds, clients=CLIENTS, warm_up=seconds / 4, expected=self._expected))
        if not found.in_time:
            raise OSError(f"the service answered nothing: {found.quoted}")
        return found.in_time / found.seconds

    def under_load(self, rate: float, on_step: OnStep) -> tuple[Outcome, Memory | None]:
        """Ask at a rate, swap bundles and offer bad ones in between."""
        with Watch(self.service) as watch:
            outcome = self._ask_and_swap(rate, on_step)
        self._look_up(outcome)
        return outcome, _memory(watch.samples, self._settings)

    def _ask_and_swap(self, rate: float, on_step: OnStep) -> Outcome:
        seconds = self._settings.minutes * _MINUTE
        job = self._job(seconds, rate=rate, expected=self._expected)
        begin = time.perf_counter()
        with started(job) as wait:
            for due, act in self._acts(seconds):
                on_step(f"{rate:,.0f} requests/s, {self.swaps.taken} swaps", round(due), round(seconds))
                if (outcome := wait(max(0.0, begin + due - time.perf_counter()))) is not None:
                    break
                act()
            else:
                outcome = wait(None)
        assert outcome is not None  # the end has come
        return outcome

    def _acts(self, seconds: float) -> Iterator[tuple[float, Callable[[], None]]]:
        """When to do what: a swap at every interval, a bad bundle in the middle of it."""
        half = self._settings.every / 2
        for number in range(1, int(seconds / half)):
            yield number * half, self._offer_bad if number % 2 else self._swap

    def _swap(self) -> None:
        before, after = self._models
        begin = time.perf_counter()
        code, answer = self.service.ask("POST", "/reload", {"path": str(self._models[after].resolve())})
        if code == 200 and (answer["model"], answer["before"]) == (after, before):
            self.swaps.taken += 1
            self.swaps.seconds.append(time.perf_counter() - begin)
            self._models = {after: self._models[after], before: self._models[before]}
        else:
            self.swaps.problems.append(f"a swap from {before} to {after} was answered {code}: {answer}")

    def _offer_bad(self) -> None:
        what, path = next(self._bad)
        code, answer = self.service.ask("POST", "/reload", {"path": str(path.resolve())})
        served = self.service.ask("GET", "/model")[1]["bundles"]["main"]["model"]
        if code == 409 and served == next(iter(self._models)):
            self.swaps.refused[what] = self.swaps.refused.get(what, 0) + 1
        else:
            self.swaps.problems.append(f"a bundle with {what} was answered {code}: {answer}; {served} is served")

    def overload(self, rate: float) -> Overload:
        """Ask at a rate that is far too high."""
        outcome = drive(self._job(self._settings.overload, rate=rate, expected=self._expected))
        well_after = self._is_well()
        self._look_up(outcome)
        return Overload(
            requests_per_second=rate,
            sent_per_second=outcome.sent / outcome.seconds,
            sent_share=outcome.sent_share,
            unsent=outcome.unsent,
            codes=outcome.codes(),
            slowest_ms=outcome.slowest,
            answered_ms=spread(outcome.latency.get(200, [])),
            late_ms=spread(outcome.late).p99,
            verdicts=outcome.verdicts,
            well_after=well_after,
        )

    def _look_up(self, outcome: Outcome) -> None:
        """Ask the bundles about the items that nobody expected: with other scores than their own they are wrong."""
        if not outcome.strangers:
            return
        bundles = {name: Bundle.load(path) for name, path in self._models.items()}
        requests = [json.loads(line) for line in Path(self._bodies).read_text().splitlines()]
        for why in wrong_strangers(bundles, requests, outcome.strangers):
            outcome.verdicts["tied"] -= 1
            outcome.verdicts["wrong"] = outcome.verdicts.get("wrong", 0) + 1
            outcome.quote(f"wrong, {why}")

    def _is_well(self) -> bool:
        """Whether a request is answered as if nothing had been."""
        asked = drive(self._job(0.5, clients=1))
        codes = [self.service.ask("GET", path)[0] for path in ("/health", "/ready")]
        return codes == [200, 200] and set(asked.codes()) == {200}

    def _job(self, seconds: float, **how: Any) -> Job:
        return Job(self.service.port, self._bodies, seconds, **how)


# --- what came of it ----------------------------------------------------------------------------------------------


def _report(
    settings: Settings,
    models: list[str],
    largest: float,
    outcome: Outcome,
    swaps: Swaps,
    memory: Memory | None,
    overload: Overload,
) -> Report:
    codes = Counter(outcome.codes())
    refused = sum(codes[code] for code in REFUSED)
    report = Report(
        bundles=models,
        largest_rate=largest,
        requests_per_second=settings.rate * largest,
        sent_per_second=outcome.sent / outcome.seconds,
        sent_share=outcome.sent_share,
        minutes=settings.minutes,
        asked=outcome.asked,
        unsent=outcome.unsent,
        answered=codes[200],
        refused=refused,
        failed=codes.total() - codes[200] - refused,
        verdicts=outcome.verdicts,
        by_model=outcome.models,
        call_ms=spread(outcome.latency.get(200, [])),
        slowest_ms=outcome.slowest,
        late_ms=spread(outcome.late).p99,
        swaps=swaps,
        memory=memory,
        overload=overload,
        problems=[],
    )
    report.problems.extend([*_problems(report), *(f"such as {text}" for text in outcome.quoted)])
    return report


def _problems(report: Report) -> list[str]:
    """What must not be, in sentences."""
    overload, memory = report.overload, report.memory
    verdicts = Counter(report.verdicts) + Counter(overload.verdicts)
    allowed = {200, *REFUSED}
    others = {code: count for code, count in overload.codes.items() if code not in allowed}
    found = {
        f"the generator {_shortfall(report)}, so that load was not shown": _shortfall(report),
        f"the generator {_shortfall(overload)}, so that overload was not shown": _shortfall(overload),
        f"{report.failed:,} requests failed": report.failed,
        f"{report.refused:,} requests were refused": report.refused,
        f"{verdicts['wrong']:,} answers were wrong": verdicts["wrong"],
        f"{verdicts['tied']:,} of {verdicts.total():,} answers had other items of equal scores": (
            verdicts["tied"] > TIED * verdicts.total()
        ),
        "no request was answered": not report.answered,
        f"under load an answer took {report.slowest_ms:,.0f} ms": report.slowest_ms > SLOWEST,
        "memory grew": memory is not None and not memory.flat,
        f"under overload requests had the codes {others}": others,
        f"under overload an answer took {overload.slowest_ms:,.0f} ms": overload.slowest_ms > DEADLINE + SLACK,
        "after the overload the service was not well": not overload.well_after,
    }
    return [text for text, is_one in found.items() if is_one] + report.swaps.problems


def _shortfall(load: Report | Overload) -> str:
    """What the generator could not do, which is no fault of the service; nothing if it did all."""
    if load.unsent:
        return f"could not send {load.unsent:,} requests"
    if load.sent_share < SENT:
        return f"could send only {load.sent_per_second:,.0f} of {load.requests_per_second:,.0f} requests/s"
    return ""


def _memory(samples: Sequence[tuple[float, float, float]], settings: Settings) -> Memory | None:
    """What the samples say, if there are enough of them after the first minutes."""
    settled = [sample for sample in samples if sample[0] >= _SETTLING]
    if not settled or settled[-1][0] - settled[0][0] < _LONG_ENOUGH:
        return None
    # Swaps make steps, which have nothing to do with chance: a point of the line is what both bundles need on average.
    points: dict[int, list[tuple[float, float, float]]] = {}
    for sample in settled:
        points.setdefault(int((sample[0] - settled[0][0]) / (2 * settings.every)), []).append(sample)
    means = [tuple(map(statistics.fmean, zip(*of, strict=True))) for of in points.values()]
    if len(means) < 3:
        return None
    seconds, whole, without = zip(*means, strict=True)
    found = _growth(seconds, whole), _growth(seconds, without)
    return Memory(*found, flat=not any(one.is_real for one in found))


def _growth(seconds: Sequence[float], megabytes: Sequence[float]) -> LogAppender:
    """The straight line through points by least squares."""
    slope, intercept = statistics.linear_regression(seconds, megabytes)
    rest = sum((one - intercept - slope * at) ** 2 for at, one in zip(seconds, megabytes, strict=True))
    middle = statistics.fmean(seconds)
    error = math.sqrt(rest / (len(seconds) - 2) / sum((at - middle) ** 2 for at in seconds))
    return LogAppender(statistics.fmean(megabytes), slope * _MINUTE, error * _MINUTE)
