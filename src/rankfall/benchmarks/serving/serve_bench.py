"""A service beside the bare calls of faiss and onnxruntime that it makes, in turns on one machine.

The service runs as users run it, and is asked by another process over HTTP. Beside it runs one that computes with one
thread, as the bare calls do: by how much it is slower is the overhead. Turns of the services and of the bare calls
follow one another, so that a busy moment of the machine hits all; ratios are medians of the turns. The CPU time of a
request does not count the neighbours.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.benchmarks.serving.bare_calls import PARTS, BareCalls
from rankfall.benchmarks.serving.bench_bundles import requests_like_examples
from rankfall.benchmarks.serving.load_generator import Job, distances, drive, write_bodies
from rankfall.benchmarks.serving.service_process import running
from rankfall.serving import Bundle
from rankfall.serving.service.settings import default_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from rankfall.benchmarks.serving.load_generator import Outcome
    from rankfall.benchmarks.serving.service_process import Service

TURNS = 5
SETTINGS = ((1, 1), (8, 1), (32, 1), (1, 32), (8, 32))  # clients, and the requests of a call
BATCHES = (1, 8, 32)
POOL = 2048  # different requests
DEADLINE = 10_000  # milliseconds: what is slow is measured, too
WARM_UP = 0.2  # share of a turn that does not count
HALF = 0.5  # of the largest rate
ARRIVALS = (True, False)  # whether requests come at equal distances; the last is what is promised
MOST_OVERHEAD, MOST_TAIL = 0.25, 3.0  # what is promised


@dataclass(frozen=True)
class Spread:
    """Half of the times are below the one, and all but one in a hundred below the other, in milliseconds."""

    p50: float
    p99: float


@dataclass(frozen=True)
class Bare:
    """The bare calls for so many requests at once."""

    batch: int
    call_ms: Spread
    requests_per_second: float
    cpu_ms: float  # of a request
    cpu: float  # share of the wall's time: how far other work was in the way
    parts_ms: dict[str, float]  # of a call, on average


@dataclass(frozen=True)
class Row:
    """A service with so many clients."""

    threads: int  # that compute
    clients: int
    requests_in_call: int
    requests_per_second: float
    call_ms: Spread
    parts_ms: dict[str, Spread]  # as the service itself has them
    cpu_ms: float | None  # of a request, all processes of the service; Linux alone tells
    batch: int  # of the bare calls beside it
    overhead: float | None  # of p50 over theirs; None if the service had more to do at once, or more threads
    cpu_overhead: float | None
    not_answered: dict[int, int]  # how many calls, by code


@dataclass(frozen=True)
class HalfRate:
    """Half as many requests as a service can answer, or the bare calls one after the other."""

    threads: int | None  # None: the bare calls
    even: bool  # whether requests come at equal distances, so that none has to wait for another; or at random times
    requests_per_second: float
    call_ms: Spread
    tail: float  # p99 over p50, the median of the turns
    late_ms: float  # by which the load itself was behind with the 99th of 100 requests
    not_answered: dict[int, int]


@dataclass(frozen=True)
class ScoreAll:
    """The ranker on all items, for one request."""

    items: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Report:
    """Everything that was measured."""

    bundle: str
    items: int
    stages: list[dict[str, Any]]
    turns: int
    seconds: float  # of a turn
    bare: list[Bare]
    rows: list[Row]
    half_rates: list[HalfRate]
    score_all: ScoreAll | None  # None: the bundle has no stage that scores


@dataclass
class _Turns:
    """What came of the turns of one setting."""

    outcomes: list[Outcome] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def latency(self) -> list[float]:
        return [one for outcome in self.outcomes for one in outcome.latency.get(200, [])]


@dataclass
class _HalfTurns:
    """What came of turns at half of the rate of the moment."""

    even: bool
    rates: list[float] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)  # of calls, in milliseconds
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
    """The times of the bare calls of one size, turn by turn, in milliseconds."""

    walls: list[list[float]] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)  # of a request
    parts_ms: list[dict[str, float]] = field(default_factory=list)


def steps(turns: int = TURNS) -> int:
    """How often a measurement reports."""
    services = len(_threads())
    return 3 + turns * (services * (len(SETTINGS) + len(ARRIVALS)) + len(BATCHES) + len(ARRIVALS))


def _threads() -> list[int]:
    """The threads of the services: one, as the bare calls have, and what users get."""
    return sorted({1, default_threads(workers=1)})


def measure(path: Path, *, seconds: float, report: Callable[[str], None], turns: int = TURNS) -> Report:
    """Measure services of a bundle; `seconds` is the length of a turn."""
    bundle = Bundle.load(path)
    bare = BareCalls(bundle)
    requests = requests_like_examples(bundle, POOL)
    batches = {size: _encoded(bundle, requests, size) for size in BATCHES}
    report("bundle loaded")
    score_all = _score_all(bundle, bare, batches[1][0])
    report("all items scored")
    with ExitStack() as stack:
        calls = _Calls(Path(stack.enter_context(tempfile.TemporaryDirectory())), requests)
        services = [_Asking(stack.enter_context(_started(path, count)), count, calls, seconds) for count in _threads()]
        report("services started")
        alone = {size: _BareTurns() for size in BATCHES}
        bare_halves = [_HalfTurns(even) for even in ARRIVALS]
        for _ in range(turns):
            for size in BATCHES:
                _bare_turn(bare, batches[size], size, seconds, alone[size])
                report(f"bare calls of {size}")
                for setting in (one for one in SETTINGS if _beside(one) == size):
                    for service in services:
                        service.turn(setting)
                        report(f"{setting[0]} clients, {setting[1]} in a call")
            for place, bare_half in enumerate(bare_halves):
                _bare_half_turn(bare, batches[1], alone[1], seconds, bare_half)
                report("bare calls at half of the rate")
                for service in services:
                    service.half_turn(service.half_turns[place])
                    report("half of the rate")
        rows = [service.row(setting, alone[_beside(setting)]) for service in services for setting in SETTINGS]
        half_rates = [half.found(None) for half in bare_halves]
        half_rates += [half.found(service.threads) for service in services for half in service.half_turns]
    stages = [{"name": name, "quota": quota} for name, quota in zip(bundle.names, bundle.quotas, strict=True)]
    bare_rows = [_bare_row(size, turns_of) for size, turns_of in alone.items()]
    return Report(path.name, len(bundle.items), stages, turns, seconds, bare_rows, rows, half_rates, score_all)


def promises(report: Report) -> list[tuple[str, str, str, bool]]:
    """What is promised, the target, what was measured, and whether that is met."""
    found = []
    for row in report.rows:
        if row.batch == max(BATCHES) and row.overhead is not None:  # of one thread beside one
            what = f"p50 over the bare calls, {row.clients} x {row.requests_in_call}"
            found.append((what, f"< {MOST_OVERHEAD:.0%}", f"{row.overhead:+.0%}", row.overhead < MOST_OVERHEAD))
    tail = report.half_rates[-1].tail  # of what users get, at random times
    found.append(("p99 / p50 at half of the largest rate", f"< {MOST_TAIL:g}", f"{tail:.2f}", tail < MOST_TAIL))
    codes = [*(row.not_answered for row in report.rows), *(half.not_answered for half in report.half_rates)]
    failed = sum(sum(of.values()) for of in codes)
    found.append(("calls that were not answered", "0", f"{failed:,}", not failed))
    return found


def _beside(setting: tuple[int, int]) -> int:
    """The size of the bare calls that a setting is compared with: what the service can have in a batch."""
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
    cpu = time.thread_time()  # they run on this thread alone; others of the process may draw a progress bar
    walls = _calls(bare, batches, seconds)
    turns.cpu_ms.append((time.thread_time() - cpu) * 1e3 / (len(walls) * size))
    turns.walls.append(walls)
    turns.parts_ms.append({part: took * 1e3 / len(walls) for part, took in bare.seconds.items()})


def _calls(bare: BareCalls, batches: Sequence[dict[str, NDArray[Any]]], seconds: float) -> list[float]:
    """The milliseconds of calls, one after the other, for so long."""
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
    """Bare calls, one after the other in the order in which requests come."""
    _calls(bare, calls, WARM_UP * seconds)
    rate = HALF * 1e3 / statistics.mean(alone.walls[-1])
    times, late = list[float](), list[float]()
    due = time.perf_counter()
    ends = due + seconds
    for arrays, distance in zip(cycle(calls), distances(rate, even=turns.even, seed=len(turns.rates)), strict=False):
        due += distance
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
    """Files with calls of so many requests each."""

    def __init__(self, scratch: Path, requests: Sequence[dict[str, Any]]) -> None:
        self.files = {}
        for in_call in sorted({in_call for _, in_call in SETTINGS}):
            self.files[in_call] = scratch / f"{in_call}.jsonl"
            starts = range(0, len(requests) - in_call + 1, in_call)
            calls = [{"requests": requests[start : start + in_call]} for start in starts]
            write_bodies(self.files[in_call], list(requests) if in_call == 1 else calls)


class _Asking:
    """A service with so many threads, the calls that it is asked, and what came of them."""

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
        if before is not None and after is not None:  # Linux alone tells, but then of every turn
            turns.cpu_ms.append((after - before) * 1e3 / (outcome.asked * in_call))

    def row(self, setting: tuple[int, int], bare: _BareTurns) -> Row:
        return _row(self.threads, setting, self._turns[setting], bare)

    def half_turn(self, turns: _HalfTurns) -> None:
        """Ask at half of the largest rate that single requests had in this turn."""
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
    batch = _beside(setting)
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
    """By how much half of the calls of a turn take longer than half of the bare ones beside it."""
    served = [spread(outcome.latency.get(200, [])).p50 for outcome in turns.outcomes]
    return _ratios(served, [spread(walls).p50 for walls in bare.walls])


def _ratios(of: Sequence[float], over: Sequence[float]) -> float:
    """The median by how much the one is larger than the other, over the turns in which anything was answered."""
    return statistics.median(a / b for a, b in zip(of, over, strict=True) if not math.isnan(a)) - 1


def _added(counts: Iterable[dict[int, int]]) -> dict[int, int]:
    return dict(sum(map(Counter, counts), Counter[int]()))


def spread(times: Sequence[float]) -> Spread:
    """The median and the 99th of 100 times.

    >>> spread([float(time) for time in range(101)])
    Spread(p50=50.0, p99=99.0)
    """
    if len(times) < 2:
        return Spread(*(times[0] if times else float("nan"),) * 2)
    found = statistics.quantiles(times, n=100, method="inclusive")
    return Spread(found[49], found[98])
