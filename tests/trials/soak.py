"""A service under load for minutes while bundles are replaced, then under overload.

Requests arrive at random times at a share of the largest rate. Every answer is compared with the answer of the bundle
that it names, which was computed beforehand without a service. Deadline and queue are so large that a slow moment of
the machine does not cause refusals. In between, invalid bundles are offered. At the end, three times the largest rate
arrives at a service with the default deadline. Every request then has to be answered or refused by its deadline, and
the service has to work normally directly afterwards.

Run it as ``PYTHONPATH=tests python -m trials.soak [BUNDLE OTHER]`` in a clone. The exit code is 1 if a request
failed or was refused, an answer was wrong, a valid bundle was refused or an invalid one taken, memory grew, a request
under overload was neither answered nor refused by its deadline, or the load client could not send all requests.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import BUNDLES, given_bundles, parse_settings, print_report, show_step
from benchmarks.load_client import drive, started
from benchmarks.services import CheckedLoad, MemoryMonitor, Spread, running, spread
from trials.invalid_bundles import bad_bundles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.load_client import Outcome
    from benchmarks.services import OnStep, Service

OVERLOAD = 3.0  # times the largest rate
PATIENT = ("--deadline", "10000", "--queue", "4096")  # under load the limits must not be reached
DEADLINE = 1000.0  # milliseconds, of the service under overload
SLOWEST = 5000.0  # milliseconds: a slower answer under load is a problem
SLACK = 250.0  # milliseconds after the deadline that are tolerated
REFUSED = (503, 504)
SENT = 0.9  # minimum share of requests that the generator has to send in time
TIED = 0.01  # maximum share of answers with ties
GROWTH = 0.01  # share of memory per minute that counts as flat
_MINUTE = 60.0
_SETTLING = 2 * _MINUTE  # before memory is measured
_LONG_ENOUGH = 3 * _MINUTE  # minimum duration after that


@dataclass(frozen=True)
class Settings:
    """Duration and load of a soak test."""

    minutes: float = 10.0
    every: float = 20.0  # seconds between two swaps
    rate: float = 0.8  # share of the largest rate
    finding: float = 20.0  # seconds for finding the largest rate
    overload: float = 10.0  # seconds of overload


@dataclass
class Swaps:
    """Bundles offered to the service, and the results."""

    taken: int = 0
    seconds: list[float] = field(default_factory=list)  # of the swaps that were taken
    refused: dict[str, int] = field(default_factory=dict)  # invalid bundles by their defect
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Growth:
    """Mean memory in megabytes after it has settled, and the slope of a linear fit."""

    megabytes: float  # mean
    per_minute: float
    error: float  # standard error of the slope

    @property
    def is_real(self) -> bool:
        """Whether memory grows significantly and by more than counts as flat."""
        return self.per_minute - 2 * self.error > GROWTH * self.megabytes


@dataclass(frozen=True)
class Memory:
    """Memory of the service with and without mapped files."""

    whole: Growth
    without_files: Growth
    flat: bool


@dataclass(frozen=True)
class Overload:
    """The result of far more requests than the service can answer."""

    requests_per_second: float
    sent_per_second: float  # measured
    sent_share: float  # share of the due requests
    unsent: int  # requests for which no connection was free
    codes: dict[int, int]
    slowest_ms: float  # longest time until a response, including the wait for a connection
    answered_ms: Spread
    late_ms: float  # 99th percentile of the delay of the load generator
    verdicts: dict[str, int]  # of the answers
    well_after: bool


@dataclass(frozen=True)
class Report:
    """All results of a soak test."""

    bundles: list[str]
    largest_rate: float
    requests_per_second: float
    sent_per_second: float  # measured
    sent_share: float  # share of the due requests
    minutes: float
    asked: int
    unsent: int  # requests for which no connection was free
    answered: int
    refused: int  # with 503 or 504
    failed: int  # any other status, and lost connections
    verdicts: dict[str, int]  # of the answers
    by_model: dict[str, int]
    call_ms: Spread
    slowest_ms: float  # longest time until a response, including the wait for a connection
    late_ms: float  # 99th percentile of the delay of the load generator
    swaps: Swaps
    memory: Memory | None  # None if the system does not report it, or the test was too short
    overload: Overload
    problems: list[str]  # violated requirements


def soak(first: Path, second: Path, settings: Settings, *, on_step: OnStep) -> Report:
    """Run a soak test.

    Args:
        first: The bundle to start with.
        second: The bundle to swap it with.
        settings: Duration and load.
        on_step: Called with the name of the step, the completed and the total amount.
    """
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        load = CheckedLoad([first, second], directory, on_step=on_step)
        models = list(load.models)
        plan = _Plan(load, bad_bundles(second, directory), settings)
        with running(first, PATIENT) as plan.service:
            on_step("finding the largest rate", 0, None)
            largest = load.largest_rate(plan.service.port, settings.finding)
            outcome, memory = plan.under_load(settings.rate * largest, on_step)
        with running(first, ["--deadline", str(round(DEADLINE))]) as plan.service:
            on_step("overload", 0, None)
            overload = plan.overload(OVERLOAD * largest)
        return _report(settings, models, largest, outcome, plan.swaps, memory, overload)


class _Plan:
    """The phases of a soak test."""

    service: Service

    def __init__(self, load: CheckedLoad, bad: dict[str, Path], settings: Settings) -> None:
        self._load = load
        self._models = load.models  # paths by model name; the first one is served
        self._bad = cycle(bad.items())
        self._settings = settings
        self.swaps = Swaps()

    def under_load(self, rate: float, on_step: OnStep) -> tuple[Outcome, Memory | None]:
        """Send requests at a rate while swapping bundles and offering invalid ones."""
        with MemoryMonitor(self.service) as monitor:
            outcome = self._send_and_swap(rate, on_step)
        self._load.verify_unexpected(outcome)
        return outcome, _memory(monitor.samples, self._settings)

    def _send_and_swap(self, rate: float, on_step: OnStep) -> Outcome:
        seconds = self._settings.minutes * _MINUTE
        job = self._load.job(self.service.port, seconds, rate=rate)
        begin = time.perf_counter()
        with started(job) as wait:
            for due, act in self._actions(seconds):
                on_step(f"{rate:,.0f} requests/s, {self.swaps.taken} swaps", round(due), round(seconds))
                if (outcome := wait(max(0.0, begin + due - time.perf_counter()))) is not None:
                    break
                act()
            else:
                outcome = wait(None)
        assert outcome is not None  # it waits until the end
        return outcome

    def _actions(self, seconds: float) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield the times of all actions: a swap in every interval, an invalid bundle in the middle of it."""
        half = self._settings.every / 2
        for number in range(1, int(seconds / half)):
            yield number * half, self._offer_bad if number % 2 else self._swap

    def _swap(self) -> None:
        before, after = self._models
        begin = time.perf_counter()
        code, answer = self.service.call("POST", "/reload", {"path": str(self._models[after].resolve())})
        if code == 200 and (answer["model"], answer["before"]) == (after, before):
            self.swaps.taken += 1
            self.swaps.seconds.append(time.perf_counter() - begin)
            self._models = {after: self._models[after], before: self._models[before]}
        else:
            self.swaps.problems.append(f"a swap from {before} to {after} returned {code}: {answer}")

    def _offer_bad(self) -> None:
        what, path = next(self._bad)
        code, answer = self.service.call("POST", "/reload", {"path": str(path.resolve())})
        served = self.service.call("GET", "/model")[1]["bundles"]["main"]["model"]
        if code == 409 and served == next(iter(self._models)):
            self.swaps.refused[what] = self.swaps.refused.get(what, 0) + 1
        else:
            self.swaps.problems.append(f"a bundle with {what} returned {code}: {answer}; {served} is served")

    def overload(self, rate: float) -> Overload:
        """Send requests at a rate that is far too high."""
        outcome = drive(self._load.job(self.service.port, self._settings.overload, rate=rate))
        well_after = self._works()
        self._load.verify_unexpected(outcome)
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

    def _works(self) -> bool:
        """Whether the service is healthy and answers every request."""
        asked = drive(self._load.job(self.service.port, 0.5))
        codes = [self.service.call("GET", path)[0] for path in ("/health", "/ready")]
        return codes == [200, 200] and set(asked.codes()) == {200}


