"""Run a loop: users ask a service day after day, their reactions are joined, and the trainer learns from them.

A day is joined once the clock of the service is past its end, so the first requests of a day are answered by the model
that has not learned from the day before. The loop then waits until the service has the new model. What the service
answered is stored, from which a loop that is run again computes everything else.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rankfall.loop_demo.loop_days import (
    ANSWERED,
    Answers,
    HttpUsers,
    LoopDays,
    ServiceError,
    is_late,
    new_users,
    with_repetitions,
)
from rankfall.simulation.live_users import request_bodies, request_events
from rankfall.simulation.platform import day_name
from rankfall.simulation.world import DAY, FIRST_DAY
from rankfall.storage.disk import make_directory, open_new
from rankfall.storage.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.table import Table

    from rankfall.loop_demo.loop_days import LoopFiles, LoopSettings
    from rankfall.simulation.live_users import LivePortion


WAIT_SECONDS = 600  # of simulated time for late events
_POLL = "1"  # seconds between checks for new records and new days
_KEPT = "2"  # bundles: the one that is served, whose samples are still to be checked, and the next


class LoopCommands:
    """The arguments of ``rankfall`` for each process of a loop.

    Args:
        files: The files of the loop.
    """

    def __init__(self, files: LoopFiles) -> None:
        self._files = files

    def prepare(self) -> list[str]:
        """Prepare the log of the first days."""
        files = self._files
        tables = ["--items", str(files.items), "--requests", str(files.requests)]
        return ["prepare", "rows", str(files.rows), *tables, "--spec", str(files.spec), "--out", str(files.log)]

    def serve(self, port: int) -> list[str]:
        """Serve the newest bundle, and record what it answers and what users do."""
        recording = ["--samples", str(self._files.records), "--clock", "requests"]
        return ["serve", str(self._files.bundles), "--watch", *recording, "--port", str(port)]

    def join(self) -> list[str]:
        """Append each day of samples and events to the log."""
        files = self._files
        options = ["--items", str(files.items), "--wait", f"{WAIT_SECONDS}s", "--follow", "--poll", _POLL, "--grow"]
        return ["join", str(files.records), "--spec", str(files.spec), "--out", str(files.log), *options]

    def stream(self) -> list[str]:
        """Train on each new day, and write a bundle of the items of the next one."""
        files = self._files
        follow = ["--follow", str(files.log), "--resume", "--poll", _POLL]
        bundles = ["--bundles", _KEPT, "--items", str(files.catalogue)]
        return ["stream", str(files.config), "--out", str(files.stream), *follow, *bundles]

    def texts(self, port: int = 8080) -> list[str]:
        """Return all commands as they are typed."""
        commands = [self.prepare(), self.stream(), self.serve(port), self.join()]
        return [shlex.join(["rankfall", *arguments]) for arguments in commands]


END_SECONDS = 120.0  # after SIGTERM: a stream finishes its batch or its bundle
LAST_LINES = 15


class ChildError(OSError):
    """A process ended, or something went wrong in it."""


class ChildProcesses:
    """Processes that end together, in the reverse order of their start.

    They are in sessions of their own, so that Ctrl-C in a terminal ends this process first, which then ends them.

    Args:
        logs: Directory of their output, one file ``NAME.log`` each.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Create the directory of the output."""
        make_directory(self._logs)
        return self

    def __exit__(self, *exception: object) -> None:
        """End all processes."""
        self._stack.close()

    def run(self, name: str, arguments: Sequence[str], pause: Callable[[], None]) -> None:
        """Run ``rankfall ARGUMENTS`` to its end; `pause` is called while it runs.

        Raises:
            ChildError: It failed.
        """
        self.start(name, arguments)
        while (code := self._processes[name].poll()) is None:
            pause()
        del self._processes[name]
        if code:
            raise self.error(name, f"ended with exit code {code}")

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start ``rankfall ARGUMENTS`` under a name."""
        with open_new(self._logs / f"{name}.log") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "rankfall", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output.fileno(),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[name] = process
        self._stack.callback(self._end, process)

    def check(self) -> None:
        """Raise an error with the last lines of its output if a process has ended.

        Raises:
            ChildError: A process has ended.
        """
        for name, process in self._processes.items():
            if (code := process.poll()) is not None:
                raise self.error(name, f"ended with exit code {code}")

    def error(self, name: str, problem: str) -> ChildError:
        """Return the error of a process, with the last lines of its output."""
        path = self._logs / f"{name}.log"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        return ChildError("\n".join([f"rankfall {name} {problem}; the end of {path}:", *lines]))

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C does not wait
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started itself, if it ended by an error


