"""The table of faults: every command, every operation on disk, an error, a kill, a full disk.

``python -m support.fault_table`` (``make faults``) prints it. A case is clean if

- after an error, the command ends with code 1 and an error message without a traceback, and leaves no temporary file;
- after any fault, every file under its final name is complete, and earlier content is intact;
- the next run succeeds, gives the bytes of a run without a fault, and removes what a killed process left, with a note.
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

from support.fault_commands import COMMANDS, Command, write_inputs, write_leftovers
from support.faulty_disk import Fault, copy, fails_at, is_whole, leftovers, observe, run, tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.faulty_disk import Ended, Kind, Point, Tree

IMPORTED = (
    "torch._dynamo",
    "rankfall.training.train",
    "rankfall.studies.compare",
    "rankfall.studies.stream.run_stream",
)
TOKEN = re.compile(r"\.[0-9a-f]{8}\.(tmp|unfinished|replaced|deleted)")
LIMITS = (0, 1, 100, 1000, 4096, 20_000)  # bytes of a file


@dataclass
class Row:
    """A command of the table: the number of its operations by name, of cases by kind, CPU seconds and problems."""

    command: str
    points: dict[str, int]
    cases: dict[str, int] = field(default_factory=dict)
    cpu: float = 0.0  # seconds
    problems: list[str] = field(default_factory=list)


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

    def row(self, command: Command, *, sample: random.Random | None, writes: int) -> Row:
        """Run a command with all faults, or with a sample of them, and at most `writes` failing writes per file."""
        points = self.observed(command)
        row = Row(command.name, dict(Counter(point.operation for point in points)))
        judge = _Judge(self, command)
        for fault, what in _faults(points, command, sample, writes):
            row.cases[fault.kind] = row.cases.get(fault.kind, 0) + 1
            row.problems += [f"{fault.kind} {fault.n} ({what}): {problem}" for problem in judge.problems(fault)]
        return row


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

    def problems(self, fault: Fault) -> list[str]:
        """Run the command with a fault, then without; return what is wrong."""
        copy(self._given, self._case)
        ended = run(self._command.arguments, self._case, fault)
        after = tree(self._case)
        found = [*ended.breaches, *self._of_output(after)]
        if fault.kind == "kill":
            found += [] if ended.code == -9 else [f"exit code {ended.code}, expected a kill"]
        else:
            found += self._of_error(fault, ended, after)
        state = TOKEN.sub(r".\1", json.dumps({**after, **dict.fromkeys(_inside(after), "")}))
        if after in (self.before, self.reference):
            return found  # the next run is one without a fault, or everything was written before the fault
        if state not in self._continued:
            self._continued[state] = self._of_next_run(leftovers(after))
        return found + self._continued[state]

    def _of_error(self, fault: Fault, ended: Ended, after: Tree) -> list[str]:
        found = []
        if "Traceback" in ended.stderr or "Exception ignored" in ended.stderr:
            found.append(f"traceback: {ended.stderr[-600:]}")
        kept = "cannot be deleted" in ended.stderr or "cannot be removed" in ended.stderr
        if ended.code == 0 and not kept and fault.kind == "error":  # a limit may be above the size of all files
            found.append("exit code 0 without a word")
        if ended.code == 0 and self._without_temporary(after) != self._without_temporary(self.reference):
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


def _faults(
    points: Sequence[Point], command: Command, sample: random.Random | None, writes: int
) -> Iterator[tuple[Fault, str]]:
    kinds: tuple[Kind, ...] = ("error", "kill")
    for kind in kinds:
        possible = [point for point in points if fails_at(point.operation, kind)]
        chosen = _sampled(possible, kind, command, sample) if sample else _kept(possible, writes)
        for number in chosen:
            yield Fault(kind, number + 1), f"{possible[number].operation} {Path(possible[number].path).name}"
    if any(point.operation == "write" for point in points):
        for size in [0] * command.cheap if sample else LIMITS:
            yield Fault("full", size), f"files of at most {size} bytes"


def _kept(points: Sequence[Point], writes: int) -> list[int]:
    """Return all operations, but per file only the first and last of its writes, and some in between."""
    of_file: dict[str, list[int]] = {}
    for number, point in enumerate(points):
        if point.operation == "write":
            of_file.setdefault(point.path, []).append(number)
    left_out = set()
    for numbers in of_file.values():
        step = max(1, -(-len(numbers) // writes))
        left_out |= set(numbers) - {*numbers[::step], numbers[-1]}
    return [number for number in range(len(points)) if number not in left_out]


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
    parser.add_argument("--writes", type=int, default=1 << 30, help="failing writes per file; default: all")
    parser.add_argument("--json", type=Path, help="file for the table as JSON")
    options = parser.parse_args()
    for name in IMPORTED:
        import_module(name)
    rows = []
    memory = Path("/dev/shm")  # where syncing takes no time
    with tempfile.TemporaryDirectory(prefix="rankfall-faults-", dir=memory if memory.is_dir() else None) as directory:
        os.environ["XDG_STATE_HOME"] = os.environ["TMPDIR"] = str(Path(directory) / "state")
        Path(os.environ["TMPDIR"]).mkdir()
        table = Table(Path(directory))
        for command in COMMANDS:
            if not options.commands or command.name in options.commands:
                sample = None if options.short is None else random.Random(f"{options.short} {command.name}")
                before = sum(os.times()[:4])
                rows.append(table.row(command, sample=sample, writes=options.writes))
                rows[-1].cpu = round(sum(os.times()[:4]) - before, 1)
                _print_row(rows[-1])
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    sys.exit(any(row.problems for row in rows))


def _print_row(row: Row) -> None:
    cases = ", ".join(f"{count} {kind}" for kind, count in row.cases.items())
    points = ", ".join(f"{count} {name}" for name, count in row.points.items() if name != "renamed")
    verdict = "clean" if not row.problems else f"{len(row.problems)} PROBLEMS"
    sys.stdout.write(f"| {row.command} | {points} | {cases} | {row.cpu} s | {verdict} |\n")
    for problem in row.problems:
        sys.stdout.write(f"    {problem}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
