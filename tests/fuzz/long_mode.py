"""The long mode: ``make fuzz MINUTES=60``.

Rounds until the time is over: all properties with hypothesis in another order and from a new seed, then the readers
under atheris, if it is installed. Properties that no round has reached yet come first. The seeds are printed, and each
failure with the command that repeats it. The smallest failing input of a property, and the input at which a process
ended, are written to ``tests/fuzz/corpus/``; commit them together with the change that mends the failure.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
CORPUS = TESTS / "fuzz" / "corpus"
SCRATCH = TESTS.parent / ".fuzz"  # inputs that atheris found to cover more, and the output of all rounds
MEMORY = 8 << 30  # bytes that a process may allocate: a case that needs more is a finding
GUIDED = ("json", "letor", "csv", "pickle")  # readers that atheris calls
GUIDED_SHARE = 0.25  # of the time
LONGEST_ROUND = 900  # seconds, which the properties and the readers share


@dataclass
class Total:
    """What one property did in all rounds."""

    cases: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)  # commands that repeat them


def main() -> int:
    """Run rounds for some minutes, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="seed of the first round; by default a new one")
    parser.add_argument("--only", type=Path, default=TESTS, help="directory of the tests; by default all")
    options = parser.parse_args()
    SCRATCH.mkdir(exist_ok=True)
    totals: dict[str, Total] = defaultdict(Total)
    end = time.time() + 60 * options.minutes
    seed = secrets.randbits(32) if options.seed is None else options.seed
    rounds = 0
    while time.time() < end:
        rounds += 1
        print(f"round {rounds}, seed {seed}", flush=True)
        length = min(end - time.time(), LONGEST_ROUND)
        run_properties(options.only, seed, time.time() + length * (1 - GUIDED_SHARE), totals)
        run_guided(seed, min(end - time.time(), length * GUIDED_SHARE), totals)
        seed = secrets.randbits(32)
    return print_totals(totals, rounds)


# --- properties -----------------------------------------------------------------------------------------------------


def run_properties(tests: Path, seed: int, until: float, totals: dict[str, Total]) -> None:
    """Run all properties of a directory once."""
    files = sorted(path for path in tests.resolve().rglob("test_*.py") if "hypothesis" in path.read_text())
    log, record = SCRATCH / f"round-{seed}.txt", SCRATCH / f"round-{seed}.jsonl"
    record.unlink(missing_ok=True)
    done_before = SCRATCH / f"round-{seed}-done.txt"
    done_before.write_text("\n".join(totals))
    with tempfile.TemporaryDirectory() as open_cases, log.open("w") as output:
        command = [
            sys.executable, "-m", "pytest", "-n", "0", "-q", "-m", "hypothesis or fuzz", "-p", "fuzz.record",
            "-p", "no:cacheprovider", "--hypothesis-profile=long", f"--hypothesis-seed={seed}", f"--fuzz-order={seed}",
            f"--fuzz-until={until}", f"--fuzz-record={record}", f"--fuzz-done={done_before}", *map(str, files),
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=TESTS.parent, stdout=output, stderr=subprocess.STDOUT, check=False, preexec_fn=_limit_memory,
            env=os.environ | {"PYTHONPATH": _python_path(), "RANKFALL_FUZZ_CASES": open_cases},
        )  # fmt: skip
        for case in Path(open_cases).iterdir():
            keep(case.read_bytes(), case.name.removeprefix("corpus-"))
    if done.returncode not in (0, 1, 5):  # 1 if a test failed, 5 if all were left out
        print(f"  the process of the properties ended with code {done.returncode}, see {log}")
    add_record(record, seed, totals)


