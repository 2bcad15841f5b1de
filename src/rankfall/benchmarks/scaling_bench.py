"""Training by several processes of one machine: what a second one adds, and what it costs to talk to it.

Every process has a batch of the same size, so that twice the processes ideally train twice the impressions a second
(weak scaling). The cascade is a two-tower model and a DIN under LCRON on the log of `rankfall.benchmarks.loader_bench`,
through the learner of `rankfall train`. Steps come in turns with steps that are the same but for what processes tell
each other: what those save is communication, waiting for the slower process included. Times are of the wall, as
waiting is no work of a CPU; the share of the CPU says how far other work was in the way.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from rankfall.benchmarks import loader_bench as loader
from rankfall.data import ImpressionLog
from rankfall.training.build_cascade import with_depths
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.distributed.group import ALONE, Group, joined
from rankfall.training.learner import Position
from rankfall.training.train_cascade import LogLearner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rankfall.data.impressions.loader import Impressions

BATCH, QUICK_BATCH = 256, 16  # impressions of a process
STEPS, QUICK_STEPS = 12, 3  # of each kind in a launch
LAUNCHES, QUICK_LAUNCHES = 2, 1
WARM_UP = 2
TIMEOUT = 600.0
INDEX_BYTES = 8  # of a row of a sparse gradient


@dataclass(frozen=True)
class Case:
    """Tables of so many rows each, and what gradients they have."""

    rows: int
    sparse: bool


@dataclass(frozen=True)
class Sample:
    """What a process found in one launch; times in seconds, one a step."""

    together: list[float]
    apart: list[float]
    cpu: list[float]  # of the steps together
    dense_bytes: int
    sparse_bytes: int  # of this process, on average


@dataclass(frozen=True)
class Row:
    """A case by so many processes."""

    rows: int
    gradients: str  # of the tables
    processes: int
    batch: int  # of a process
    step_ms: float
    apart_ms: float  # the same without a word to the others
    impressions_per_second: float  # of all
    efficiency: float  # of a process, beside one alone
    communication: float  # share of a step
    dense_mb: float  # gradients of a step and process
    sparse_mb: float
    cpu: float  # share of the wall's time


CASES = (Case(1_000, sparse=False), Case(100_000, sparse=True), Case(100_000, sparse=False))
QUICK_CASES = (Case(1_000, sparse=False), Case(1_000, sparse=True))
PROCESSES = (1, 2)
SETTING = f"{loader.ITEMS} items, {loader.EVENTS} events, {len(loader.USER) + len(loader.ITEM)} tables a stage"


def sweep(*, quick: bool, report: Callable[[str], None]) -> list[Row]:
    """Measure all cases by all numbers of processes, in turns."""
    cases, batch = (QUICK_CASES, QUICK_BATCH) if quick else (CASES, BATCH)
    steps, launches = (QUICK_STEPS, QUICK_LAUNCHES) if quick else (STEPS, LAUNCHES)
    found: dict[tuple[int, int], list[Sample]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for rows in {case.rows for case in cases}:
            (Path(directory) / str(rows)).mkdir()
            loader.write_log(Path(directory) / str(rows), loader.QUICK_IMPRESSIONS, rows)
        report("logs written")
        for _ in range(launches):
            for processes in PROCESSES:
                samples = _launch(Path(directory), cases, processes, batch, steps)
                for number, sample in enumerate(samples):
                    found.setdefault((number, processes), []).append(sample)
                report(f"{processes} processes measured")
    return _rows(cases, found, batch)


def launches(*, quick: bool) -> int:
    """How often a sweep reports."""
    return 1 + (QUICK_LAUNCHES if quick else LAUNCHES) * len(PROCESSES)


def _launch(directory: Path, cases: Sequence[Case], processes: int, batch: int, steps: int) -> list[Sample]:
    about = {"cases": [asdict(case) for case in cases], "batch": batch, "steps": steps}
    (directory / "about.json").write_text(json.dumps(about))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    program = [*launcher, "-m", "rankfall.benchmarks.scaling_bench", str(directory)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"torchrun ended with {done.returncode}: {done.stderr[-2000:]}")
    return [Sample(**sample) for sample in json.loads((directory / "samples.json").read_text())]


def _rows(cases: Sequence[Case], found: dict[tuple[int, int], list[Sample]], batch: int) -> list[Row]:
    rows: list[Row] = []
    for number, case in enumerate(cases):
        alone = 0.0
        for processes in PROCESSES:
            samples = found[number, processes]
            step, apart = (
                statistics.median([one for sample in samples for one in getattr(sample, kind)])
                for kind in ("together", "apart")
            )
            rate = processes * batch / step
            alone = alone or rate
            rows.append(
                Row(
                    rows=case.rows,
                    gradients="sparse" if case.sparse else "dense",
                    processes=processes,
                    batch=batch,
                    step_ms=step * 1e3,
                    apart_ms=apart * 1e3,
                    impressions_per_second=rate,
                    efficiency=rate / processes / alone,
                    communication=max(0.0, 1 - apart / step),
                    dense_mb=samples[0].dense_bytes / 2**20,
                    sparse_mb=samples[0].sparse_bytes / 2**20,
                    cpu=sum(map(sum, (one.cpu for one in samples))) / sum(map(sum, (one.together for one in samples))),
                )
            )
    return rows


# --- a process ----------------------------------------------------------------------------------------------------


def main(directory: Path) -> None:
    """Measure, as one of the processes of a launch."""
    torch.set_num_threads(1)
    about = json.loads((directory / "about.json").read_text())
    with joined(TIMEOUT) as group:
        samples = [_measure(directory, Case(**case), about["batch"], about["steps"], group) for case in about["cases"]]
        if group.first:
            (directory / "samples.json").write_text(json.dumps([asdict(sample) for sample in samples]))


def _measure(directory: Path, case: Case, batch: int, steps: int, group: Group) -> Sample:
    learner = _learner(directory / str(case.rows), case, batch * group.world, group)
    batches = _endless(learner)
    times: dict[str, list[float]] = {"together": [], "apart": []}
    cpu: list[float] = []
    sparse: list[int] = []
    for number in range(WARM_UP + steps):
        for kind, measured in times.items():
            wall, used = time.perf_counter(), time.process_time()
            with ExitStack() as apart:
                if kind == "apart":
                    apart.enter_context(_apart(learner))
                learner.step(next(batches), Position())
            if number < WARM_UP:
                continue
            measured.append(time.perf_counter() - wall)
            if kind == "together":
                cpu.append(time.process_time() - used)
            else:
                sparse.append(_bytes(learner, sparse=True))
    return Sample(
        **times, cpu=cpu, dense_bytes=_bytes(learner, sparse=False), sparse_bytes=round(statistics.mean(sparse))
    )


def _learner(log: Path, case: Case, batch: int, group: Group) -> LogLearner:
    model: dict[str, Any] = {"sparse": case.sparse}
    config = validate_cascade(
        {
            "data": {"path": str(log), "train": loader.DAY, "valid": loader.DAY},
            "stages": [
                {"name": "retrieval", "quota": 30, "model": {"kind": "two_tower", **model}},
                {"name": "ranking", "quota": 20, "model": {"kind": "din", **model}},
            ],
            "objective": {"name": "lcron", "topk": {"name": "dftopk", "tau": 1.0}},
            "training": {"batch": batch},
        }
    )
    opened = ImpressionLog.load(log)
    torch.manual_seed(0)
    learner = LogLearner(with_depths(config, opened.spec.stage_names), log, opened, group)
    learner.network = group.wrap(learner.network)
    return learner


def _endless(learner: LogLearner) -> Iterator[Impressions]:
    epoch = 0
    while True:
        learner.loader.set_epoch(epoch)
        yield from learner.loader
        epoch += 1


def _apart(learner: LogLearner) -> ExitStack:
    """Steps in here are of this process alone."""
    held = ExitStack()
    if isinstance(learner.network, DistributedDataParallel):
        held.enter_context(learner.network.no_sync())
    group, learner.group = learner.group, ALONE
    held.callback(setattr, learner, "group", group)
    return held


def _bytes(learner: LogLearner, *, sparse: bool) -> int:
    """The size of the gradients of the last step."""
    found = [parameter.grad for parameter in learner.trained if parameter.grad is not None]
    if not sparse:
        return sum(one.nbytes for one in found if not one.is_sparse)
    return sum(one._values().nbytes + one._nnz() * INDEX_BYTES for one in found if one.is_sparse)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
