"""Comparisons that follow the training protocol of a paper, adapted to the size of the data."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rankfall._errors import RankfallError
from rankfall.data import RankingData
from rankfall.data.lists.list_loader import Lists
from rankfall.metrics.named import parse
from rankfall.reporting.files import write_comparison
from rankfall.reproductions.paper_schema import CascadeProtocol
from rankfall.studies.compare import compare_methods
from rankfall.studies.comparison_plan import ComparisonConfig
from rankfall.studies.stream.stream_config import StreamConfig
from rankfall.training.measured_lists import measure_scores as measure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rankfall.reproductions.data import ListData, LogData
    from rankfall.reproductions.paper_schema import ListProtocol, Method, StageProtocol
    from rankfall.reproductions.task import Task
    from rankfall.studies.results import ComparisonResult

    Sections = Mapping[str, Mapping[str, Any]]  # what each method changes in a configuration


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates that are tuned; every method gets four trials.

    Attributes:
        alone: For methods without another setting.
        combined: For methods with two values of another setting.
    """

    alone: list[float]
    combined: list[float]


LIST_RATES = Rates([3e-4, 1e-3, 3e-3, 1e-2], [1e-3, 3e-3])
CASCADE_RATES = Rates([0.003, 0.005, 0.01, 0.02], [0.005, 0.01])