# --- the report ---------------------------------------------------------------------------------------------------


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
    report.problems.extend([*_problems(report), *(f"for example {text}" for text in outcome.quoted)])
    return report


def _problems(report: Report) -> list[str]:
    """Return the violated requirements as sentences."""
    overload, memory = report.overload, report.memory
    verdicts = Counter(report.verdicts) + Counter(overload.verdicts)
    allowed = {200, *REFUSED}
    others = {code: count for code, count in overload.codes.items() if code not in allowed}
    found = {
        f"the generator {_shortfall(report)}, so that the load was not reached": _shortfall(report),
        f"the generator {_shortfall(overload)}, so that the overload was not reached": _shortfall(overload),
        f"{report.failed:,} requests failed": report.failed,
        f"{report.refused:,} requests were refused": report.refused,
        f"{verdicts['wrong']:,} answers were wrong": verdicts["wrong"],
        f"{verdicts['tied']:,} of {verdicts.total():,} answers had different items with equal scores": (
            verdicts["tied"] > TIED * verdicts.total()
        ),
        "no request was answered": not report.answered,
        f"under load an answer took {report.slowest_ms:,.0f} ms": report.slowest_ms > SLOWEST,
        "memory grew": memory is not None and not memory.flat,
        f"under overload requests had the status codes {others}": others,
        f"under overload an answer took {overload.slowest_ms:,.0f} ms": overload.slowest_ms > DEADLINE + SLACK,
        "after the overload the service did not work normally": not overload.well_after,
    }
    return [text for text, is_one in found.items() if is_one] + report.swaps.problems


