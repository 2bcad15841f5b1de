"""A program of several processes for torchrun: ``torchrun_program.py DIRECTORY``.

The directory has a log, ``gradients.json`` with objectives, and ``train-NAME.json`` with configurations, which are
trained into ``together/NAME``. Results are written to ``found.json``. One program does all of it because importing
torch takes seconds.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rankfall.data import ImpressionLoader, ImpressionLog
from rankfall.training.build import with_depths
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.distributed.group import Group, joined
from rankfall.training.learner import Position
from rankfall.training.train_cascade import CascadeLearner
from support.interrupted import cascade_content, train
from support.logs import DAYS

if TYPE_CHECKING:
    from torch import Tensor

    from rankfall.data.impressions.loader import Impressions


NORMED = "batch_norm"  # a key beside an objective: whether its models use it


def main(directory: Path) -> None:
    """Run all checks; the first process writes the results."""
    with joined(timeout=120) as group:
        found: dict[str, Any] = {"world": group.gather(group.rank)}
        found["gradients"] = [
            worst_difference(directory, objective, group)
            for objective in json.loads((directory / "gradients.json").read_text())
        ]
        found["refused"] = refused(group)
        for path in sorted(directory.glob("train-*.json")):
            content = json.loads(path.read_text())
            train(content, directory / "together" / path.stem.removeprefix("train-"), group=group)
        found["untrained"] = group.gather(untrained(directory, group))
        found["statistics"] = group.gather(statistics(directory, group))
        found["noise"] = group.gather(noise(group))
        found["threads"] = group.gather(threads(group))
        if group.first:
            (directory / "found.json").write_text(json.dumps(found))


# --- gradients ------------------------------------------------------------------------------------------------------


def worst_difference(directory: Path, objective: dict[str, Any], group: Group) -> float:
    """Return the largest relative difference between gradients of a sharded and of a whole batch.

    In double precision. The second of two batches has one impression, so that one process has an empty share.
    """
    log = ImpressionLog.load(directory / "log")
    normed, content = objective.pop(NORMED, False), cascade_content(directory / "log")
    for stage in content["stages"]:
        stage["model"] |= {"batch_norm": normed}
    content["objective"] = objective
    config = with_depths(validate_cascade(content), log.spec.stage_names)
    torch.manual_seed(0)
    learner = CascadeLearner(config, directory, log, group)
    learner.network.double()
    alone = copy.deepcopy(learner.network)
    learner.network = group.wrap(learner.network)
    learner.optimizer.step = lambda: None  # type: ignore[method-assign]
    shares, wholes = (
        [doubled(batch) for batch in ImpressionLoader(log, DAYS[0], batch=16, rank=rank, world=world)]
        for rank, world in ((group.rank, group.world), (0, 1))
    )
    assert [len(batch) for batch in wholes] == [16, 1]
    assert group.totals([len(batch) for batch in shares]) == [16, 1]
    worst = 0.0
    for share, whole in zip(shares, wholes, strict=True):
        taken = learner.step(share, Position())
        alone.zero_grad()
        terms, _ = alone(whole)
        sum(terms.values()).backward()
        for name, value in terms.items():
            worst = max(worst, abs(taken.sums[name] / len(whole) - float(value.detach())))
        scale = max(float(gradient(one).abs().max()) for one in alone.parameters())
        pairs = zip(learner.trained, alone.parameters(), strict=True)
        worst = max(worst, *(float((gradient(a) - gradient(b)).abs().max()) / scale for a, b in pairs))
    return max(group.gather(worst))


def doubled(batch: Impressions) -> Impressions:
    return batch._map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.to_dense()


# --- nothing to learn -----------------------------------------------------------------------------------------------


def untrained(directory: Path, group: Group) -> str:
    """Return the error of training with a loss that has no gradient, as it keeps more items than lists have."""
    content = cascade_content(directory / "log")
    content["objective"] = {"name": "per_stage", "loss": {"name": "lambda_recall_loss", "m": 50, "k": 2}}
    try:
        train(content, directory / "untrained", group=group)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- batch norm -----------------------------------------------------------------------------------------------------


def statistics(directory: Path, group: Group) -> dict[str, list[float]]:
    """Return the statistics of batch norm after batches of which this process has shares, some of them empty."""
    log = ImpressionLog.load(directory / "log")
    config = with_depths(
        validate_cascade(json.loads((directory / "train-normed.json").read_text())), log.spec.stage_names
    )
    torch.manual_seed(0)
    learner = CascadeLearner(config, directory, log, group)
    learner.network = group.wrap(learner.network)
    assert isinstance(learner.network, nn.parallel.DistributedDataParallel)
    assert not learner.network.broadcast_buffers  # broadcasting would hide differences
    for batch in learner.loader:
        learner.step(batch, Position())
    return {name: value.flatten().tolist() for name, value in learner.cascade.named_buffers()}


# --- agreement ------------------------------------------------------------------------------------------------------


def refused(group: Group) -> list[list[str]]:
    """Return the error that each process receives if the first, the second, both, or none raises one."""
    errors = []
    for refusing in ([0], [1], [0, 1], []):
        try:
            with group.together():
                if group.rank in refusing:
                    raise OSError(f"no {group.rank}")
        except (OSError, ValueError) as error:
            errors.append(f"{type(error).__name__}: {error}")
        else:
            errors.append("")
    return group.gather(errors)


def noise(group: Group) -> list[list[float]]:
    """Return the noise of two batches, and of the second one again."""
    drawn = []
    torch.manual_seed(0)
    for step in (0, 1, 1):
        group.seed_noise(7, step)
        drawn.append(torch.rand(2).tolist())
    return drawn


def threads(group: Group) -> list[int]:
    """Return the number of gloo threads that reduce gradients: all dense, and some sparse."""
    found = []
    for sparse in (False, True):
        wrapped = group.wrap(nn.Sequential(nn.Embedding(2, 2, sparse=sparse), nn.Linear(2, 1)))
        assert isinstance(wrapped, nn.parallel.DistributedDataParallel)
        options: Any = wrapped.process_group._get_backend(torch.device("cpu")).options
        found.append(int(options._threads))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
