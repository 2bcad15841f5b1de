"""Commands in forks whose disk fails once, or which are killed at one operation on disk.

:func:`run` runs a command from its start with one fault. :class:`Paused` runs it once and stops at every operation;
there a fork of it goes on with an error in a copy of its directory, so that a case costs only what the command does
after the error.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import gc
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO

from rankfall.cli import main
from rankfall.storage.disk import intercepted
from rankfall.storage.files import checksum
from rankfall.storage.manifests import MANIFEST, SEAL, seal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from rankfall.storage.disk import Hook

    Kind = Literal["error", "kill", "full"]
    Tree = dict[str, str]  # path of each file, with a hash of its content

BREACH = "\0"  # starts a line about a breach on standard error
DEADLINE = 300  # seconds until a command counts as hanging
FORK_DEADLINE = 40  # seconds until a fork is given up, and its case is run from the start
TEMPORARY = re.compile(r"\..+\.(tmp|unfinished|replaced|deleted)")
KILLED_AT = ("open", "rename", "renamed", "link", "mkdir", "delete")
JOURNAL = "study.journal"  # Optuna stores times and host names in it
IN_PLACE = ("metrics.jsonl", JOURNAL)  # files that grow by whole lines
DURATION = re.compile(rb'\\?"(seconds|epoch_seconds|[a-z]+_per_second)\\?": [0-9.e+-]+')
CHECKSUM = re.compile(rb'\\"checksum\\": \\"[0-9a-f]{64}\\"')
ENDS = {
    ".parquet": b"PAR1",
    ".arrow": b"ARROW1",
    ".html": b"</html>",
    ".svg": b"</svg>",
    ".png": b"IEND\xaeB`\x82",
    ".yaml": b"\n",
    ".md": b"\n",
    ".txt": b"\n",
}
DURATIONS_IN = (".json", ".jsonl", ".safetensors")


@dataclass(frozen=True)
class Point:
    """An operation of a command."""

    operation: str
    path: str


@dataclass(frozen=True)
class Fault:
    """What happens to a command: an error of the n-th operation, a kill at it, or files of at most n bytes."""

    kind: Kind
    n: int


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or the negative number of a signal.

    Attributes:
        code: Exit code, or the negative number of a signal.
        stderr: Standard error.
        breaches: Files that were written under their final name, or got it after an error in them.
    """

    code: int
    stderr: str
    breaches: tuple[str, ...] = ()


def fails_at(operation: str, kind: Kind) -> bool:
    """Return whether faults of a kind are possible at an operation."""
    return operation in KILLED_AT if kind == "kill" else operation != "renamed"


