"""The cost of recording: services of one bundle that sample no requests, some and all of them, in turns on one machine.

All services run with the same options except for ``--samples`` and ``--sample-share``. Their turns alternate, so that a
busy period of the machine affects all of them, and ratios are medians over the turns. The CPU time of a request is
that of all threads of the service, including the one that writes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import BUNDLES, given_bundles, parse_settings, print_report, show_step
from benchmarks.load_client import Job, drive, write_bodies
from benchmarks.service import DEADLINE, HALF, WARM_UP
from benchmarks.services import POOL, Spread, median_ratio, running, spread
from rankfall.benchmarks.serve import requests_like_examples
from rankfall.serving import Bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.load_client import Outcome
    from benchmarks.services import MedianRatio, Service

SHARES = (None, 0.1, 1.0)  # None: nothing is recorded, not even that a request was served
TURNS = 8  # per setting: fewer than six would give no interval
CLIENTS = (1, 8)
AT_HALF_RATE = 0  # "clients" of requests that arrive at random times, at half the largest rate without samples


@dataclass(frozen=True)
class Row:
    """A service under the load of some clients."""

    share: float | None
    clients: int  # 0: at half the largest rate
    requests_per_second: float
    call_ms: Spread
    cpu_ms: float | None  # per request; None if the system is not Linux
    p50: MedianRatio  # to that without samples, over the turns
    p99: MedianRatio
    cpu: MedianRatio | None
    written: int  # samples
    dropped: int
    not_answered: int


@dataclass(frozen=True)
class Report:
    """All measurements."""

    bundle: str
    items: int
    turns: int
    seconds: float  # per turn
    rows: list[Row]


@dataclass
class _Turns:
    outcomes: list[Outcome] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def percentiles(self) -> list[Spread]:
        return [spread(outcome.latency.get(200, [])) for outcome in self.outcomes]


def steps(turns: int = TURNS) -> int:
    """Return how many times `measure` calls `report`."""
    return 2 + turns * len(SHARES) * (len(CLIENTS) + 1)


def measure(path: Path, *, seconds: float, report: Callable[[str], None], turns: int = TURNS) -> Report:
    """Measure services of a bundle.

    Args:
        path: Directory of the bundle.
        seconds: Duration of a turn.
        report: Called with a description after every step.
        turns: Number of turns per setting.
    """
    bundle = Bundle.load(path)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bodies = scratch / "requests.jsonl"
        write_bodies(bodies, requests_like_examples(bundle, POOL))
        report("bundle loaded")
        services = {share: stack.enter_context(running(path, _options(share, scratch))) for share in SHARES}
        report("services started")
        found = {(share, clients): _Turns() for share in SHARES for clients in (*CLIENTS, AT_HALF_RATE)}
        for _ in range(turns):
            for clients in (*CLIENTS, AT_HALF_RATE):
                rate = None if clients else _half_rate(found[None, max(CLIENTS)].outcomes[-1])
                for share, service in services.items():
                    job = Job(service.port, str(bodies), seconds, max(1, clients), rate, warm_up=WARM_UP * seconds)
                    _turn(service, job, found[share, clients])
                    report(f"{_name(share)}, {f'{clients} clients' if clients else 'half the largest rate'}")
        counts = {share: _sample_counts(service) for share, service in services.items()}
    rows = [_row(key, of, found[None, key[1]], counts[key[0]]) for key, of in found.items()]
    return Report(path.name, len(bundle.items), turns, seconds, rows)


def _options(share: float | None, scratch: Path) -> list[str]:
    options = ["--deadline", str(DEADLINE)]
    if share is None:
        return options
    records = ["--samples", str(scratch / f"samples-{share:g}"), "--sample-share", str(share)]
    return [*options, *records, "--time-window", "0"]  # examples are of the days of the log


def _name(share: float | None) -> str:
    return "no samples" if share is None else f"{share:.0%} sampled"


def _half_rate(outcome: Outcome) -> float:
    return max(1.0, HALF * outcome.in_time / outcome.seconds)


def _turn(service: Service, job: Job, turns: _Turns) -> None:
    before = service.cpu_seconds()
    outcome = drive(job)
    after = service.cpu_seconds()
    if not outcome.latency.get(200):
        raise OSError(f"no call was answered: {outcome.quoted}")
    turns.outcomes.append(outcome)
    if before is not None and after is not None:
        turns.cpu_ms.append((after - before) * 1e3 / outcome.asked)


def _sample_counts(service: Service) -> dict[str, int]:
    """Return the number of samples by what became of them, from the metrics."""
    _, text = service.call("GET", "/metrics")
    prefix = 'rankfall_samples_total{result="'
    lines = [line.removeprefix(prefix).partition('"} ') for line in text.splitlines() if line.startswith(prefix)]
    return {result: int(float(number)) for result, _, number in lines}


def _row(key: tuple[float | None, int], turns: _Turns, without: _Turns, counts: dict[str, int]) -> Row:
    share, clients = key
    own, base = turns.percentiles(), without.percentiles()
    return Row(
        share=share,
        clients=clients,
        requests_per_second=statistics.median(outcome.in_time / outcome.seconds for outcome in turns.outcomes),
        call_ms=spread([one for outcome in turns.outcomes for one in outcome.latency.get(200, [])]),
        cpu_ms=statistics.median(turns.cpu_ms) if turns.cpu_ms else None,
        p50=median_ratio([one.p50 for one in own], [one.p50 for one in base]),
        p99=median_ratio([one.p99 for one in own], [one.p99 for one in base]),
        cpu=median_ratio(turns.cpu_ms, without.cpu_ms) if turns.cpu_ms else None,
        written=counts.get("written", 0),
        dropped=counts.get("dropped", 0),
        not_answered=sum(sum(outcome.not_answered().values()) for outcome in turns.outcomes),
    )


@dataclass(frozen=True)
class Settings:
    """Duration of a turn."""

    seconds: float = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure services of a bundle."""
    settings, given = parse_settings(__doc__, Settings, arguments, BUNDLES)
    with given_bundles(given, 1) as (bundle,):
        report = measure(bundle, seconds=settings.seconds, report=lambda done: show_step(done, 0, None))
    return print_report(report)


if __name__ == "__main__":
    sys.exit(main())