def _shortfall(load: Report | Overload) -> str:
    """Return what the load generator failed to do; an empty text if it sent everything."""
    if load.unsent:
        return f"could not send {load.unsent:,} requests"
    if load.sent_share < SENT:
        return f"could send only {load.sent_per_second:,.0f} of {load.requests_per_second:,.0f} requests/s"
    return ""


def _memory(samples: Sequence[tuple[float, float, float]], settings: Settings) -> Memory | None:
    """Fit the memory samples after the first minutes; None if there are too few."""
    settled = [sample for sample in samples if sample[0] >= _SETTLING]
    if not settled or settled[-1][0] - settled[0][0] < _LONG_ENOUGH:
        return None
    # Swaps cause steps, which are not random: each point of the fit is the mean over one interval with both bundles.
    points: dict[int, list[tuple[float, float, float]]] = {}
    for sample in settled:
        points.setdefault(int((sample[0] - settled[0][0]) / (2 * settings.every)), []).append(sample)
    means = [tuple(map(statistics.fmean, zip(*of, strict=True))) for of in points.values()]
    if len(means) < 3:
        return None
    seconds, whole, without = zip(*means, strict=True)
    found = _growth(seconds, whole), _growth(seconds, without)
    return Memory(*found, flat=not any(one.is_real for one in found))


def _growth(seconds: Sequence[float], megabytes: Sequence[float]) -> Growth:
    """Fit a line by least squares."""
    slope, intercept = statistics.linear_regression(seconds, megabytes)
    rest = sum((one - intercept - slope * at) ** 2 for at, one in zip(seconds, megabytes, strict=True))
    middle = statistics.fmean(seconds)
    error = math.sqrt(rest / (len(seconds) - 2) / sum((at - middle) ** 2 for at in seconds))
    return Growth(statistics.fmean(megabytes), slope * _MINUTE, error * _MINUTE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trial."""
    settings, given = parse_settings(__doc__, Settings, arguments, BUNDLES)
    with given_bundles(given, 2) as (first, second):
        return print_report(soak(first, second, settings, on_step=show_step))


if __name__ == "__main__":
    sys.exit(main())
