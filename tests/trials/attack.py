"""A service under attack beside honest traffic.

Honest requests arrive at random times at a share of the largest rate, from a process of their own, and every answer is
compared with that of the bundle. Quiet windows and windows under attack alternate, so that a change of the machine
affects both. The attacks come from another process, which keeps its CPU time below a share of one core. The service
runs with its default limits and watches a directory of bundles, which the attacker changes. At the end the service
receives SIGTERM while the attack goes on.

Run it as ``PYTHONPATH=tests python -m trials.attack [BUNDLE]`` in a clone. ``--proxy`` puts nginx in front of the
service, with the configuration of SECURITY.md, and attacks nginx. The exit code is 1 if an answer was wrong,
an honest request failed, more than 1 % of them were refused, the service ended, used too much memory, responded more
than 5 s after an attack or ended more than 30 s after SIGTERM, or returned what an attack must not get.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import BUNDLES, given_bundles, parse_settings, print_report, show_step
from benchmarks.load_client import LOST, started
from benchmarks.services import CheckedLoad, MemoryMonitor, call_service, running, spread
from trials.attacks import attacker
from trials.attacks.attack_kinds import KINDS
from trials.attacks.target import BundleFiles
from trials.invalid_bundles import bad_bundles
from trials.proxy import behind_nginx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.load_client import Outcome
    from benchmarks.services import OnStep, Service

REFUSED = (503, 504)
MOST_REFUSED = 0.01  # maximum share of honest requests that are refused
SENT = 0.9  # minimum share of requests that the generator has to send in time
RECOVERY_SECONDS = 60.0  # after an attack, in which the service has to respond
MOST_RECOVERY_SECONDS = 5.0  # maximum time until it does
END_SECONDS = 150.0  # after SIGTERM, then the service is killed
MOST_END_SECONDS = 30.0  # maximum time that ending the service may take
_QUIET_SHARE = 0.5  # duration of a quiet window compared with one under attack
_WARM_UP = 0.1  # additional share of a window, not measured
_MOST_SAMPLES = 120  # of memory in a report
_QUOTED = 5  # unexpected responses in a report


@dataclass(frozen=True)
class Settings:
    """Duration and strength of an attack."""

    minutes: float = 10.0  # under attack, in total
    window: float = 60.0  # seconds of a window under attack
    rate: float = 0.3  # of honest requests, as a share of the largest rate
    kinds: tuple[str, ...] = KINDS
    finding: float = 20.0  # seconds for finding the largest rate
    memory_limit: float = 2048.0  # megabytes: a service that uses more is killed
    cpu_share: float = 0.25  # of one core, for the attacker
    pace: float = 1.0  # factor of all intervals of the attacker
    proxy: bool = False  # whether clients and attackers connect to nginx in front of the service

    @property
    def windows(self) -> int:
        """Number of windows under attack, and of quiet ones."""
        return max(1, round(self.minutes * 60 / self.window))


@dataclass(frozen=True)
class Honest:
    """The honest requests of one window or several. Times are in milliseconds."""

    seconds: float
    asked: int
    answered: int
    refused: int  # with 503 or 504
    failed: int  # any other status, and lost connections
    verdicts: dict[str, int]  # of the answers
    p50: float
    p99: float
    slowest: float
    sent_share: float  # share of the due requests that were sent in time
    late: float  # 99th percentile of the delay of the load generator


@dataclass(frozen=True)
class Window:
    """One window."""

    attacked: bool
    honest: Honest
    service_cpu: float | None  # CPU time of the service as a share of one core; None if the system is not Linux
    attacker_cpu: float | None  # as well; None in a quiet window
    load_average: float  # processes of the whole machine that compute or wait for a core, over the last minute


@dataclass(frozen=True)
class Memory:
    """Resident megabytes of the service: all, and without mapped files."""

    start: float
    most: float
    end: float
    start_without_files: float
    most_without_files: float
    end_without_files: float
    samples: list[tuple[float, float, float]]  # seconds, megabytes, megabytes without mapped files


@dataclass(frozen=True)
class AttackRow:
    """What one attack has done, and what the service returned."""

    kind: str
    name: str
    attempts: int
    connections: int
    requests: int
    sent_bytes: int
    received_bytes: int
    responses: dict[str, int]  # by status code; "closed" if the connection ended first, "none" without any response


@dataclass(frozen=True)
class Report:
    """All results of an attack."""

    bundle: str
    largest_rate: float
    requests_per_second: float
    window: float
    kinds: list[str]
    quiet: Honest
    attacked: Honest | None  # None if the service did not survive the quiet windows
    p99_ratio: float | None
    windows: list[Window]
    memory: Memory | None  # None if the system does not report it
    attacks: list[AttackRow]
    attacker_cpu: float  # share of one core
    log_bytes: int
    tracebacks: int  # in the log of the service
    recovery_seconds: float  # longest time from the end of an attack to a response of the service
    end_seconds: float | None  # from SIGTERM under attack to the end; None if the service was killed or had ended
    problems: list[str]  # violated requirements


def measure(path: Path, settings: Settings, *, on_step: OnStep) -> Report:
    """Attack a service of a bundle.

    Args:
        path: Directory of the bundle, which is copied and stays unchanged.
        settings: Duration and strength.
        on_step: Called with the name of the step, the completed and the total amount.

    Raises:
        ValueError: A kind of attack is unknown.
    """
    if unknown := set(settings.kinds) - set(KINDS):
        raise ValueError(f"kinds: found {', '.join(sorted(unknown))}, allowed are {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        load = CheckedLoad([path], directory, on_step=on_step)
        on_step("copying the bundle", 0, None)
        files = _bundle_files(path, directory)
        with ExitStack() as stack:
            service = stack.enter_context(running(files.watched, ["--watch"]))
            port = stack.enter_context(behind_nginx(service.port)) if settings.proxy else service.port
            on_step("finding the largest rate", 0, None)
            largest = load.largest_rate(port, settings.finding)
            plan = _Plan(service, port, load, files, settings, largest * settings.rate, on_step)
            with MemoryMonitor(service) as monitor:
                plan.run()
            plan.end_under_attack()
            return _report(path, settings, largest, plan, monitor)


def _bundle_files(path: Path, directory: Path) -> BundleFiles:
    """Copy a bundle to a directory that a service watches, and create invalid ones elsewhere."""
    watched, bad = directory / "watched", directory / "bad"
    watched.mkdir()
    bad.mkdir()
    shutil.copytree(path.resolve(), watched / "served")
    return BundleFiles(watched, watched / "served", path.resolve(), list(bad_bundles(path, bad).values()))


class _Plan:
    """The windows of an attack, and what was found."""

    def __init__(
        self,
        service: Service,
        port: int,
        load: CheckedLoad,
        files: BundleFiles,
        settings: Settings,
        rate: float,
        on_step: OnStep,
    ) -> None:
        self.service = service
        self.port = port  # of the service, or of the proxy in front of it
        self.rate = rate
        self.windows: list[Window] = []
        self.outcomes: dict[bool, list[Outcome]] = {False: [], True: []}  # of honest requests, by whether attacked
        self.attacks = attacker.Outcome()
        self.problems: list[str] = []
        self.recovery_seconds = 0.0
        self.end_seconds: float | None = None
        self._load = load
        self._files = files
        self._settings = settings
        self._on_step = on_step
        self._stopped = False  # because the service has ended or was killed

    def run(self) -> None:
        """Alternate quiet windows and windows under attack until all are done or the service has ended."""
        for number in range(2 * self._settings.windows):
            if self._stopped:
                return
            attacked = bool(number % 2)
            with ExitStack() as stack:
                end = stack.enter_context(attacker.attacking(self._attack())) if attacked else None
                self._window(number, end)
            if attacked and not self._stopped:
                self._recover()

    def _window(self, number: int, end_attack: Callable[[], attacker.Outcome] | None) -> None:
        seconds = self._settings.window * (1.0 if end_attack else _QUIET_SHARE)
        before, begin = self.service.cpu_seconds(), time.perf_counter()
        job = self._load.job(self.port, seconds, rate=self.rate, warm_up=seconds * _WARM_UP, seed=number, patience=10.0)
        with started(job) as wait:
            while (outcome := wait(0.5)) is None:
                self._watch(number, bool(end_attack), time.perf_counter() - begin)
        after, took = self.service.cpu_seconds(), time.perf_counter() - begin
        service_cpu = (after - before) / took if before is not None and after is not None else None
        attacker_cpu = None
        if end_attack:
            attack = end_attack()
            attacker_cpu = attack.cpu_seconds / attack.seconds
            self.attacks.add(attack)
        self._load.verify_unexpected(outcome)
        self.outcomes[bool(end_attack)].append(outcome)
        load = os.getloadavg()[0]
        self.windows.append(Window(bool(end_attack), honest([outcome]), service_cpu, attacker_cpu, load))

    def _watch(self, number: int, attacked: bool, seconds: float) -> None:
        """Show the progress; stop if the service has ended, and kill it if it uses too much memory."""
        memory = self.service.memory()
        megabytes = 0.0 if memory is None else memory[0]
        what = "under attack" if attacked else "quiet"
        windows = 2 * self._settings.windows
        self._on_step(f"window {number + 1} of {windows}, {what}, {megabytes:,.0f} MB", number, windows)
        if self._stopped:
            return
        if (code := self.service.exit_code) is not None:
            self.problems.append(f"the service ended {_exit_text(code)}, {seconds:.0f} s after the window began")
            self._stopped = True
        elif megabytes > self._settings.memory_limit:
            self.service.kill()
            self.problems.append(
                f"the service used {megabytes:,.0f} MB and was killed, {seconds:.0f} s after the window began"
            )
            self._stopped = True

    def _recover(self) -> None:
        """Wait until the service responds after an attack, so that the next quiet window is quiet."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < RECOVERY_SECONDS:
            try:
                if call_service(self.port, "GET", "/ready", timeout=1.0)[0] == 200:
                    break
            except OSError:  # it does not respond yet, or has ended
                if self.service.ended:
                    return
        self.recovery_seconds = max(self.recovery_seconds, time.perf_counter() - begin)

    def end_under_attack(self) -> None:
        """Send SIGTERM to the service while it is attacked."""
        if self._stopped:
            return
        self._on_step("ending the service under attack", 0, None)
        with attacker.attacking(self._attack()):  # not counted: after the end every attempt fails
            time.sleep(min(5.0, self._settings.window / 4))
            if (code := self.service.exit_code) is not None:
                self.problems.append(f"the service ended {_exit_text(code)} before it received SIGTERM")
                return
            self.end_seconds = self.service.end(END_SECONDS)
        if self.end_seconds is None:
            self.problems.append(f"the service did not end within {END_SECONDS:.0f} s of SIGTERM")
        elif self.end_seconds > MOST_END_SECONDS:
            self.problems.append(f"the service ended only {self.end_seconds:.0f} s after SIGTERM")
        if (code := self.service.exit_code) not in (0, -signal.SIGTERM):
            self.problems.append(f"after SIGTERM the service ended {_exit_text(code)}")

    def _attack(self) -> attacker.Job:
        files, settings = self._files, self._settings
        return attacker.Job(
            port=self.port,
            request=self._load.bodies.read_text().splitlines()[0],
            token=self.service.token,
            watched=str(files.watched),
            served=str(files.served),
            original=str(files.original),
            bad=[str(path) for path in files.bad],
            kinds=list(settings.kinds),
            seconds=3 * settings.window + END_SECONDS,
            cpu_share=settings.cpu_share,
            pace=settings.pace,
            seed=len(self.windows),
        )


