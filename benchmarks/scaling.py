"""Benchmark of training with several processes on one machine: throughput and cost of communication.

Every process has a batch of the same size, so that twice the processes ideally train twice the impressions per second
(weak scaling). The cascade is a two-tower model and a DIN trained with LCRON on the log of
`rankfall.benchmarks.loader`, with the learner of `rankfall train`. Normal steps alternate with steps without
communication; the difference is the cost of communication, including the wait for the slower process. Times are wall
times, because waiting uses no CPU; the share of CPU time shows whether other load disturbed the measurement.
"""

from __future__ import annotations

import json
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

from benchmarks import module_environment, parse_settings, print_report, show_step
from rankfall.benchmarks import loader
from rankfall.data import ImpressionLog
from rankfall.training.build import with_depths
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.distributed.group import ALONE, Group, joined
from rankfall.training.learner import Position
from rankfall.training.train_cascade import CascadeLearner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rankfall.data.impressions.loader import Impressions

BATCH, QUICK_BATCH = 256, 16  # impressions per process
STEPS, QUICK_STEPS = 12, 3  # steps of each kind per launch
LAUNCHES, QUICK_LAUNCHES = 2, 1
WARM_UP = 2
TIMEOUT = 600.0
INDEX_BYTES = 8  # per row of a sparse gradient


@dataclass(frozen=True)
class Case:
    """Embedding tables: number of rows per table, and whether their gradients are sparse."""

    rows: int
    sparse: bool


@dataclass(frozen=True)
class Sample:
    """Measurements of one process in one launch; times in seconds, one per step."""

    together: list[float]
    apart: list[float]  # without communication
    cpu: list[float]  # CPU time of the steps in `together`
    dense_bytes: int
    sparse_bytes: int  # mean per step of this process


@dataclass(frozen=True)
class Row:
    """Result of one case with one number of processes."""

    rows: int
    gradients: str  # of the tables: "sparse" or "dense"
    processes: int
    batch: int  # per process
    step_ms: float
    apart_ms: float  # a step without communication
    impressions_per_second: float  # all processes together
    efficiency: float  # throughput per process relative to a single process
    communication: float  # share of a step
    dense_mb: float  # gradients per step and process
    sparse_mb: float
    cpu: float  # CPU time as a share of wall time


CASES = (Case(1_000, sparse=False), Case(100_000, sparse=True), Case(100_000, sparse=False))
QUICK_CASES = (Case(1_000, sparse=False), Case(1_000, sparse=True))
PROCESSES = (1, 2)
SETTING = f"{loader.ITEMS} items, {loader.EVENTS} events, {len(loader.USER) + len(loader.ITEM)} tables per stage"


def sweep(*, quick: bool, report: Callable[[str], None]) -> list[Row]:
    """Measure all cases with every number of processes, in turns."""
    cases, batch = (QUICK_CASES, QUICK_BATCH) if quick else (CASES, BATCH)
    steps, launches = (QUICK_STEPS, QUICK_LAUNCHES) if quick else (STEPS, LAUNCHES)
    samples: dict[tuple[int, int], list[Sample]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for rows in {case.rows for case in cases}:
            (Path(directory) / str(rows)).mkdir()
            loader.write_log(Path(directory) / str(rows), loader.QUICK_IMPRESSIONS, rows)
        report("logs written")
        for _ in range(launches):
            for processes in PROCESSES:
                measured = _launch(Path(directory), cases, processes, batch, steps)
                for number, sample in enumerate(measured):
                    samples.setdefault((number, processes), []).append(sample)
                report(f"{processes} processes measured")
    return _rows(cases, samples, batch)


def _launch(directory: Path, cases: Sequence[Case], processes: int, batch: int, steps: int) -> list[Sample]:
    settings = {"cases": [asdict(case) for case in cases], "batch": batch, "steps": steps}
    (directory / "settings.json").write_text(json.dumps(settings))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    program = [*launcher, "-m", "benchmarks.scaling", "--process", str(directory)]
    environment = module_environment() | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"torchrun ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return [Sample(**sample) for sample in json.loads((directory / "samples.json").read_text())]


def _rows(cases: Sequence[Case], samples: dict[tuple[int, int], list[Sample]], batch: int) -> list[Row]:
    rows: list[Row] = []
    for number, case in enumerate(cases):
        alone = 0.0
        for processes in PROCESSES:
            launched = samples[number, processes]
            step, apart = (
                statistics.median([seconds for sample in launched for seconds in getattr(sample, kind)])
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
                    dense_mb=launched[0].dense_bytes / 2**20,
                    sparse_mb=launched[0].sparse_bytes / 2**20,
                    cpu=sum(sum(sample.cpu) for sample in launched) / sum(sum(sample.together) for sample in launched),
                )
            )
    return rows


