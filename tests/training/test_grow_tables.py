"""Tables grow at their ends: old rows keep every bit, and new ones start as that of values never seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall.cascade import Cascade, Stage
from rankfall.data import ImpressionLoader
from rankfall.models.build import tables_of
from rankfall.studies.evaluate import evaluate_run
from rankfall.training.build import Optimizers, make_cascade
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.config.load_config import merge
from rankfall.training.config.sections import OptimizerConfig
from rankfall.training.run_directory import Stopped
from rankfall.training.start_weights import grow_cascade, rows_of
from support.growing_logs import NAMES, append_day, growing_log
from support.interrupted import cascade_content, outcome, train

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data import ImpressionLog


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, ImpressionLog]:
    """Logs of the same three days: one whose vocabularies grew, and one whose vocabularies did not."""
    folder: Path = tmp_path_factory.mktemp("grown")
    return {grow: growing_log(folder / str(grow) / "log", 3, grow=grow) for grow in (True, False)}


def content_of(log: Path, **changes: Any) -> dict[str, Any]:
    days = {"train": [NAMES[0]], "valid": [NAMES[1]]}
    return merge(cascade_content(log, data=days), changes)


MODELS: dict[str, list[dict[str, Any]]] = {
    "two_tower, din": [{"kind": "two_tower"}, {"kind": "din", "attention": 4}],
    "mlp": [{"kind": "mlp"}, {"kind": "mlp"}],
    "sparse": [{"kind": "two_tower", "sparse": True}, {"kind": "mlp", "sparse": True}],
}


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
@pytest.mark.parametrize("models", MODELS)
@pytest.mark.parametrize("share", [[], ["video"]])
def test_old_rows_and_their_state_keep_every_bit(
    logs: dict[bool, ImpressionLog], models: str, optimizer: str, share: list[str]
) -> None:
    if models == "sparse" and optimizer == "sgd":
        pytest.skip("no such optimizer")
    log = logs[True]
    before, after = log.as_of(NAMES[0]), log.features.tables
    stages = [
        {"name": f"s{n}", "quota": 6 - n, "model": {"dim": 4, "hidden": [8]} | one}
        for n, one in enumerate(MODELS[models])
    ]
    config = validate_cascade(content_of(log.path) | {"stages": stages, "share": share})
    torch.manual_seed(0)
    cascade = make_cascade(config, before.features)
    optimizers = Optimizers(OptimizerConfig(name=optimizer, lr=0.05), cascade, torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    (batch,) = ImpressionLoader(before, NAMES[0], batch=64, prefetch=0)
    step(cascade, optimizers, batch)
    state = states(cascade, optimizers)
    unseen = [
        scores.detach().clone()
        for scores in cascade(next(iter(ImpressionLoader(before, NAMES[2], batch=64, shuffle=False))))
    ]
    shared = len(list(cascade.parameters()))

    grow_cascade(cascade, after, optimizers)
    assert len(list(cascade.parameters())) == shared  # a shared table is still one table
    assert rows_of(cascade) == after
    grown = states(cascade, optimizers)
    assert grown.keys() == state.keys()
    larger = 0
    for name, old in state.items():
        new = grown[name]
        assert torch.equal(new[: len(old)] if old.ndim else new, old), name
        if old.ndim and len(new) > len(old):
            expected = torch.zeros_like(old[1]) if name[1] else old[1]
            assert (new[len(old) :] == expected).all(), name
            larger += 1
    assert larger >= 3  # user, video and author
    # new values are scored as never seen values were, then trained
    (latest,) = ImpressionLoader(log, NAMES[2], batch=64, shuffle=False, prefetch=0)
    for scores, old in zip(cascade(latest), unseen, strict=True):
        assert torch.equal(scores, old)
    step(cascade, optimizers, latest)
    moved = tables_of(cascade.models["s0"])["video"].weight
    assert (moved[-1] != moved[1]).any()


def step(cascade: Cascade, optimizers: Optimizers, batch: Any) -> None:
    optimizers.zero_grad()
    torch.stack([(scores * batch.mask).square().mean() for scores in cascade(batch)]).sum().backward()
    optimizers.step()


def states(cascade: Cascade, optimizers: Optimizers) -> dict[tuple[str, str], torch.Tensor]:
    """Return copies of all weights, and of all tensors of the optimizers by weight."""
    found = {(name, ""): weight.detach().clone() for name, weight in cascade.named_parameters()}
    names: dict[torch.Tensor, str] = {weight: name for name, weight in cascade.named_parameters()}
    for part in optimizers.parts.values():
        of_cascade = {names[weight]: state for weight, state in part.state.items() if weight in names}
        for name, state in of_cascade.items():
            for key, value in state.items():
                if key != "step" and torch.is_tensor(value):
                    found[name, key] = value.clone()
                elif key == "step":
                    found[name, key] = torch.tensor(float(value))
    return found


def test_models_with_tables_of_their_own_are_refused(logs: dict[bool, ImpressionLog]) -> None:
    log = logs[True]
    cascade = make_cascade(validate_cascade(content_of(log.path)), log.as_of(NAMES[0]).features)
    own = Cascade([Stage("retrieval", torch.nn.Identity(), 3), *cascade.stages[1:]])
    with pytest.raises(ValueError, match="the model of retrieval has no FeatureEmbedding as `embedding`"):
        grow_cascade(own, log.features.tables)


@pytest.mark.parametrize("length", [None, 40])
def test_an_older_run_reads_new_values_as_never_seen(
    logs: dict[bool, ImpressionLog], tmp_path: Path, length: int | None
) -> None:
    first = growing_log(tmp_path / "log", 2, grow=False)
    train(content_of(first.path, data={"length": length}, training={"epochs": 1}), tmp_path / "run")
    found = {grow: evaluate_run(tmp_path / "run", NAMES[2], data=str(log.path)) for grow, log in logs.items()}
    for grow, evaluation in found.items():
        assert any("reads them as never seen" in note for note in evaluation.notes) == grow
    for name, values in found[True].values.items():
        assert torch.equal(values, found[False].values[name]), name


def test_a_run_is_resumed_after_its_log_has_grown(tmp_path: Path) -> None:
    log = growing_log(tmp_path / "log", 2)
    content = content_of(log.path, data={"negatives": 0}, training={"epochs": 2})
    train(content, tmp_path / "whole")
    batches = iter(range(100))
    with pytest.raises(Stopped):
        train(content, tmp_path / "run", stop=lambda: next(batches) == 3)
    append_day(log.path, 2)
    train(content, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