def run(arguments: Sequence[str], directory: Path, fault: Fault | None = None, points: Path | None = None) -> Ended:
    """Run a command in a fork, with a fault; write its operations to the file `points`."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _work(arguments, directory, writer, fault, points)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        written = file.read()
    _, status = os.waitpid(child, 0)
    return _ended(os.waitstatus_to_exitcode(status), written)


def _ended(code: int, stderr: bytes) -> Ended:
    lines = stderr.decode().splitlines(keepends=True)
    breaches = tuple(line[1:].strip() for line in lines if line.startswith(BREACH))
    return Ended(code, "".join(line for line in lines if line[0] != BREACH), breaches)


def observe(arguments: Sequence[str], directory: Path, file: Path) -> tuple[Ended, list[Point]]:
    """Run a command without a fault, and return its operations too.

    Modules that it has imported are imported in this process, so that further forks need not do that.
    """
    ended = run(arguments, directory, points=file)
    seen = json.loads(file.read_text())
    for name in seen["modules"]:
        with suppress(ImportError):
            import_module(name)
    gc.freeze()  # forks then share more memory
    return ended, [Point(*point) for point in seen["points"]]


def _work(arguments: Sequence[str], directory: Path, stderr: int, fault: Fault | None, points: Path | None) -> NoReturn:
    signal.alarm(DEADLINE)
    seen: list[tuple[str, str]] = []
    imported = set(sys.modules)
    if fault is not None and fault.kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.n,) * 2)
        fault = None
    hook = _Hook(fault, stderr) if points is None else lambda operation, path: seen.append((operation, str(path)))
    code = _call(arguments, directory, stderr, hook)
    if points is not None:
        modules = [name for name in sys.modules if name not in imported]
        points.write_text(json.dumps({"points": seen, "modules": modules}))
    os._exit(code)


def _call(arguments: Sequence[str], directory: Path, stderr: int, hook: Hook) -> int:
    """Run a command in this process and return its exit code."""
    os.chdir(directory)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(stderr, 2)
    ticks = count()
    time.perf_counter = lambda: 0.001 * next(ticks)  # pages contain durations
    code = 0
    try:
        with intercepted(hook):
            main(list(arguments))
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    return code


class _Hook:
    """Lets one operation fail or ends the process there, and reports unsafe operations to a file."""

    def __init__(self, fault: Fault | None, report: int) -> None:
        self._fault, self._report = fault, report
        self._left = 0 if fault is None else fault.n
        self._broken: Path | None = None  # temporary file or directory in which an operation failed

    def __call__(self, operation: str, path: Path) -> None:
        if operation in ("open", "write") and _temporary(path) is None and not path.name.endswith((*IN_PLACE, ".lock")):
            self._breach(f"{path} is written under its final name")
        if operation == "delete" and path == self._broken:
            self._broken = None
        is_final = operation == "renamed" and _temporary(path) is None
        if is_final and self._broken is not None and not self._broken.exists():
            self._breach(f"{path} got its name after an error in it")
        if self._fault is None or not fails_at(operation, self._fault.kind):
            return
        self._left -= 1
        if self._left == 0 and self._fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._left == 0:
            raise self._error(operation, path)

    def _breach(self, text: str) -> None:
        os.write(self._report, f"{BREACH}{text}\n".encode())

    def _error(self, operation: str, path: Path) -> OSError:
        """Return the error of an operation, and remember where it happened."""
        self._broken = _temporary(path)
        if operation == "delete" or (operation in ("open", "mkdir") and self._broken == path):
            self._broken = None  # nothing is broken: it is still there, or was never created
        number = errno.EIO if operation in ("sync", "delete") else errno.ENOSPC
        return OSError(number, os.strerror(number), str(path))


def _temporary(path: Path) -> Path | None:
    """Return the outermost temporary file or directory that contains a path, or None."""
    return next((one for one in (*reversed(path.parents), path) if TEMPORARY.fullmatch(one.name)), None)


# --- a command that stops at every operation ------------------------------------------------------------------------


@contextmanager
def set_apart(directory: Path) -> Iterator[None]:
    """Let a copy have the name of a directory, so that it may be changed. The directory itself is back at the end."""
    apart = _apart(directory)
    directory.rename(apart)
    try:
        shutil.copytree(apart, directory, symlinks=True)
        yield
    finally:
        shutil.rmtree(directory)
        apart.rename(directory)


def _apart(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}-apart")


class Paused:
    """A command in a fork that stops before each of its operations on disk, and after each rename.

    Iterating yields the operations. At each of them, :meth:`failed` lets a fork of the command go on with an error. A
    kill at an operation leaves the directory as it is there.
    """

    def __init__(self, arguments: Sequence[str], directory: Path, scratch: Path) -> None:
        self._stderr = scratch / "stderr.txt"
        self._stderr.write_bytes(b"")
        ours, theirs = os.pipe(), os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(ours[0])
            os.close(theirs[1])
            hook = _Stops(directory, self._stderr, os.fdopen(ours[1], "w"), os.fdopen(theirs[0]))
            stderr = os.open(self._stderr, os.O_WRONLY | os.O_APPEND)
            hook.end(_call(arguments, directory, stderr, hook))
        os.close(ours[1])
        os.close(theirs[0])
        self._answers, self._requests = os.fdopen(ours[0]), os.fdopen(theirs[1], "w")
        self.ended: Ended | None = None  # of the command itself, which has met no error

    def __enter__(self) -> Paused:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.close()  # which ends the command
        self._answers.close()
        os.waitpid(self._child, 0)

    def __iter__(self) -> Iterator[Point]:
        """Yield each operation while the command waits there."""
        for line in self._answers:
            answer = json.loads(line)
            if "code" in answer:
                self.ended = _ended(answer["code"], self._stderr.read_bytes())
                return
            yield Point(*answer["point"])
            self._ask("go")

    def failed(self) -> Ended | None:
        """Let a fork go on with an error, in the directory that now has the name of that of the command.

        Returns:
            How it ended; None if it cannot go on, because the operation or something it waits for is in another thread.
        """
        before = self._stderr.stat().st_size
        self._ask("fail")
        code = json.loads(self._answers.readline())["code"]
        with self._stderr.open("r+b") as file:
            file.seek(before)
            ended = _ended(0 if code is None else code, file.read())
            file.truncate(before)
        return None if code in (None, -signal.SIGALRM) else ended

    def _ask(self, request: str) -> None:
        self._requests.write(f"{request}\n")
        self._requests.flush()


class _Stops(_Hook):
    """Reports each operation, and waits for requests there."""

    def __init__(self, directory: Path, stderr: Path, answers: TextIO, requests: TextIO) -> None:
        super().__init__(None, os.open(stderr, os.O_WRONLY | os.O_APPEND))
        self._directory, self._answers, self._requests = directory, answers, requests
        self._stopping = True

    def __call__(self, operation: str, path: Path) -> None:
        super().__call__(operation, path)
        if not self._stopping:
            return
        self._answer(point=[operation, str(path)])
        while (request := self._requests.readline()) == "fail\n":
            self._answer(code=self._fork(operation, path))
        if not request:  # nobody asks any more
            os._exit(0)

    def end(self, code: int) -> NoReturn:
        """End this process: a fork with its code, the command itself after its code was reported."""
        if self._stopping:
            self._answer(code=code)
        os._exit(code)

    def _fork(self, operation: str, path: Path) -> int | None:
        """Return the exit code of a fork in which the operation fails; None if its main thread would be missing."""
        if threading.current_thread() is not threading.main_thread():
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(FORK_DEADLINE)
        self._stopping = False
        _move_to_copy(self._directory)
        raise self._error(operation, path)

    def _answer(self, **answer: object) -> None:
        self._answers.write(f"{json.dumps(answer)}\n")
        self._answers.flush()


def _move_to_copy(directory: Path) -> None:
    """Let all open files be those of the copy of a directory that was set apart, with their positions and locks."""
    apart = str(_apart(directory))
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the list itself was open
            path = os.readlink(f"/proc/self/fd/{name}")
            if path == apart or path.startswith(f"{apart}/"):
                _reopen(int(name), directory / os.path.relpath(path, apart))
    os.chdir(directory)


def _reopen(handle: int, path: Path) -> None:
    kept = os.O_ACCMODE | os.O_APPEND | os.O_DIRECTORY
    copied = os.open(path, fcntl.fcntl(handle, fcntl.F_GETFL) & kept)
    if not path.is_dir():
        os.lseek(copied, os.lseek(handle, 0, os.SEEK_CUR), os.SEEK_SET)
    if "FLOCK" in Path(f"/proc/self/fdinfo/{handle}").read_text():
        fcntl.flock(copied, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.dup2(copied, handle, inheritable=False)
    os.close(copied)


# --- directories --------------------------------------------------------------------------------------------------


def copy(source: Path, target: Path) -> None:
    """Let a directory have the content of another one."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)