# --- one process of a launch --------------------------------------------------------------------------------------


def measure_process(directory: Path) -> None:
    """Run the measurement as one of the processes of a launch."""
    torch.set_num_threads(1)
    settings = json.loads((directory / "settings.json").read_text())
    with joined(TIMEOUT) as group:
        samples = [
            _measure(directory, Case(**case), settings["batch"], settings["steps"], group) for case in settings["cases"]
        ]
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
            with ExitStack() as stack:
                if kind == "apart":
                    stack.enter_context(_without_communication(learner))
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


def _learner(log: Path, case: Case, batch: int, group: Group) -> CascadeLearner:
    model: dict[str, Any] = {"sparse": case.sparse}
    config = validate_cascade(
        {
            "data": {"path": str(log), "train": loader.DAY, "valid": loader.DAY},
            "stages": [
                {"name": "retrieval", "quota": 30, "model": {"kind": "two_tower", **model}},
                {"name": "ranking", "quota": 20, "model": {"kind": "din", **model}},
            ],
            "objective": {"name": "lcron", "topk": {"name": "dftopk", "tau": 1.0}},
            "training": {"batch": batch, "device": "cpu"},
        }
    )
    impressions = ImpressionLog.load(log)
    torch.manual_seed(0)
    learner = CascadeLearner(with_depths(config, impressions.spec.stage_names), log, impressions, group)
    learner.network = group.wrap(learner.network)
    return learner


def _endless(learner: CascadeLearner) -> Iterator[Impressions]:
    epoch = 0
    while True:
        learner.loader.set_epoch(epoch)
        yield from learner.loader
        epoch += 1


def _without_communication(learner: CascadeLearner) -> ExitStack:
    """Return a context in which steps do not communicate with other processes."""
    stack = ExitStack()
    if isinstance(learner.network, DistributedDataParallel):
        stack.enter_context(learner.network.no_sync())
    group, learner.group = learner.group, ALONE
    stack.callback(setattr, learner, "group", group)
    return stack


def _bytes(learner: CascadeLearner, *, sparse: bool) -> int:
    """Return the size of the gradients of the last step, in bytes."""
    gradients = [parameter.grad for parameter in learner.trained if parameter.grad is not None]
    if not sparse:
        return sum(gradient.nbytes for gradient in gradients if not gradient.is_sparse)
    sparse_gradients = (gradient for gradient in gradients if gradient.is_sparse)
    return sum(gradient._values().nbytes + gradient._nnz() * INDEX_BYTES for gradient in sparse_gradients)


@dataclass(frozen=True)
class Settings:
    """Extent of the measurement."""

    quick: bool = False  # little data


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; ``--process DIRECTORY`` is one process of a launch."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--process"]:
        measure_process(Path(words[1]))
        return 0
    settings, _ = parse_settings(__doc__, Settings, words)
    rows = sweep(quick=settings.quick, report=lambda done: show_step(done, 0, None))
    return print_report({"what": SETTING, "rows": [asdict(row) for row in rows], "problems": []})


if __name__ == "__main__":
    sys.exit(main())
