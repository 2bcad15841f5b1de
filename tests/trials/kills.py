"""The loop while its processes are killed: a service that records, a joiner and a trainer, under requests and events.

Clients of a simulated platform ask the service, and report events. The processes are killed with SIGKILL at random
moments and started again; half of the kills of joiner and trainer wait until these work on a day. Simulated days pass
with the requests (``--clock requests``). At the end, the log is compared with what the clients know, and byte for byte
with the log that one undisturbed process makes of the same records.

Run it as ``PYTHONPATH=tests python -m trials.kills --kills 20`` in a clone. The exit code is 1 if the logs
differ, except for samples that the service had not written when it was killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import parse_settings, print_report, show_step
from benchmarks.services import call_service, free_port
from rankfall.serving.recording.recorder import sampling_key
from trials.client_ledger import Ledger, LedgerClients
from trials.joined_check import Comparison, compare_log
from trials.small_world import make_world

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.services import OnStep
    from trials.small_world import World

SERVICE, JOINER, TRAINER = "service", "joiner", "trainer"
READY_SECONDS = 300.0
BUSY_SECONDS = 60.0  # to wait for work before a kill
LOST_PER_KILL = 0.5  # seconds of requests that a kill of the service may lose on average
END_SECONDS = 60.0
_SHOWN = 2000  # characters of an output in an error
_KEPT_BUNDLES = 1000
_PAST_REQUESTS = 300  # of each past day


@dataclass(frozen=True)
class KillSettings:
    """Kills and load of a trial."""

    kills: int = 20
    every: float = 8.0  # seconds from a kill to the next, on average
    rate: float = 60.0  # requests per second
    requests_per_day: int = 1000
    days: float = 3.0  # simulated days that pass in any case
    share: float = 0.9  # of requests that are sampled
    counts: tuple[int, ...] = (10, 5)  # items drawn per stage
    wait: str = "6h"  # of simulated time, for the records of a day
    with_trainer: bool = True
    seed: int = 0


@dataclass
class KillReport:
    """All results of a trial."""

    seconds: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)  # by process
    at_work: dict[str, int] = field(default_factory=dict)  # kills while the process worked on a day
    down_seconds: float = 0.0  # longest time from a kill of the service to its next answer
    days: list[str] = field(default_factory=list)  # that were joined
    bundles: int = 0
    comparison: Comparison = field(default_factory=Comparison)
    late: int = 0  # records that came too late for their day
    unknown_events: int = 0  # kept apart by joining
    same_bytes: bool = False  # as the log of an undisturbed process
    different_files: list[str] = field(default_factory=list)
    tracebacks: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # calls by path and code, which clients repeated
    repeated_calls: int = 0
    load_average: float = 0.0
    problems: list[str] = field(default_factory=list)


def run_kills(settings: KillSettings, *, on_step: OnStep) -> KillReport:
    """Run a trial in a temporary directory; see :class:`KillTrial`."""
    with tempfile.TemporaryDirectory() as scratch:
        on_step("preparing a log", 0, None)
        world = make_world(Path(scratch), past_requests=_PAST_REQUESTS)
        return KillTrial(world, settings, on_step=on_step).run()


class LoopProcess:
    """A command of rankfall.

    Args:
        name: What it is, for messages.
        arguments: Arguments of the command.
        output: File that receives what it prints.
    """

    def __init__(self, name: str, arguments: Sequence[str], output: Path) -> None:
        self.name = name
        self.kills = 0
        self._command = [sys.executable, "-m", "rankfall", *arguments]
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill it with SIGKILL.

        Raises:
            OSError: It has ended before.
        """
        self.check()
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.kills += 1

    def check(self) -> None:
        """Raise an OSError if the command has ended."""
        if self._process is None or (code := self._process.poll()) is None:
            return
        raise OSError(f"the {self.name} ended with {code}: {self._tail()}")

    def end(self) -> int | None:
        """End it with SIGTERM and return its exit code, or None if it had to be killed."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
        finally:
            self._process = None

    def run(self) -> None:
        """Run the command to its end.

        Raises:
            OSError: It failed.
        """
        self.start()
        assert self._process is not None
        code = self._process.wait()
        self._process = None
        if code:
            raise OSError(f"the {self.name} ended with {code}: {self._tail()}")

    def tracebacks(self) -> int:
        """Return the number of tracebacks in its output."""
        return self._output.read_text(errors="replace").count("Traceback (most recent call last)")

    def _tail(self) -> str:
        return self._output.read_text(errors="replace")[-_SHOWN:].strip()


class KillTrial:
    """A trial.

    Args:
        world: The files. Its stream may have been run before.
        settings: Kills and load.
        on_step: Called with the name of the step, the completed and the total amount.

    Attributes:
        ledger: What the clients know.
        service_kills: When the service was killed, by ``time.monotonic()``.
    """

    def __init__(self, world: World, settings: KillSettings, *, on_step: OnStep) -> None:
        self.ledger = Ledger()
        self.service_kills: list[float] = []
        self._world, self._settings, self._on_step = world, settings, on_step
        self._report = KillReport()
        self._chance = random.Random(settings.seed)
        self._port = free_port()
        self._processes = self._make_processes()

    def run(self) -> KillReport:
        """Run the trial.

        Raises:
            OSError: A process ended without a kill.
        """
        begin = time.monotonic()
        if not self._world.bundles.is_dir():
            self._on_step("training on the past days", 0, None)
            self._process("first stream", self._stream_arguments()).run()
        with ExitStack() as stack:
            for process in self._processes.values():
                stack.callback(process.end)
            self._on_step("starting the service", 0, None)
            self._processes[SERVICE].start()
            self._wait_until_ready()
            for name in self._processes.keys() - {SERVICE}:
                self._processes[name].start()
            clients = stack.enter_context(self._clients())
            self._kill_all(clients)
        self._on_step("joining the rest", 0, None)
        self._join(self._world.log)
        if self._settings.with_trainer:
            self._on_step("training on the rest", 0, None)
            self._process("last stream", [*self._stream_arguments(), "--resume"]).run()
        self._on_step("joining without a kill", 0, None)
        self._join(self._world.past)
        self._on_step("comparing the logs", 0, None)
        self._compare()
        self._report.seconds = time.monotonic() - begin
        return self._report

    # --- processes --------------------------------------------------------------------------------------------------

    def _process(self, name: str, arguments: list[str]) -> LoopProcess:
        return LoopProcess(name, arguments, self._world.directory / f"{name.replace(' ', '-')}.txt")

    def _make_processes(self) -> dict[str, LoopProcess]:
        world, settings = self._world, self._settings
        drawn = ",".join(map(str, settings.counts))
        samples = ["--samples", str(world.records), "--sample-share", str(settings.share), "--sample-items", drawn]
        patient = ["--deadline", "20000", "--queue", "4096"]
        serving = ["serve", str(world.bundles), "--watch", "--port", str(self._port), "--clock", "requests"]
        joining = [*self._join_arguments(world.log), "--follow", "--poll", "0.5"]
        processes = {
            SERVICE: self._process(SERVICE, [*serving, *samples, *patient]),
            JOINER: self._process(JOINER, joining),
        }
        if settings.with_trainer:
            following = ["--follow", str(world.log), "--resume", "--poll", "0.5"]
            processes[TRAINER] = self._process(TRAINER, [*self._stream_arguments(), *following])
        return processes

    def _stream_arguments(self) -> list[str]:
        world = self._world
        return ["stream", str(world.config), "--out", str(world.stream), "--bundles", str(_KEPT_BUNDLES)]

    def _join_arguments(self, log: Path) -> list[str]:
        world = self._world
        tables = ["--spec", str(world.spec), "--items", str(world.items)]
        return [
            "join",
            str(world.records),
            "--out",
            str(log),
            *tables,
            "--wait",
            self._settings.wait,
            "--parity",
            "0.05",
        ]

    def _join(self, log: Path) -> None:
        self._process(f"join of {log.name}", [*self._join_arguments(log), "--close"]).run()

    def _clients(self) -> LedgerClients:
        settings = self._settings
        return LedgerClients(
            self._port,
            self.ledger,
            first_time=self._world.first_time,
            requests_per_day=settings.requests_per_day,
            rate=settings.rate,
        )

    def _wait_until_ready(self) -> None:
        ends = time.monotonic() + READY_SECONDS
        while time.monotonic() < ends:
            self._processes[SERVICE].check()
            with suppress(OSError):
                if call_service(self._port, "GET", "/ready")[0] == 200:
                    return
            time.sleep(0.1)
        raise OSError(f"the service was not ready within {READY_SECONDS:.0f} s")

    # --- kills ------------------------------------------------------------------------------------------------------

    def _kill_all(self, clients: LedgerClients) -> None:
        """Kill processes in random order, then let the clients go on until enough days have passed."""
        names = list(self._processes)
        order = [names[number % len(names)] for number in range(self._settings.kills)]
        self._chance.shuffle(order)
        for number, name in enumerate(order):
            self._on_step(f"{clients.days:.1f} days, killing the {name}", number, len(order))
            self._pause(clients, self._chance.uniform(0, 2 * self._settings.every))
            self._kill(name, clients)
        while clients.days < self._settings.days:
            self._on_step(f"{clients.days:.1f} days", len(order), len(order))
            self._pause(clients, 0.5)
        self._report.load_average = os.getloadavg()[0]
        clients.finish()
        clients.check()

    def _pause(self, clients: LedgerClients, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(0.2, left))
            clients.check()
            for process in self._processes.values():
                process.check()

    def _kill(self, name: str, clients: LedgerClients) -> None:
        if name != SERVICE and self._chance.random() < 0.5:
            self._wait_for_work(name, clients)
        at_work = self._is_working(name)
        process = self._processes[name]
        killed = time.monotonic()
        process.kill()
        self._report.kills[name] = process.kills
        self._report.at_work[name] = self._report.at_work.get(name, 0) + at_work
        process.start()
        if name == SERVICE:
            self.service_kills.append(killed)
            self._wait_until_ready()
            self._report.down_seconds = max(self._report.down_seconds, time.monotonic() - killed)

    def _wait_for_work(self, name: str, clients: LedgerClients) -> None:
        """Wait until a process works on a day, and for a random moment of its work."""
        ends = time.monotonic() + BUSY_SECONDS
        while not self._is_working(name) and time.monotonic() < ends:
            self._pause(clients, 0.02)
        self._pause(clients, self._chance.uniform(0, 1.0))

    def _is_working(self, name: str) -> bool:
        """Whether a process works on a day, as its files show."""
        world = self._world
        if name == JOINER:
            beside = world.log.with_name(f"{world.log.name}.join")
            return any("joining" in path.name or path.name == "closing" for path in _listed(beside))
        if name == TRAINER:
            return len(_listed(world.log / "days")) > len(_listed(world.bundles))
        return True

    # --- the comparison ---------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        from rankfall.online.join_results import DayReport

        report, world, settings, ledger = self._report, self._world, self._settings, self.ledger
        report.comparison = compare_log(
            world.log,
            ledger,
            world.bundles,
            self.service_kills,
            share=settings.share,
            counts=settings.counts,
            key=sampling_key(str(world.records)),
        )
        days = sorted(world.log.with_name(f"{world.log.name}.join").glob("days/*"))
        reports = [DayReport.load(day / "report.json") for day in days]
        report.days = [one.day for one in reports]
        report.late = sum(sum(one.late_requests.values()) + sum(one.late_events.values()) for one in reports)
        report.unknown_events = sum(sum(one.apart.values()) for one in reports)
        report.bundles = len(_listed(world.bundles))
        report.different_files = list(_different(world.log, world.past))
        report.same_bytes = not report.different_files
        report.tracebacks = sum(process.tracebacks() for process in self._processes.values())
        report.refused, report.repeated_calls = ledger.refused, ledger.repeated_calls
        report.problems = [*_problems(report, settings), *(f"for example {one}" for one in report.comparison.quoted)]


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _different(log: Path, other: Path) -> Iterator[str]:
    """Yield the files in which two logs differ."""
    files: list[Mapping[str, Path]] = [
        {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()} for root in (log, other)
    ]
    for name in sorted(files[0].keys() | files[1].keys()):
        both = [of.get(name) for of in files]
        if None in both or len({path.read_bytes() for path in both if path is not None}) > 1:
            yield name


def _problems(report: KillReport, settings: KillSettings) -> list[str]:
    """Return the violated requirements as sentences."""
    comparison, kills = report.comparison, sum(report.kills.values())
    most_lost = LOST_PER_KILL * settings.rate * max(1, report.kills.get(SERVICE, 0))
    found = {
        f"{kills} processes were killed, expected {settings.kills}": kills != settings.kills,
        f"{comparison.lost:,} samples were lost, more than {most_lost:,.0f}": comparison.lost > most_lost,
        f"{report.late:,} records were late": report.late,
        f"{report.tracebacks:,} tracebacks were printed": report.tracebacks,
        f"the log differs from that of an undisturbed process in {', '.join(report.different_files[:5])}": (
            not report.same_bytes
        ),
    }
    return [*comparison.problems(), *(text for text, is_one in found.items() if is_one)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trial."""
    settings, _ = parse_settings(__doc__, KillSettings, arguments)
    return print_report(run_kills(settings, on_step=show_step))


if __name__ == "__main__":
    sys.exit(main())