def tree(directory: Path) -> Tree:
    """Return the files, links and directories below a directory."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = hashlib.sha256(_without_times(path)).hexdigest()
    return found


def _without_times(path: Path) -> bytes:
    """Return the content of a file without durations, which depend on the number of interruptions.

    The journal of a search has a line for each trial that was interrupted, so only its last line must be complete.
    """
    content = path.read_bytes()
    if path.name == JOURNAL and is_whole(path):
        return b""
    if path.name == MANIFEST and b'"format": "rankfall run"' in content and is_whole(path):
        return _agreement(path.parent, json.loads(content)).encode()
    if path.suffix == ".safetensors" and is_whole(path):  # the checksum and the length of its header depend on them
        start = 8 + int.from_bytes(content[:8], "little")
        content = CHECKSUM.sub(b"", content[8:start]).rstrip() + content[start:]
    return DURATION.sub(b"", content) if path.suffix in DURATIONS_IN else content


def _agreement(run: Path, manifest: dict[str, Any]) -> str:
    """Return which files of a run have the checksums of its manifest: the checksums depend on durations."""
    same = {
        name: (run / name).is_file() and checksum(run / name) == about["sha256"]
        for name, about in manifest["files"].items()
    }
    return json.dumps({**manifest, "files": same, SEAL: manifest[SEAL] == seal(manifest)})


def leftovers(found: Tree) -> list[str]:
    """Return the temporary files and directories among files, without those inside of others."""
    names = [name for name in found if TEMPORARY.fullmatch(Path(name).name)]
    return [name for name in names if not any(name.startswith(f"{other}/") for other in names)]


def is_whole(path: Path) -> bool:
    """Return whether a file is complete, by what its format says about its own size or end."""
    content = path.read_bytes()
    if path.suffix == ".json":
        return _is_json(content)
    if path.name == JOURNAL:  # the next process that opens it removes an incomplete last line
        return all(map(_is_json, content.split(b"\n")[:-1]))
    if path.suffix == ".jsonl":
        return content[-1:] in (b"", b"\n") and all(map(_is_json, content.splitlines()))
    if path.suffix == ".safetensors":
        header = int.from_bytes(content[:8], "little")
        ends = [about["data_offsets"][1] for key, about in json.loads(content[8 : 8 + header]).items() if key[0] != "_"]
        return len(content) == 8 + header + max(ends, default=0)
    if path.suffix == ".csv":
        return content.endswith(b"\n") and len({len(row) for row in csv.reader(content.decode().splitlines())}) == 1
    if path.suffix in ENDS:
        return content.rstrip(b"\n" if path.suffix in (".html", ".svg") else b"").endswith(ENDS[path.suffix])
    return not content  # a lock, a mark


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
