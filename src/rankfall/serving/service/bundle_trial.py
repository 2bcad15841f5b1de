"""Load and check a bundle in a process of its own, with limits of memory and time, before the service loads it.

A graph of a few kilobytes can ask for any amount of memory or time, and an error in onnxruntime or faiss can end the
process. Neither may stop a service that is asked to load the bundle. What passed once is not tried again: the seal
of a bundle holds the checksums of all its files.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall._errors import RankfallError
from rankfall.serving.bundle_files import read_manifest
from rankfall.serving.service import settings as limits
from rankfall.storage.files import locked, write_file
from rankfall.storage.manifests import SEAL

if TYPE_CHECKING:
    from collections.abc import Callable

_passed: set[str] = set()  # seals of bundles that this process has tried


def try_bundle(path: Path, copies: Path | None = None) -> str:
    """Load and check a bundle in another process, unless it has passed before, and return its seal.

    Args:
        path: The bundle.
        copies: Directory that several workers share, of which one tries the bundle.

    Raises:
        ValueError: If the bundle is invalid, or needs more memory or time than a bundle of its size may.
        OSError: If its files cannot be read.
    """
    manifest = read_manifest(path)
    seal: str = manifest[SEAL]
    if seal in _passed:
        return seal
    size = sum(about["bytes"] for about in manifest["files"].values())
    if copies is None:
        _run(path, seal, size)
    else:
        with locked(copies / "trial.lock", wait=True):
            passed = copies / f"{seal}.passed"
            if not passed.exists():
                _run(path, seal, size)
                write_file(passed, "")
    _passed.add(seal)
    return seal


def _run(path: Path, seal: str, size: int) -> None:
    memory = limits.TRIAL_BYTES + limits.TRIAL_BYTES_PER_BYTE * size
    seconds = limits.TRIAL_SECONDS + size // limits.TRIAL_BYTES_PER_SECOND
    command = [sys.executable, "-P", "-m", __name__, str(path), seal, str(memory), str(seconds)]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        # time of the processor is limited; this is for a process that waits
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10 * seconds, env=os.environ | one_thread
        )
    except subprocess.TimeoutExpired:
        raise RankfallError(f"path: {path} was not loaded within {10 * seconds:,} seconds") from None
    if done.returncode == -signal.SIGXCPU:
        raise RankfallError(f"path: {path} needs more than {seconds:,} seconds to load and to answer its examples")
    if done.returncode < 0:
        raise RankfallError(f"path: {path} ended the process that tried it (signal {-done.returncode})")
    if done.returncode:
        lines = done.stdout.splitlines()
        if not lines:
            raise RankfallError(f"path: {path} cannot be tried: {done.stderr.decode(errors='replace')[-1000:].strip()}")
        is_of_system, message = json.loads(lines[-1])
        raise OSError(message) if is_of_system else RankfallError(message)


def main(check: Callable[[], object], memory: int, seconds: int) -> None:
    """Check a bundle within limits; print the error and exit with 1 if it is refused."""
    used = _writable_memory()
    resource.setrlimit(resource.RLIMIT_DATA, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        check()
    except (ValueError, OSError) as error:
        is_memory = any(word in str(error).lower() for word in ("alloc", "memory"))  # as the libraries say it
        limit = f"; it may use {memory:,} bytes of memory to load and to answer its examples" if is_memory else ""
        sys.stdout.write(json.dumps([isinstance(error, OSError), f"{error}{limit}"]))
    else:
        return
    sys.exit(1)


def _writable_memory() -> int:
    """Return what RLIMIT_DATA counts of this process, as far as the system tells."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 2**30
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:"))


if __name__ == "__main__":
    from rankfall.serving.service.bundle_slots import load_untried

    main(partial(load_untried, Path(sys.argv[1]), None, sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
