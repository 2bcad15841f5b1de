"""The table of faults: every command, every operation on disk, an error, a kill, a full disk.

``python -m support.fault_table`` (``make faults``) prints it. Each command runs once. At each of its operations a fork
of it goes on with an error, and the directory is judged as a kill would leave it. Where a fork cannot go on, because
the command has further threads, the case is run from the start, as all cases of a sample are. A case is clean if

- after an error, the command ends with code 1 and an error message without a traceback, and leaves no temporary file;
- after any fault, every file under its final name is complete, and earlier content is intact;
- the next run succeeds, gives the bytes of a run without a fault, and removes what a killed process left, with a note.

The next run happens once per set of files under final names and of temporary names: what is inside a temporary
directory is deleted whatever it is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from support.fault_commands import COMMANDS, SCRATCH, Command, reduce_work, write_inputs, write_leftovers
from support.faulty_disk import Ended, Fault, Paused, copy, fails_at, is_whole, leftovers, observe, run, set_apart, tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.faulty_disk import Kind, Point, Tree

IMPORTED = (
    "rankfall.serving",  # before onnxruntime, whose telemetry it turns off
    "torch._dynamo",
    "rankfall.training.methods",
    "rankfall.studies.compare",
    "rankfall.studies.stream.run_stream",
)
TOKEN = re.compile(r"\.[0-9a-f]{8}\.(tmp|unfinished|replaced|deleted)")
KINDS: tuple[Kind, ...] = ("error", "kill")
KILLED = Ended(-9, "")
LIMITS = (0, 1, 100, 1000, 4096, 20_000)  # bytes of a file


@dataclass
class Row:
    """A command of the table: the number of its operations by name, of cases by kind, CPU seconds and problems."""

    command: str
    points: dict[str, int]
    cases: dict[str, int] = field(default_factory=dict)
    from_start: int = 0  # cases that no fork could run
    cpu: float = 0.0  # seconds
    problems: list[str] = field(default_factory=list)

    def add(self, fault: Fault, what: str, problems: Sequence[str]) -> None:
        """Count a case."""
        self.cases[fault.kind] = self.cases.get(fault.kind, 0) + 1
        self.problems += [f"{fault.kind} {fault.n} ({what}): {problem}" for problem in problems]


class Table:
    """Runs commands with faults in a directory that it may fill."""

    def __init__(self, work: Path) -> None:
        self.work, self.case = work, work / "case"
        self._done: dict[str, Path] = {}  # directories before and after each command

    def given(self, command: Command) -> Path:
        """Return a directory with everything that a command needs."""
        place = self.work / "given" / str(COMMANDS.index(command))
        if not place.exists():
            needed = [one for need in command.needs for one in COMMANDS if one.name == need]
            for other in needed:
                self.finished(other)  # in the same directory, before this one is filled
            shutil.rmtree(self.case, ignore_errors=True)
            self.case.mkdir()
            write_inputs(self.case)
            if command.name == "clean":
                write_leftovers(self.case)
            for other in needed:
                _copy_any(self.finished(other) / other.out, self.case / other.out)
            place.parent.mkdir(exist_ok=True)
            self.case.rename(place)
        return place

    def finished(self, command: Command) -> Path:
        """Return the directory after a command without a fault."""
        if command.name not in self._done:
            self.observed(command)
        return self._done[command.name]

    def observed(self, command: Command) -> list[Point]:
        """Run a command without a fault and return its operations."""
        copy(self.given(command), self.case)
        ended, points = observe(command.arguments, self.case, self.work / "points.json")
        assert ended.code == 0, f"{command.name}: {ended.stderr}"
        place = self.work / "finished" / str(COMMANDS.index(command))
        place.parent.mkdir(exist_ok=True)
        self.case.rename(place)
        self._done[command.name] = place
        return points

    def row(self, command: Command, sample: random.Random | None = None) -> Row:
        """Run a command with all faults, or with a sample of them."""
        points = self.observed(command)
        row = Row(command.name, dict(Counter(point.operation for point in points)))
        judge = _Judge(self, command)
        chosen = list(_sampled_faults(points, command, sample)) if sample else self._in_forks(command, row, judge)
        if any(point.operation == "write" for point in points):
            sizes = [0] * command.cheap if sample else LIMITS
            chosen += [(Fault("full", size), f"files of at most {size} bytes") for size in sizes]
        for fault, what in chosen:
            row.add(fault, what, judge.run_from_start(fault))
        return row

    def _in_forks(self, command: Command, row: Row, judge: _Judge) -> list[tuple[Fault, str]]:
        """Add all errors and kills to a row, but return those that must be run from the start."""
        from_start: list[tuple[Fault, str]] = []
        numbers: Counter[Kind] = Counter()
        copy(self.given(command), self.case)
        with Paused(command.arguments, self.case, self.work) as paused:
            for point in paused:
                for kind in KINDS:
                    if not fails_at(point.operation, kind):
                        continue
                    numbers[kind] += 1
                    fault, what = Fault(kind, numbers[kind]), _described(point)
                    with set_apart(self.case):
                        ended = KILLED if kind == "kill" else paused.failed()
                        if ended is None:
                            from_start.append((fault, what))
                        else:
                            row.add(fault, what, judge.problems(fault, ended))
        assert paused.ended is not None
        assert paused.ended.code == 0, paused.ended.stderr
        assert tree(self.case) == judge.reference, "forks changed the directory of the command"
        row.from_start = len(from_start)
        return from_start


def _copy_any(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


class _Judge:
    """Finds out whether the cases of a command are clean."""

    def __init__(self, table: Table, command: Command) -> None:
        self._table, self._command, self._case = table, command, table.case
        self._given = table.given(command)
        self.before, self.reference = tree(self._given), tree(table.finished(command))
        self._continued: dict[str, list[str]] = {}  # problems of the next run by what it found

    def run_from_start(self, fault: Fault) -> list[str]:
        """Run the command with a fault, then without; return what is wrong."""
        copy(self._given, self._case)
        return self.problems(fault, run(self._command.arguments, self._case, fault))

    def problems(self, fault: Fault, ended: Ended) -> list[str]:
        """Judge how the command ended and what it left, and run it again; return what is wrong."""
        after = tree(self._case)
        found = [*ended.breaches, *self._of_output(after)]
        if fault.kind == "kill":
            found += [] if ended.code == -9 else [f"exit code {ended.code}, expected a kill"]
        else:
            found += self._of_error(fault, ended, after)
        left = leftovers(after)
        state = TOKEN.sub(r".\1", json.dumps([self._without_temporary(after), left]))
        if after in (self.before, self.reference):
            return found  # the next run is one without a fault, or everything was written before the fault
        if state not in self._continued:
            self._continued[state] = self._of_next_run(left)
        return found + self._continued[state]

    def _of_error(self, fault: Fault, ended: Ended, after: Tree) -> list[str]:
        found = []
        if "Traceback" in ended.stderr or "Exception ignored" in ended.stderr:
            found.append(f"traceback: {ended.stderr[-600:]}")
        kept = "cannot be deleted" in ended.stderr or "cannot be removed" in ended.stderr
        if ended.code == 0 and not kept and fault.kind == "error":  # a limit may be above the size of all files
            found.append("exit code 0 without a word")
        now, new = self._without_temporary(after), self._without_temporary(self.reference)
        if ended.code == 0 and not (now.items() >= new.items() if kept else now == new):
            found.append("exit code 0 and other output than without the fault")
        if ended.code not in (0, 1) or (ended.code == 1 and "error: " not in ended.stderr):
            found.append(f"exit code {ended.code}: {ended.stderr[-600:]}")
        if leftovers(after) and not kept and self._command.name != "clean":
            found.append(f"leftovers {leftovers(after)}")
        return found

    def _of_output(self, after: Tree) -> list[str]:
        ours = self._without_temporary(after)
        if self._command.whole:
            now, old, new = (_below(self._command.out, one) for one in (ours, self.before, self.reference))
            return [] if now in (old, new) else [f"{self._command.out} is neither old nor new"]
        lost = [name for name in self.before if name not in after and name in self.reference]
        found = [] if "--force" in self._command.line else [f"{name} is gone" for name in lost]
        for name, content in ours.items():
            if content not in (self.before.get(name), self.reference.get(name)) and content != "directory":
                found += [] if is_whole(self._case / name) else [f"{name} is incomplete"]
        return found

    @staticmethod
    def _without_temporary(found: Tree) -> Tree:
        return {name: content for name, content in found.items() if name not in _inside(found)}

    def _of_next_run(self, left: Sequence[str]) -> list[str]:
        arguments = self._command.repeated
        if self._command.whole and (self._case / self._command.out).exists() and "--force" not in arguments:
            arguments = [*arguments, "--force"]  # the fault came after the output had its name
        ended = run(arguments, self._case)
        after = tree(self._case)
        if ended.code == 1 and self._command.done and self._command.done in ended.stderr:
            return [] if after.items() >= self.reference.items() else ["next run: not everything was written"]
        if ended.code or ended.breaches or "Traceback" in ended.stderr:
            return [f"next run: exit code {ended.code}: {ended.stderr[-600:]} {ended.breaches}"]
        found = [f"next run: leftovers {leftovers(after)}"] if leftovers(after) else []
        different = [name for name in {**after, **self.reference} if after.get(name) != self.reference.get(name)]
        if different:
            found.append(f"next run: differs in {', '.join(sorted(different)[:5])}")
        if left and self._command.name != "clean" and "which a process that has died left" not in ended.stderr:
            found.append(f"next run: no note about {left}")
        return found


def _inside(found: Tree) -> set[str]:
    """Return temporary files and directories, and what is inside of them."""
    left = leftovers(found)
    return {name for name in found for one in left if name == one or name.startswith(f"{one}/")}


def _below(out: str, found: Tree) -> Tree:
    return {name: content for name, content in found.items() if name == out or name.startswith(f"{out}/")}


def _described(point: Point) -> str:
    return f"{point.operation} {Path(point.path).name}"


def _sampled_faults(points: Sequence[Point], command: Command, sample: random.Random) -> Iterator[tuple[Fault, str]]:
    for kind in KINDS:
        possible = [point for point in points if fails_at(point.operation, kind)]
        for number in _sampled(possible, kind, command, sample):
            yield Fault(kind, number + 1), _described(possible[number])


def _sampled(points: Sequence[Point], kind: Kind, command: Command, sample: random.Random) -> list[int]:
    """Return the first, the last and a random operation, or only the random one; of kills, a random rename."""
    if kind == "kill":
        return [sample.choice([number for number, point in enumerate(points) if "rename" in point.operation])]
    chosen = {sample.randrange(len(points))}
    return sorted({0, len(points) - 1} | chosen if command.cheap else chosen)


def main() -> None:
    """Print the table, and exit with code 1 if a case is not clean."""
    parser = argparse.ArgumentParser(description="Run every command with every fault of a disk, and print a table.")
    parser.add_argument("--commands", nargs="*", help="names of commands; default: all")
    parser.add_argument("--short", type=int, metavar="SEED", help="a sample of the faults")
    parser.add_argument("--json", type=Path, help="file for the table as JSON")
    options = parser.parse_args()
    for name in IMPORTED:
        import_module(name)
    rows = []
    memory = Path("/dev/shm")  # where syncing takes no time
    with tempfile.TemporaryDirectory(prefix="rankfall-faults-", dir=memory if memory.is_dir() else None) as directory:
        table = Table(Path(directory))
        if options.short is None:
            reduce_work(Path(directory) / "graphs")
        os.environ["XDG_STATE_HOME"] = os.environ["TMPDIR"] = str(table.case / SCRATCH)
        for command in COMMANDS:
            if not options.commands or command.name in options.commands:
                sample = None if options.short is None else random.Random(f"{options.short} {command.name}")
                before = sum(os.times()[:4])
                rows.append(table.row(command, sample))
                rows[-1].cpu = round(sum(os.times()[:4]) - before, 1)
                _print_row(rows[-1])
                if options.json:
                    options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    sys.exit(any(row.problems for row in rows))


def _print_row(row: Row) -> None:
    """Print a row of the table in the documentation, its CPU time, and problems below it."""
    operations = sum(count for name, count in row.points.items() if name != "renamed")
    cases = " | ".join(str(row.cases.get(kind, 0)) for kind in (*KINDS, "full"))
    verdict = "clean" if not row.problems else f"{len(row.problems)} PROBLEMS"
    sys.stdout.write(f"| `{row.command}` | {operations} | {cases} | {verdict} |  {row.cpu} s\n")
    for problem in row.problems:
        sys.stdout.write(f"    {problem}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