def _exit_text(code: int | None) -> str:
    return f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with code {code}"


# --- the report ---------------------------------------------------------------------------------------------------


def honest(outcomes: Sequence[Outcome]) -> Honest:
    """Return the summary of the honest requests of some windows."""
    codes: Counter[int] = sum((Counter(outcome.codes()) for outcome in outcomes), Counter[int]())
    times = [one for outcome in outcomes for one in outcome.latency.get(200, [])]
    due = codes.total() + sum(outcome.unsent for outcome in outcomes)
    found = spread(times)
    return Honest(
        seconds=sum(outcome.seconds for outcome in outcomes),
        asked=due,
        answered=codes[200],
        refused=sum(codes[code] for code in REFUSED),
        failed=due - codes[200] - sum(codes[code] for code in REFUSED),
        verdicts=dict(sum((Counter(outcome.verdicts) for outcome in outcomes), Counter[str]())),
        p50=found.p50,
        p99=found.p99,
        slowest=max(times, default=float("nan")),
        sent_share=sum(outcome.sent for outcome in outcomes) / due if due else 1.0,
        late=spread([one for outcome in outcomes for one in outcome.late]).p99,
    )


def _report(path: Path, settings: Settings, largest: float, plan: _Plan, monitor: MemoryMonitor) -> Report:
    quiet = honest(plan.outcomes[False])
    attacked = honest(plan.outcomes[True]) if plan.outcomes[True] else None
    log, attacks = plan.service.output(), plan.attacks
    report = Report(
        bundle=path.name,
        largest_rate=largest,
        requests_per_second=plan.rate,
        window=settings.window,
        kinds=list(settings.kinds),
        quiet=quiet,
        attacked=attacked,
        p99_ratio=attacked.p99 / quiet.p99 if attacked else None,
        windows=plan.windows,
        memory=memory_of(monitor.samples),
        attacks=_rows(attacks),
        attacker_cpu=attacks.cpu_seconds / attacks.seconds if attacks.seconds else 0.0,
        log_bytes=len(log),
        tracebacks=log.count("Traceback (most recent call last)"),
        recovery_seconds=plan.recovery_seconds,
        end_seconds=plan.end_seconds,
        problems=plan.problems,
    )
    report.problems.extend([*_problems(report), *attacks.forbidden()])
    if report.problems:
        quoted = [text for outcomes in plan.outcomes.values() for outcome in outcomes for text in outcome.quoted]
        report.problems.extend(f"for example {text}" for text in list(dict.fromkeys(quoted))[:_QUOTED])
    return report


