"""A service compared with the bare calls of faiss and onnxruntime that it makes, in turns on one machine.

The service runs with its defaults, and another process sends it requests over HTTP. A second service computes with one
thread, as the bare calls do; how much slower it is than these is the overhead. The turns of services and bare calls
alternate, so that a busy period of the machine affects all of them. Ratios are medians over the turns. The CPU time of
a request excludes other processes.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import BUNDLES, given_bundles, parse_settings, print_report, show_step
from benchmarks.bare_calls import PARTS, BareCalls
from benchmarks.load_client import Job, drive, intervals, write_bodies
from benchmarks.services import POOL, Spread, running, spread
from rankfall.benchmarks.serve import BATCHES, SETTINGS, requests_like_examples
from rankfall.serving import Bundle
from rankfall.serving.service.settings import default_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from benchmarks.load_client import Outcome
    from benchmarks.services import Service

TURNS = 5
DEADLINE = 10_000  # milliseconds, so long that slow requests are measured, too
WARM_UP = 0.2  # additional share of a turn, not measured
HALF = 0.5  # of the largest rate
ARRIVALS = (True, False)  # whether requests arrive at equal intervals; the promise holds for the last entry
MOST_OVERHEAD, MOST_TAIL = 0.25, 3.0  # the promises


@dataclass(frozen=True)
class Bare:
    """The bare calls with `batch` requests per call."""

    batch: int
    call_ms: Spread
    requests_per_second: float
    cpu_ms: float  # per request
    cpu: float  # CPU time as a share of the wall time; less than 1 if other processes interfered
    parts_ms: dict[str, float]  # per call, on average


@dataclass(frozen=True)
class Row:
    """A service under the load of `clients` clients."""

    threads: int  # compute threads of the service
    clients: int
    requests_in_call: int
    requests_per_second: float
    call_ms: Spread
    parts_ms: dict[str, Spread]  # reported by the service
    cpu_ms: float | None  # per request, of all processes of the service; None if the system is not Linux
    batch: int  # requests per bare call that it is compared with
    overhead: float | None  # of p50 over that of the bare calls; None if the batches or threads differ
    cpu_overhead: float | None
    not_answered: dict[int, int]  # number of calls by status code


@dataclass(frozen=True)
class HalfRate:
    """Requests at half the largest rate of a service, or of consecutive bare calls."""

    threads: int | None  # None: the bare calls
    even: bool  # whether requests arrive at equal intervals, so that none waits for another
    requests_per_second: float
    call_ms: Spread
    tail: float  # p99 over p50, the median of the turns
    late_ms: float  # 99th percentile of the delay of the load generator
    not_answered: dict[int, int]


@dataclass(frozen=True)
class ScoreAll:
    """The ranker applied to all items for one request."""

    items: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Report:
    """All measurements."""

    bundle: str
    items: int
    stages: list[dict[str, Any]]
    turns: int
    seconds: float  # per turn
    bare: list[Bare]
    rows: list[Row]
    half_rates: list[HalfRate]
    score_all: ScoreAll | None  # None if no stage scores candidates


@dataclass
class _Turns:
    """The outcomes of the turns of one setting."""

    outcomes: list[Outcome] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def latency(self) -> list[float]:
        return [one for outcome in self.outcomes for one in outcome.latency.get(200, [])]


@dataclass
class _HalfTurns:
    """The outcomes of turns at half the current largest rate."""

    even: bool
    rates: list[float] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)  # milliseconds per call
    late: list[float] = field(default_factory=list)
    not_answered: list[dict[int, int]] = field(default_factory=list)

    def add(self, rate: float, times: list[float], late: Sequence[float], not_answered: dict[int, int]) -> None:
        self.rates.append(rate)
        self.times.append(times)
        self.late += late
        self.not_answered.append(not_answered)

    def found(self, threads: int | None) -> HalfRate:
        spreads = [spread(times) for times in self.times]
        return HalfRate(
            threads=threads,
            even=self.even,
            requests_per_second=statistics.median(self.rates),
            call_ms=spread([one for times in self.times for one in times]),
            tail=statistics.median(one.p99 / one.p50 for one in spreads),
            late_ms=spread(self.late).p99,
            not_answered=_added(self.not_answered),
        )


@dataclass
class _BareTurns:
    """The times of the bare calls of one batch size by turn, in milliseconds."""

    walls: list[list[float]] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)  # per request
    parts_ms: list[dict[str, float]] = field(default_factory=list)


def steps(turns: int = TURNS) -> int:
    """Return how many times `measure` calls `report`."""
    services = len(_threads())
    return 3 + turns * (services * (len(SETTINGS) + len(ARRIVALS)) + len(BATCHES) + len(ARRIVALS))


def _threads() -> list[int]:
    """Return the compute threads of the services: one, as for the bare calls, and the default."""
    return sorted({1, default_threads(workers=1)})


def measure(path: Path, *, seconds: float, report: Callable[[str], None], turns: int = TURNS) -> Report:
    """Measure services of a bundle.

    Args:
        path: Directory of the bundle.
        seconds: Duration of a turn.
        report: Called with a description after every step.
        turns: Number of turns per setting.
    """
    bundle = Bundle.load(path)
    bare = BareCalls(bundle)
    requests = requests_like_examples(bundle, POOL)
    batches = {size: _encoded(bundle, requests, size) for size in BATCHES}
    report("bundle loaded")
    score_all = _score_all(bundle, bare, batches[1][0])
    report("all items scored")
    with ExitStack() as stack:
        calls = _Calls(Path(stack.enter_context(tempfile.TemporaryDirectory())), requests)
        services = [
            _MeasuredService(stack.enter_context(_started(path, count)), count, calls, seconds) for count in _threads()
        ]
        report("services started")
        alone = {size: _BareTurns() for size in BATCHES}
        bare_halves = [_HalfTurns(even) for even in ARRIVALS]
        for _ in range(turns):
            for size in BATCHES:
                _bare_turn(bare, batches[size], size, seconds, alone[size])
                report(f"bare calls of {size}")
                for setting in (one for one in SETTINGS if _comparable_batch(one) == size):
                    for service in services:
                        service.turn(setting)
                        report(f"{setting[0]} clients, {setting[1]} requests per call")
            for place, bare_half in enumerate(bare_halves):
                _bare_half_turn(bare, batches[1], alone[1], seconds, bare_half)
                report("bare calls at half the rate")
                for service in services:
                    service.half_turn(service.half_turns[place])
                    report("half the rate")
        rows = [service.row(setting, alone[_comparable_batch(setting)]) for service in services for setting in SETTINGS]
        half_rates = [half.found(None) for half in bare_halves]
        half_rates += [half.found(service.threads) for service in services for half in service.half_turns]
    stages = [{"name": name, "quota": quota} for name, quota in zip(bundle.names, bundle.quotas, strict=True)]
    bare_rows = [_bare_row(size, turns_of) for size, turns_of in alone.items()]
    return Report(path.name, len(bundle.items), stages, turns, seconds, bare_rows, rows, half_rates, score_all)


def promises(report: Report) -> list[tuple[str, str, str, bool]]:
    """Return each promise with its target, the measured value, and whether it is met."""
    found = []
    for row in report.rows:
        if row.batch == max(BATCHES) and row.overhead is not None:  # one compute thread, as for the bare calls
            what = f"p50 over the bare calls, {row.clients} x {row.requests_in_call}"
            found.append((what, f"< {MOST_OVERHEAD:.0%}", f"{row.overhead:+.0%}", row.overhead < MOST_OVERHEAD))
    tail = report.half_rates[-1].tail  # with the default threads, at random times
    found.append(("p99 / p50 at half the largest rate", f"< {MOST_TAIL:g}", f"{tail:.2f}", tail < MOST_TAIL))
    codes = [*(row.not_answered for row in report.rows), *(half.not_answered for half in report.half_rates)]
    failed = sum(sum(of.values()) for of in codes)
    found.append(("calls without an answer", "0", f"{failed:,}", not failed))
    return found


def _comparable_batch(setting: tuple[int, int]) -> int:
    """Return the batch size of the bare calls to compare a setting with: the largest batch of the service."""
    return min(setting[0] * setting[1], max(BATCHES))


# --- the bare calls -----------------------------------------------------------------------------------------------


def _encoded(bundle: Bundle, requests: Sequence[dict[str, Any]], size: int) -> list[dict[str, NDArray[Any]]]:
    count = max(1, min(256, len(requests) // size))
    return [bundle.encode(requests[start : start + size]).arrays for start in range(0, count * size, size)]


def _bare_turn(
    bare: BareCalls, batches: Sequence[dict[str, NDArray[Any]]], size: int, seconds: float, turns: _BareTurns
) -> None:
    _calls(bare, batches, WARM_UP * seconds)
    bare.seconds = dict.fromkeys(PARTS, 0.0)
    cpu = time.thread_time()  # only this thread: others of the process may draw a progress bar
    walls = _calls(bare, batches, seconds)
    turns.cpu_ms.append((time.thread_time() - cpu) * 1e3 / (len(walls) * size))
    turns.walls.append(walls)
    turns.parts_ms.append({part: took * 1e3 / len(walls) for part, took in bare.seconds.items()})


def _calls(bare: BareCalls, batches: Sequence[dict[str, NDArray[Any]]], seconds: float) -> list[float]:
    """Make consecutive calls for some seconds; return the milliseconds of each."""
    ends = time.perf_counter() + seconds
    walls: list[float] = []
    for arrays in cycle(batches):
        begin = time.perf_counter()
        bare(arrays)
        end = time.perf_counter()
        walls.append((end - begin) * 1e3)
        if end >= ends:
            break
    return walls


def _bare_half_turn(
    bare: BareCalls, calls: Sequence[dict[str, NDArray[Any]]], alone: _BareTurns, seconds: float, turns: _HalfTurns
) -> None:
    """Make bare calls, one after another, for requests that arrive at half the largest rate."""
    _calls(bare, calls, WARM_UP * seconds)
    rate = HALF * 1e3 / statistics.mean(alone.walls[-1])
    times, late = list[float](), list[float]()
    due = time.perf_counter()
    ends = due + seconds
    for arrays, interval in zip(cycle(calls), intervals(rate, even=turns.even, seed=len(turns.rates)), strict=False):
        due += interval
        if due >= ends:
            break
        free = time.perf_counter()
        time.sleep(max(0.0, due - free))
        late.append(max(0.0, time.perf_counter() - max(due, free)) * 1e3)
        bare(arrays)
        times.append((time.perf_counter() - due) * 1e3)
    turns.add(rate, times, late, {})


def _bare_row(size: int, turns: _BareTurns) -> Bare:
    walls = [one for turn in turns.walls for one in turn]
    parts = {part: statistics.median(turn[part] for turn in turns.parts_ms) for part in PARTS}
    cpu_ms, rate = statistics.median(turns.cpu_ms), size * 1e3 / statistics.mean(walls)
    return Bare(size, spread(walls), rate, cpu_ms, cpu_ms * rate / 1e3, parts)


def _score_all(bundle: Bundle, bare: BareCalls, arrays: dict[str, NDArray[Any]]) -> ScoreAll | None:
    if not bare.has_ranker:
        return None
    begin, cpu = time.perf_counter(), time.thread_time()
    bare.score_all(arrays, len(bundle.items))
    return ScoreAll(len(bundle.items), time.perf_counter() - begin, time.thread_time() - cpu)


# --- the service --------------------------------------------------------------------------------------------------


def _started(path: Path, threads: int) -> AbstractContextManager[Service]:
    return running(path, ["--deadline", str(DEADLINE), "--threads", str(threads)])


class _Calls:
    """Files of calls by the number of requests per call."""

    def __init__(self, scratch: Path, requests: Sequence[dict[str, Any]]) -> None:
        self.files = {}
        for in_call in sorted({in_call for _, in_call in SETTINGS}):
            self.files[in_call] = scratch / f"{in_call}.jsonl"
            starts = range(0, len(requests) - in_call + 1, in_call)
            calls = [{"requests": requests[start : start + in_call]} for start in starts]
            write_bodies(self.files[in_call], list(requests) if in_call == 1 else calls)


class _MeasuredService:
    """A service with its number of threads, the calls sent to it, and the outcomes."""

    def __init__(self, service: Service, threads: int, calls: _Calls, seconds: float) -> None:
        self.threads = threads
        self.half_turns = [_HalfTurns(even) for even in ARRIVALS]
        self._service = service
        self._calls = calls
        self._seconds = seconds
        self._turns = {setting: _Turns() for setting in SETTINGS}

    def turn(self, setting: tuple[int, int]) -> None:
        clients, in_call = setting
        turns = self._turns[setting]
        job = self._job(in_call, self._seconds, clients=clients)
        before = self._service.cpu_seconds()
        outcome = drive(job)
        after = self._service.cpu_seconds()
        turns.outcomes.append(outcome)
        if before is not None and after is not None:  # known for every turn on Linux, otherwise for none
            turns.cpu_ms.append((after - before) * 1e3 / (outcome.asked * in_call))

    def row(self, setting: tuple[int, int], bare: _BareTurns) -> Row:
        return _row(self.threads, setting, self._turns[setting], bare)

    def half_turn(self, turns: _HalfTurns) -> None:
        """Send single requests at half the largest rate of this turn."""
        last = [turns.outcomes[-1] for (_, in_call), turns in self._turns.items() if in_call == 1]
        rate = HALF * max(outcome.in_time / outcome.seconds for outcome in last)
        outcome = drive(self._job(1, self._seconds, rate=rate, even=turns.even, seed=len(turns.rates)))
        turns.add(rate, outcome.latency.get(200, []), outcome.late, outcome.not_answered())

    def _job(self, in_call: int, seconds: float, **how: Any) -> Job:
        bodies = str(self._calls.files[in_call])
        return Job(self._service.port, bodies, seconds, warm_up=WARM_UP * self._seconds, **how)


def _row(threads: int, setting: tuple[int, int], turns: _Turns, bare: _BareTurns) -> Row:
    clients, in_call = setting
    latency = turns.latency()
    if not latency:
        raise OSError(
            f"no call of {clients} clients with {in_call} requests each was answered: {turns.outcomes[0].quoted}"
        )
    names = {name: None for outcome in turns.outcomes for name in outcome.parts}
    parts = {name: spread([one for outcome in turns.outcomes for one in outcome.parts.get(name, [])]) for name in names}
    batch = _comparable_batch(setting)
    answered = [outcome.in_time * in_call / outcome.seconds for outcome in turns.outcomes]
    cpu = _ratios(turns.cpu_ms, bare.cpu_ms) if turns.cpu_ms else None
    return Row(
        threads=threads,
        clients=clients,
        requests_in_call=in_call,
        requests_per_second=statistics.median(answered),
        call_ms=spread(latency),
        parts_ms=parts,
        cpu_ms=statistics.median(turns.cpu_ms) if turns.cpu_ms else None,
        batch=batch,
        overhead=_overhead(turns, bare) if threads == 1 and clients * in_call == batch else None,
        cpu_overhead=cpu,
        not_answered=_added(outcome.not_answered() for outcome in turns.outcomes),
    )


def _overhead(turns: _Turns, bare: _BareTurns) -> float:
    """Return the relative increase of p50 over the bare calls of the same turn."""
    served = [spread(outcome.latency.get(200, [])).p50 for outcome in turns.outcomes]
    return _ratios(served, [spread(walls).p50 for walls in bare.walls])


def _ratios(of: Sequence[float], over: Sequence[float]) -> float:
    """Return the median relative increase over the turns that have answers."""
    return statistics.median(a / b for a, b in zip(of, over, strict=True) if not math.isnan(a)) - 1


def _added(counts: Iterable[dict[int, int]]) -> dict[int, int]:
    return dict(sum(map(Counter, counts), Counter[int]()))


@dataclass(frozen=True)
class Settings:
    """Duration of a turn."""

    seconds: float = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure services of a bundle, and check the promises."""
    settings, given = parse_settings(__doc__, Settings, arguments, BUNDLES)
    with given_bundles(given, 1) as (bundle,):
        report = measure(bundle, seconds=settings.seconds, report=lambda done: show_step(done, 0, None))
    names = ("promise", "target", "measured", "met")
    checked = [dict(zip(names, promise, strict=True)) for promise in promises(report)]
    problems = [f"{one['promise']}: {one['measured']}, expected {one['target']}" for one in checked if not one["met"]]
    return print_report({**asdict(report), "promises": checked, "problems": problems})


if __name__ == "__main__":
    sys.exit(main())
