"""Start a training run from the weights of another one (`training.start_from`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rankfall._config import ConfigError, leaves, shown
from rankfall._errors import RankfallError
from rankfall.data.impressions.compatibility import IncompatibleLogError, check_compatible
from rankfall.models import Scorer
from rankfall.models.build import describe_model
from rankfall.models.embedding import FeatureEmbedding, address
from rankfall.training.run_directory import LOG, read_json, verify_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from rankfall.cascade import Cascade
    from rankfall.data import ImpressionLog
    from rankfall.training.build import Optimizers
    from rankfall.training.config.cascade_config import CascadeConfig

    LoadRun = Callable[[Path], tuple[CascadeConfig, Cascade]]


def rows_of(cascade: Cascade) -> dict[str, int]:
    """Return the rows of each embedding table of the log that a cascade was built for, or has grown to."""
    rows: dict[str, int] = {}
    for model in cascade.models.values():
        described = describe_model(model)
        rows |= {} if described is None else described.features.tables
    return rows


def grow_cascade(cascade: Cascade, rows: Mapping[str, int], optimizer: Optimizers | None = None) -> None:
    """Enlarge embedding tables in place; the parameters stay the same objects.

    Args:
        cascade: The cascade.
        rows: The new numbers of rows by embedding table. Tables that have as many or more are left as they are.
        optimizer: Its optimizer, whose state grows too.

    Raises:
        ValueError: If a model does not keep its tables where they can be enlarged.
    """
    now = rows_of(cascade)
    larger = {table: count for table, count in rows.items() if count > now.get(table, count)}
    if not larger:
        return
    for name, model in cascade.models.items():
        _grow_model(name, model, larger)
    if optimizer is not None:
        for weight, state in (one for part in optimizer.parts.values() for one in part.state.items()):
            for key, value in state.items():
                if torch.is_tensor(value) and value.ndim == weight.ndim and len(value) < len(weight):
                    state[key] = torch.cat([value, value.new_zeros(len(weight) - len(value), *value.shape[1:])])


def _grow_model(stage: str, model: nn.Module, rows: Mapping[str, int]) -> None:
    described, embedding = describe_model(model), getattr(model, "embedding", None)
    if described is None or not isinstance(embedding, FeatureEmbedding):
        raise RankfallError(
            f"stages: the model of {stage} has no FeatureEmbedding as `embedding`, so it cannot get rows for the new "
            f"values of {', '.join(rows)}; give it one, or prepare the log without --grow"
        )
    features = described.features.with_rows(rows)
    embedding.grow(features)
    if isinstance(model, Scorer):
        model.features = features
    if hasattr(model, "_rankfall_description"):
        object.__setattr__(model, "_rankfall_description", replace(described, features=features))


def start_from(
    run: str, config: CascadeConfig, cascade: Cascade, optimizer: Optimizers, log: ImpressionLog, load_run: LoadRun
) -> None:
    """Give a cascade the best weights of another run. Tables that have more rows here start as described there.

    Args:
        run: The directory of the other run.
        config: The configuration of the new run.
        cascade: Its cascade, whose tables grow if the other run has larger ones.
        optimizer: Its optimizer.
        log: Its log.
        load_run: Loads a run.

    Raises:
        ConfigError: If there is no such run, or it has other stages, models or features; the message lists all
            differences.
    """
    with torch.random.fork_rng(devices=[]):  # building the other cascade draws random numbers
        try:
            before, other = load_run(Path(run))
        except ValueError as error:
            raise ConfigError(f"training.start_from: {error}") from None
    differences = [
        *_different_stages(before, config, other, cascade),
        *_different_features(Path(run), other, cascade, log),
    ]
    if differences:
        listed = "".join(f"\n- {one}" for one in differences)
        raise ConfigError(f"training.start_from: the weights of {run} do not fit this configuration:{listed}")
    grow_cascade(cascade, rows_of(other), optimizer)
    grow_cascade(other, rows_of(cascade))
    cascade.load_state_dict(other.state_dict())


def _different_stages(before: CascadeConfig, config: CascadeConfig, other: Cascade, cascade: Cascade) -> Iterator[str]:
    if other.names != cascade.names:
        yield f"stages: it has {', '.join(other.names)}, expected {', '.join(cascade.names)}"
    if sorted(before.share) != sorted(config.share):
        yield f"share: it has {shown(before.share)}, expected {shown(config.share)}"
    for name in filter(other.models.__contains__, cascade.names):
        one, two = (_options(some, name) for some in (other, cascade))
        for key in {**one, **two}:
            if one.get(key) != two.get(key):
                yield f"the model of {name}: it has {key} {shown(one.get(key))}, expected {shown(two.get(key))}"


def _options(cascade: Cascade, stage: str) -> dict[str, Any]:
    described = describe_model(cascade.models[stage])
    return {} if described is None else leaves(dict(described.config))


def _different_features(run: Path, other: Cascade, cascade: Cascade, log: ImpressionLog) -> Iterator[str]:
    """Compare what the models of both cascades read."""
    before, now = used_features(other), used_features(cascade)
    for name in sorted(before - now):
        yield f"{name}: its models use it, those of this configuration do not"
    for name in sorted(now - before):
        yield f"{name}: its models do not use it"
    verify_run(run, LOG)
    try:
        check_compatible(read_json(run / LOG), log, used=before & now)
    except IncompatibleLogError as error:
        yield str(error)
    rows = rows_of(cascade)
    for table, count in rows_of(other).items():
        if table in rows and table not in log.manifest["vocabularies"] and rows[table] != count:
            yield f"{table}: its table has {count:,} rows, that of {log.path} has {rows[table]:,}"


def used_features(cascade: Cascade) -> set[str]:
    """Return the features that any stage uses, including those of events."""
    used: set[str] = set()
    for stage in cascade.models.values():
        if isinstance(stage, Scorer):
            seen = stage.embedding
            used |= {address(feature) for feature in (*seen.request_features, *seen.item_features)}
            used |= {f"sequence.{sequence.name}" for sequence in seen.sequences}
            used |= {f"item.{name}" for sequence in seen.sequences for name in sequence.features}
        elif (described := describe_model(stage)) is not None:  # it may use all of them
            used |= {address(feature) for feature in described.features.features}
            used |= {f"sequence.{sequence.name}" for sequence in described.features.sequences}
    return used