def free_port() -> int:
    """Return a port of this machine that no program listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


MARGIN_SECONDS = 60  # of simulated time after which a joiner closes a day for certain
POLL_SECONDS = 0.25


class StoppedError(Exception):
    """The loop was asked to stop."""


class Loop:
    """A loop and its processes.

    Args:
        files: Its files.
        settings: Its settings.
        days: The number of days that the service answers.
        on_change: Receives the table of the days, and what happens now.
        stop: Returns whether to stop.
    """

    def __init__(
        self,
        files: LoopFiles,
        settings: LoopSettings,
        days: int,
        *,
        on_change: Callable[[Table, str], None],
        stop: Callable[[], object] = lambda: False,
    ) -> None:
        self.last = settings.first_days + days - 1  # the last day that the service answers
        self._files, self._settings = files, settings
        self._on_change, self._stop = on_change, stop
        self._days = LoopDays(files)
        self._commands = LoopCommands(files)
        self._users = new_users(settings)
        self._ended = settings.first_days - 1  # the last day that can be joined
        self._started = 0.0  # when the stream was started
        self._bundles: dict[str, str] = {}  # days of bundles by the name of their model
        self._events: list[list[dict[str, Any]]] = []  # of the last portion, one list per request

    @property
    def commands(self) -> list[str]:
        """The commands of the processes, as they are typed."""
        return self._commands.texts()

    def run(self) -> LoopDays:
        """Run until the service has the model that learned from the last day.

        Raises:
            StoppedError: If it was asked to stop. The same loop can be run again.
            ChildError: If a process failed.
            ServiceError: If the service does not answer.
        """
        self._show("simulating the first days")
        is_new = not self._files.check(self._settings)
        past = list(self._users.past())
        for served in past:
            self._days.add_past(served)
        if is_new:
            self._files.begin(self._settings, self._users, past)
        before = None  # the last portion that was answered before
        while (answers := self._files.load_answers(portion := self._users.arrive())) is not None:
            self._react(portion, answers)
            before = portion
        if self._ended < self.last:
            port = free_port()
            with ChildProcesses(self._files.logs) as children, HttpUsers(port) as client:
                self._start(children, client, port)
                try:
                    self._continue(children, client, before, portion)
                except ServiceError:
                    children.check()  # if the service has ended, its output says why
                    raise
        self._days.update()
        self._days.save(self.last)
        return self._days

    # --- the beginning ------------------------------------------------------------------------------------------------

    def _start(self, children: ChildProcesses, client: HttpUsers, port: int) -> None:
        if not self._files.log.exists():
            self._show("preparing the log of the first days")
            children.run("prepare", self._commands.prepare(), self._pause)
        self._started = time.time()
        children.start("stream", self._commands.stream())
        first = day_name(self._settings.first_days - 1)
        bundles = self._files.bundles
        what = f"training on the days up to {first}"
        self._wait(children, what, lambda: any(bundles.glob("[!.]*/manifest.json")))
        children.start("serve", self._commands.serve(port))
        self._wait(children, "starting the service", lambda: client.served() is not None)
        children.start("join", self._commands.join())

    # --- days ---------------------------------------------------------------------------------------------------------

    def _continue(
        self, children: ChildProcesses, client: HttpUsers, before: LivePortion | None, portion: LivePortion
    ) -> None:
        """Let users ask and react until the last day was learned."""
        if before is not None:  # the service may have died before it recorded this
            self._show("sending the last requests again")
            client.rank(self._bodies(before))
            client.report(map(with_repetitions, self._events))
        self._wait_for_model(children, client)
        while self._ended < self.last:
            self._show(f"users of {day_name(portion.day)}")
            ranked = client.rank(self._bodies(portion))
            models = [self._bundles.get(answer["model"], answer["model"]) for answer in ranked]
            answers = Answers.of([answer["ids"] for answer in ranked], models)
            self._files.save_answers(portion, answers)
            late = _of_portion(self._events, late=True)  # of the one before
            self._react(portion, answers)
            client.report(map(with_repetitions, [*_of_portion(self._events, late=False), *late]))
            children.check()
            self._check_stop()
            self._wait_for_model(children, client)
            portion = self._users.arrive()

    def _bodies(self, portion: LivePortion) -> list[dict[str, Any]]:
        return request_bodies(self._users.platform, portion.requests, ANSWERED)

    def _react(self, portion: LivePortion, answers: Answers) -> None:
        """Let users react to answers, and note what they will report."""
        reactions = self._users.react(portion, answers.items)
        self._days.add(portion, answers, reactions)
        self._events = request_events(portion, reactions)
        if portion.is_last:
            self._files.write_items(self._users)  # before the day can be joined, as its bundle needs them
        # the time in ms after which a request shows that the day before can be joined
        closing = (FIRST_DAY + portion.day * DAY + WAIT_SECONDS + MARGIN_SECONDS) * 1000
        if portion.requests.time[-1] > closing:
            self._ended = portion.day - 1

    def _wait_for_model(self, children: ChildProcesses, client: HttpUsers) -> None:
        """Wait until the service has the model that learned from the last day that can be joined."""
        day = day_name(self._ended)
        stages = [
            (f"joining {day}", lambda: (self._files.log / "days" / day / "manifest.json").is_file()),
            (f"training on {day}", lambda: (self._files.bundles / day / "manifest.json").is_file()),
            (f"loading the bundle of {day}", lambda: self._is_served(client, day)),
        ]
        if not self._is_served(client, day):
            for what, is_done in stages:
                self._wait(children, what, is_done)

    def _is_served(self, client: HttpUsers, day: str) -> bool:
        served = client.served()
        if served is not None:
            self._bundles[served.model] = served.day
        return served is not None and served.day == day

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wait(self, children: ChildProcesses, what: str, is_done: Callable[[], bool]) -> None:
        self._show(what)
        while not is_done():
            children.check()
            self._check_stream(children)
            self._pause()

    def _check_stream(self, children: ChildProcesses) -> None:
        """Raise an error if the stream reports that it could not train or export, after which it waits for more."""
        path = self._files.stream / "stream.json"
        if path.is_file() and path.stat().st_mtime > self._started:  # and not by an earlier process
            result = parse_json(path.read_bytes())
            for failure in [*result["failed"], *result["refused"]]:
                raise children.error("stream", f"reports {failure['message']}")

    def _pause(self) -> None:
        self._check_stop()
        time.sleep(POLL_SECONDS)

    def _check_stop(self) -> None:
        if self._stop():
            raise StoppedError

    def _show(self, what: str) -> None:
        self._days.update()
        self._on_change(self._days.table(self.last), what)


def _of_portion(events: list[list[dict[str, Any]]], *, late: bool) -> list[list[dict[str, Any]]]:
    """Return the events of requests whose users report them at once, or after the next portion."""
    return [of_request for of_request in events if of_request and is_late(of_request[0]["request"]) == late]


class LoopDisplay:
    """Shows on standard error what a loop does."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, emoji=False, soft_wrap=True)
        self._live: Live | None = None
        self._step = ""

    def __enter__(self) -> Self:
        """Begin."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the table."""
        self.close()

    def show(self, table: Table, step: str) -> None:
        """Show the table of the days, and what happens now."""
        if self._live is not None:
            self._live.update(Group(table, Text(step)))
        elif step != self._step:
            self.note(step)
        self._step = step

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Remove the table."""
        if self._live is not None:
            self._live.stop()
            self._live = None