def _problems(report: Report) -> list[str]:
    """Return the violated requirements as sentences."""
    found: dict[str, Any] = {
        f"{report.tracebacks:,} tracebacks are in the log of the service": report.tracebacks,
        f"the service responded only {report.recovery_seconds:.0f} s after an attack": (
            report.recovery_seconds > MOST_RECOVERY_SECONDS
        ),
    }
    for when, of in (("in quiet windows", report.quiet), ("under attack", report.attacked)):
        if of is None:
            continue
        found |= {
            f"{when} {of.verdicts.get('wrong', 0):,} answers were wrong": of.verdicts.get("wrong", 0),
            f"{when} {of.failed:,} of {of.asked:,} honest requests failed": of.failed,
            f"{when} {of.refused:,} of {of.asked:,} honest requests were refused": (
                of.refused > MOST_REFUSED * of.asked
            ),
            f"{when} the generator sent only {of.sent_share:.0%} of the requests in time": of.sent_share < SENT,
        }
    return [text for text, is_one in found.items() if is_one]


def memory_of(samples: Sequence[tuple[float, float, float]]) -> Memory | None:
    """Return the first, the largest and the last of the samples of a monitor; None without any."""
    if not samples:
        return None
    _, whole, without = zip(*samples, strict=True)
    kept = samples[:: -(-len(samples) // _MOST_SAMPLES)]
    return Memory(whole[0], max(whole), whole[-1], without[0], max(without), without[-1], list(kept))


def _rows(attacks: attacker.Outcome) -> list[AttackRow]:
    names = {LOST: "closed", attacker.NO_ANSWER: "none"}
    return [
        AttackRow(
            kind=kind,
            name=name,
            attempts=tally.attempts,
            connections=tally.connections,
            requests=tally.requests,
            sent_bytes=tally.sent_bytes,
            received_bytes=tally.received_bytes,
            responses={names.get(code, str(code)): tally.responses[code] for code in sorted(tally.responses)},
        )
        for kind, by_name in attacks.tallies.items()
        for name, tally in by_name.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trial."""
    settings, given = parse_settings(__doc__, Settings, arguments, BUNDLES)
    settings = replace(settings, window=min(settings.window, settings.minutes * 60))
    with given_bundles(given, 1) as (bundle,):
        return print_report(measure(bundle, settings, on_step=show_step))


if __name__ == "__main__":
    sys.exit(main())