def add_record(record: Path, seed: int, totals: dict[str, Total]) -> None:
    """Add the record of a round to the totals."""
    started: set[str] = set()
    entries: list[dict[str, Any]] = (
        [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    )
    for entry in entries:
        name = entry["property"]
        repeat = f"pytest -n 0 '{name}' --hypothesis-profile=long --hypothesis-seed={seed}"
        if "started" in entry:
            started.add(name)
            continue
        started.discard(name)
        totals[name].cases += entry["cases"]
        totals[name].seconds += entry["seconds"]
        if entry["outcome"] == "failed":
            print(f"  failed: {repeat}", flush=True)
            totals[name].failures.append(repeat)
    for name in started:
        totals[name].failures.append(f"pytest -n 0 '{name}' --hypothesis-profile=long --hypothesis-seed={seed}")
        print(f"  ended the process: {totals[name].failures[-1]}", flush=True)


# --- coverage-guided fuzzing ----------------------------------------------------------------------------------------


def run_guided(seed: int, seconds: float, totals: dict[str, Total]) -> None:
    """Run atheris on each reader for its part of the time."""
    if importlib.util.find_spec("atheris") is None:
        print("  atheris is not installed (pip install 'rankfall[fuzz]'); no coverage-guided fuzzing", flush=True)
        return
    for reader in GUIDED:
        share = int(seconds / len(GUIDED))
        if share >= 1:
            _run_atheris(reader, seed, share, totals[f"atheris: {reader}"])


def _run_atheris(reader: str, seed: int, seconds: int, total: Total) -> None:
    found, kept = SCRATCH / reader, CORPUS / reader
    found.mkdir(exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, str(TESTS / "fuzz" / "coverage_guided.py"), reader, f"-max_total_time={seconds}",
        "-timeout=120", f"-seed={seed % 2**32 or 1}", f"-rss_limit_mb={MEMORY >> 20}", "-max_len=4096",
        "-print_final_stats=1",
        f"-artifact_prefix={SCRATCH}/artifact-{reader}-", str(found), str(kept),
    ]  # fmt: skip
    started = time.time()
    log = SCRATCH / f"atheris-{reader}-{seed}.txt"
    with log.open("w") as output:
        done = subprocess.run(
            command, cwd=TESTS.parent, stdout=output, stderr=subprocess.STDOUT, check=False,
            env=os.environ | {"PYTHONPATH": _python_path()},
        )  # fmt: skip
    total.seconds += time.time() - started
    total.cases += _units(log.read_text(errors="replace"))
    for artifact in SCRATCH.glob(f"artifact-{reader}-*"):
        keep(artifact.read_bytes(), reader)
        artifact.unlink()
    if done.returncode != 0:
        repeat = f"{' '.join(command)}  # {log}"
        print(f"  failed: {repeat}", flush=True)
        total.failures.append(repeat)


def _units(log: str) -> int:
    """Return the number of inputs that libFuzzer states, in its last line about it."""
    counts = [
        int(line.split(":")[-1]) for line in log.splitlines() if line.startswith("stat::number_of_executed_units")
    ]
    steps = [
        int(line[1:].split()[0]) for line in log.splitlines() if line.startswith("#") and line[1:].split()[0].isdigit()
    ]
    return (counts or steps or [0])[-1]


# --- what both need -------------------------------------------------------------------------------------------------


def keep(content: bytes, kind: str) -> None:
    """Write an input to the corpus."""
    place = CORPUS / kind
    place.mkdir(parents=True, exist_ok=True)
    path = place / sha256(content).hexdigest()[:12]
    path.write_bytes(content)
    print(f"  input kept: {path.relative_to(TESTS.parent)}", flush=True)


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def print_totals(totals: dict[str, Total], rounds: int) -> int:
    """Print the table, and return 1 if anything failed."""
    width = min(max(map(len, totals), default=8), shutil.get_terminal_size((140, 24)).columns - 36)
    print(f"\n{'property':{width}}  {'cases':>9}  {'seconds':>8}  failures")
    for name, total in sorted(totals.items()):
        shown = name if len(name) <= width else "..." + name[3 - width :]
        print(f"{shown:{width}}  {total.cases:>9,}  {total.seconds:>8.1f}  {len(total.failures):>8}")
    cases, seconds = sum(one.cases for one in totals.values()), sum(one.seconds for one in totals.values())
    failures = sum(len(one.failures) for one in totals.values())
    print(f"{f'all, {rounds} rounds':{width}}  {cases:>9,}  {seconds:>8.1f}  {failures:>8}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