def method_sections(
    methods: Iterable[Method],
    rates: Rates,
    *,
    tune: bool,
    keep_rate: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the section of each method in a comparison.

    Args:
        methods: The methods.
        rates: Learning rates that are tuned.
        tune: Whether settings are tuned at all.
        keep_rate: Whether the methods of the paper keep its learning rate. Our versions of them never do.
    """
    sections = {}
    for method in methods:
        section = dict(method.config)
        if tune and keep_rate and method.variant != "sound":
            section["tune"] = dict(method.tune)
        elif tune:
            section["tune"] = {"optimizer.lr": rates.combined if method.tune else rates.alone, **method.tune}
        sections[method.name] = section
    return sections


# --- ranking lists ------------------------------------------------------------------------------------------------

MANY_LISTS = 5000  # training lists from which on the network of the paper is used; it would overfit smaller sets
SMALL_NETWORK = {"hidden": [128, 64]}
LIST_BATCH = 16  # lists per batch
LIST_RATE = 3e-3  # of methods for which no learning rate is tuned


def list_rates(protocol: ListProtocol) -> Rates:
    """Return the learning rates that are tuned: those of the paper, if it states them."""
    return Rates(protocol.rates, protocol.rates) if protocol.rates else LIST_RATES


def is_tuned(protocol: ListProtocol, task: Task, data: ListData) -> bool:
    """Return whether settings are tuned: on data as large as the paper's, not if the paper fixed its learning rate."""
    return task.size.tune and not (_is_large(data) and _fixes_rate(protocol))


def list_config(
    protocol: ListProtocol, task: Task, data: ListData, methods: Sections, **sections: Any
) -> ComparisonConfig:
    """Return a comparison of methods on ranking lists; `sections` replace those of the protocol."""
    content = {
        "data": {"path": str(data.path), **protocol.data},
        "model": protocol.network if _is_large(data) else SMALL_NETWORK,
        "optimizer": {**protocol.optimizer, "lr": _rate(protocol, data)},
        "training": {**_duration(protocol, task, data), "batch": LIST_BATCH, "metric": protocol.metric},
        "seeds": task.seeds,
        "folds": data.folds,
        "methods": methods,
        **sections,
    }
    return ComparisonConfig.model_validate(content)


def _is_large(data: ListData) -> bool:
    return data.train_lists >= MANY_LISTS


def _fixes_rate(protocol: ListProtocol) -> bool:
    return "lr" in protocol.optimizer and not protocol.rates


def _rate(protocol: ListProtocol, data: ListData) -> float:
    """Return the learning rate without tuning. One that the paper fixed needs as many steps as the paper trains."""
    if _fixes_rate(protocol) and not _is_large(data):
        return LIST_RATE
    rate: float = protocol.optimizer.get("lr", LIST_RATE)
    return rate


def _duration(protocol: ListProtocol, task: Task, data: ListData) -> dict[str, int | None]:
    """Return epochs and patience of the ``training`` section."""
    epochs = task.size.epochs
    if _is_large(data) and protocol.steps and task.size.published_steps:
        return {"epochs": math.ceil(protocol.steps * LIST_BATCH / data.train_lists), "patience": None}
    if _is_large(data) and protocol.epochs:
        epochs = min(epochs, protocol.epochs)
    return {"epochs": epochs, "patience": task.size.patience}


def deviations(protocol: ListProtocol, task: Task, data: ListData, *, tuned: bool = False) -> list[str]:
    """Return where training on ranking lists differs from the protocol, as sentences for a report."""
    found = []
    if not _is_large(data):
        ours, theirs = ("-".join(map(str, network["hidden"])) for network in (SMALL_NETWORK, protocol.network))
        found.append(
            f"Network: {ours} instead of {theirs}, since there are {data.train_lists:,} training lists; that of the "
            f"paper is used from {MANY_LISTS:,} on."
        )
    epochs = _duration(protocol, task, data)["epochs"] or 0
    steps = epochs * math.ceil(data.train_lists / LIST_BATCH)
    if protocol.steps and steps < protocol.steps:
        found.append(
            f"Training: at most {epochs} epochs, that is {steps:,} steps of {LIST_BATCH} lists, instead of "
            f"{protocol.steps:,} steps."
        )
    if _fixes_rate(protocol) and not _is_large(data):
        ours = "tuned on validation lists, four trials per method" if tuned else f"{LIST_RATE:g}"
        found.append(f"Learning rate: {ours}, instead of {protocol.optimizer['lr']:g}.")
    if protocol.rates and not tuned:
        found.append(
            f"Learning rate: {_rate(protocol, data):g} for all methods; without --quick each method is tuned over "
            f"those of the paper, {', '.join(f'{rate:g}' for rate in protocol.rates)}."
        )
    return found


def oracle(data: ListData | LogData, metrics: Sequence[str]) -> dict[str, float] | None:
    """Return the metrics of the order by true utility on the test lists, or None if the data are not generated."""
    generated = getattr(data, "generated", None)
    if generated is None:
        return None
    lists = Lists([RankingData.load(data.path)["test"]])
    values = measure(torch.from_numpy(generated.utility).float(), lists, [parse(name) for name in metrics])
    return {name: float(value.double().nanmean()) for name, value in values.items()}


# --- impressions --------------------------------------------------------------------------------------------------

MANY_IMPRESSIONS = 1_000_000  # from which on models and batches are those of the paper

# Published batches are divided by the first of these numbers whose key the log reaches. The published logs have
# millions of impressions; one pass over fewer in batches as large would have too few steps to learn from.
BATCH_DIVISORS = {MANY_IMPRESSIONS: 1, 20_000: 8, 0: 32}


def cascade_config(
    protocol: CascadeProtocol,
    data: LogData,
    methods: Sections,
    *,
    seeds: Sequence[int],
    lists: Mapping[str, Any] | None = None,
) -> ComparisonConfig:
    """Return a comparison of methods on impressions.

    Args:
        protocol: Stages and training of the paper.
        data: The log.
        methods: Section of each method.
        seeds: Seeds of the training runs.
        lists: Options of the ``data`` section: length of test lists, random negatives.

    Raises:
        ValueError: Lists are too short for the first stage.
    """
    return ComparisonConfig.model_validate(_cascade_content(protocol, data, data.roles, methods, seeds, lists))


def stream_config(
    protocol: CascadeProtocol,
    data: LogData,
    methods: Sections,
    *,
    seeds: Sequence[int],
    lists: Mapping[str, Any] | None = None,
) -> StreamConfig:
    """Return a stream over all days of the data, tested on every day but the first; see :func:`cascade_config`."""
    days = {"days": f"{data.train[0]}..{data.test}"}
    return StreamConfig.model_validate(_cascade_content(protocol, data, days, methods, seeds, lists))


def _cascade_content(
    protocol: CascadeProtocol,
    data: LogData,
    days: Mapping[str, Any],
    methods: Sections,
    seeds: Sequence[int],
    lists: Mapping[str, Any] | None,
) -> dict[str, Any]:
    lists = lists or {}
    _check_length(protocol, data, lists.get("length"))
    return {
        "data": {"path": str(data.path), **days, **protocol.data, **lists},
        "relevant": protocol.relevant,
        "stages": [_stage_section(stage, data) for stage in protocol.stages],
        "optimizer": {"lr": protocol.lr, **protocol.optimizer},
        "training": {"epochs": 1, "batch": batch_for(protocol, data)},
        "stage_metrics": protocol.stage_metrics,
        "methods": methods,
        "seeds": seeds,
    }


def cascade_deviations(protocol: CascadeProtocol, data: LogData) -> list[str]:
    """Return where training on impressions differs from the protocol, as sentences for a report."""
    found = []
    batch = batch_for(protocol, data)
    if batch != protocol.batch:
        found.append(
            f"Batches: {batch} impressions instead of {protocol.batch}, since there are {data.train_impressions:,} to "
            f"train on; those of the paper are used from {MANY_IMPRESSIONS:,} on."
        )
    replaced = [stage.name for stage in protocol.stages if _lacks_sequences(stage, data)]
    if replaced:
        found.append(f"Network of {' and '.join(replaced)}: an MLP instead of DIN, since the log has no sequences.")
    return found


def batch_for(protocol: CascadeProtocol, data: LogData) -> int:
    """Return the number of impressions per batch for a log of this size."""
    divisor = next(divisor for least, divisor in BATCH_DIVISORS.items() if data.train_impressions >= least)
    return max(1, protocol.batch // divisor)


def _stage_section(stage: StageProtocol, data: LogData) -> dict[str, Any]:
    section: dict[str, Any] = {"name": stage.name, "quota": stage.quota, "model": _stage_model(stage, data)}
    if stage.min_depth is not None:
        section["min_depth"] = min(stage.min_depth, data.depths - 1)
    return section


def _stage_model(stage: StageProtocol, data: LogData) -> dict[str, Any]:
    if stage.small_model is not None and data.train_impressions < MANY_IMPRESSIONS:
        return stage.small_model
    return {"kind": "mlp"} if _lacks_sequences(stage, data) else stage.model


def _lacks_sequences(stage: StageProtocol, data: LogData) -> bool:
    """Whether the log has no behaviour sequence, which DIN needs."""
    return stage.model["kind"] == "din" and not data.sequences


def _check_length(protocol: CascadeProtocol, data: LogData, length: int | None) -> None:
    first = protocol.stages[0]
    if (length or data.items) <= first.quota:
        raise RankfallError(
            f"{data.path} has lists of {data.items:.4g} items, of which {first.name} would keep {first.quota}; "
            f"expected lists of more than {first.quota} (such as those of the platform {protocol.platform})"
        )


def _classifies(section: Mapping[str, Any]) -> bool:
    loss = section.get("objective", {}).get("loss")
    return isinstance(loss, dict) and loss.get("name") == "grade_softmax_loss"


def _with_grades(stage: dict[str, Any], protocol: CascadeProtocol, data: LogData) -> dict[str, Any]:
    """Return a stage with one output per place in an impression, which are its grades."""
    places = max(protocol.items or 0, math.ceil(data.items))
    return {**stage, "model": {**stage["model"], "grades": places}}


# --- running ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trained:
    """Methods that were trained and tested on the data of a protocol, and where this differs from the protocol."""

    data: ListData | LogData
    comparison: ComparisonResult
    deviations: list[str]


def train_methods(
    protocol: ListProtocol | CascadeProtocol,
    task: Task,
    methods: Iterable[Method],
    *,
    tune: bool,
    metrics: Sequence[str],
    against: str | None = None,
    lists: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    directory: str = "comparison",
) -> Trained:
    """Train and test methods as a protocol says, adapted to the size of the data.

    Args:
        protocol: Data and training of the paper.
        task: The task.
        methods: The methods to compare.
        tune: Whether settings are tuned, if the size of the task allows it.
        metrics: Metrics on ranking lists.
        against: Method that the others are tested against, on ranking lists.
        lists: Options of the ``data`` section of impressions.
        seeds: Largest number of seeds.
        directory: Directory of the comparison in that of the task.
    """
    if isinstance(protocol, CascadeProtocol):
        log, tuned = task.log(protocol.platform), tune and task.size.tune
        sections = method_sections(methods, CASCADE_RATES, tune=tuned, keep_rate=protocol.keep_rate)
        for section in sections.values():
            if _classifies(section):
                stages = [_with_grades(_stage_section(stage, log), protocol, log) for stage in protocol.stages]
                section["stages"] = stages
        cascades = cascade_config(protocol, log, sections, seeds=task.cascade_seeds[:seeds], lists=lists)
        return Trained(log, run_comparison(task, cascades, directory), cascade_deviations(protocol, log))
    data = task.lists(protocol)
    tuned = tune and is_tuned(protocol, task, data)
    sections = method_sections(methods, list_rates(protocol), tune=tuned)
    seeds_of_lists = task.seeds[:seeds]
    config = list_config(protocol, task, data, sections, metrics=[*metrics], against=against, seeds=seeds_of_lists)
    return Trained(data, run_comparison(task, config, directory), deviations(protocol, task, data, tuned=tuned))


def run_comparison(task: Task, config: ComparisonConfig, directory: str = "comparison") -> ComparisonResult:
    """Train and test the missing runs in a directory of the task, and return the result of the comparison."""
    totals: list[int] = []
    done = itertools.count(1)
    result = compare_methods(
        config,
        task.out / directory,
        jobs=task.jobs,
        on_plan=totals.append,
        on_step=lambda step: task.progress(f"{step.method}, {step.title}", next(done), totals[0]),
        on_notice=lambda step, text: task.on_notice(f"{step.method}, {step.title}: {text}"),
    )
    write_comparison(result, task.out / directory)
    return result
