"""Commands in forks whose disk fails once, or which are killed at one operation on disk."""

from __future__ import annotations

import csv
import errno
import gc
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from rankfall._disk import intercepted
from rankfall._files import checksum
from rankfall._manifest import MANIFEST
from rankfall._seal import SEAL, seal
from rankfall.cli import main

if TYPE_CHECKING:
    from collections.abc import Sequence

    Kind = Literal["error", "kill", "full"]
    Tree = dict[str, str]  # path of each file, with a hash of its content

BREACH = "\0"  # starts a line about a breach on standard error
DEADLINE = 300  # seconds until a command counts as hanging
TEMPORARY = re.compile(r"\..+\.(tmp|unfinished|replaced|deleted)")
KILLED_AT = ("open", "rename", "renamed", "link", "mkdir", "delete")
JOURNAL = "study.journal"  # Optuna stores times and host names in it
IN_PLACE = ("metrics.jsonl", JOURNAL)  # files that grow by whole lines
DURATION = re.compile(rb'\\?"(seconds|epoch_seconds|[a-z]+_per_second)\\?": [0-9.e+-]+')
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
        lines = file.read().decode().splitlines(keepends=True)
    _, status = os.waitpid(child, 0)
    breaches = tuple(line[1:].strip() for line in lines if line.startswith(BREACH))
    return Ended(os.waitstatus_to_exitcode(status), "".join(line for line in lines if line[0] != BREACH), breaches)


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
    os.chdir(directory)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(stderr, 2)
    ticks = count()
    time.perf_counter = lambda: 0.001 * next(ticks)  # pages contain durations
    seen: list[tuple[str, str]] = []
    imported = set(sys.modules)
    code = 0
    try:
        with ExitStack() as stack:
            if points is not None:
                stack.enter_context(intercepted(lambda operation, path: seen.append((operation, str(path)))))
            elif fault is not None and fault.kind == "full":
                resource.setrlimit(resource.RLIMIT_FSIZE, (fault.n,) * 2)
                stack.enter_context(intercepted(_Hook(None, stderr)))
            else:
                stack.enter_context(intercepted(_Hook(fault, stderr)))
            main(list(arguments))
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 99
    if points is not None:
        modules = [name for name in sys.modules if name not in imported]
        points.write_text(json.dumps({"points": seen, "modules": modules}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Hook:
    """Lets one operation fail or ends the process there, and reports unsafe operations to a file."""

    def __init__(self, fault: Fault | None, report: int) -> None:
        self._fault, self._report = fault, report
        self._left = 0 if fault is None else fault.n
        self._broken: Path | None = None  # temporary file or directory in which an operation failed

    def __call__(self, operation: str, path: Path) -> None:
        temporary = _temporary(path)
        if operation in ("open", "write") and temporary is None and not path.name.endswith((*IN_PLACE, ".lock")):
            self._breach(f"{path} is written under its final name")
        if operation == "delete" and path == self._broken:
            self._broken = None
        if operation == "renamed" and self._broken is not None and not self._broken.exists():
            self._breach(f"{path} got its name after an error in it")
        if self._fault is None or not fails_at(operation, self._fault.kind):
            return
        self._left -= 1
        if self._left == 0 and self._fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._left == 0:
            self._broken = None if operation == "delete" else temporary
            number = errno.EIO if operation in ("sync", "delete") else errno.ENOSPC
            raise OSError(number, os.strerror(number), str(path))

    def _breach(self, text: str) -> None:
        os.write(self._report, f"{BREACH}{text}\n".encode())


def _temporary(path: Path) -> Path | None:
    """Return the outermost temporary file or directory that contains a path, or None."""
    return next((one for one in (*reversed(path.parents), path) if TEMPORARY.fullmatch(one.name)), None)


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
    if path.suffix == ".jsonl" or path.name == JOURNAL:
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
