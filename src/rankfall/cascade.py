"""The cascade: stages in order, each a model and the number of items it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankfall._lists import check_count, rank_order
from rankfall._suggest import did_you_mean
from rankfall._tensor_file import read_checkpoint, write_checkpoint
from rankfall.data.impressions.spec import Features
from rankfall.models import Scorer, from_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rankfall.models import Batch

KIND = "cascade"  # of its checkpoints


@dataclass(frozen=True, slots=True)
class Stage:
    """A model, any module that maps a batch to scores ``(B, N)``, and how many items it keeps."""

    name: str
    model: nn.Module
    quota: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What each stage of the hard funnel kept, the best first; one tensor ``(B, quota)`` a stage.

    `places` are positions in the lists of the batch, -1 where a list had no more items; `scores` are those of the stage
    itself, -inf there.
    """

    stages: list[str]
    places: list[Tensor]
    scores: list[Tensor]

    def items(self, ids: Tensor) -> list[Tensor]:
        """The ids ``(B, N)`` of the batch that each stage kept, -1 where there was none."""
        return [ids.gather(-1, places.clamp(min=0)).masked_fill(places < 0, -1).to(ids.dtype) for places in self.places]


class Cascade(nn.Module):
    """Stages in order, trained as one network.

    ::

    cascade = rf.Cascade([
        rf.Stage("retrieval", rf.models.TwoTower(log.features), quota=30),
        rf.Stage("ranking", rf.models.DIN(log.features), quota=20),
    ])
    scores = cascade(batch)  # one (B, N) tensor a stage
    loss = rf.objectives.LCRON(relevant=10)(scores, batch.grade, relevance=batch.relevance, mask=batch.mask)
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        if not stages:
            raise ValueError("stages: a cascade needs at least one")
        names = [stage.name for stage in stages]
        for before, stage in zip([None, *stages], stages, strict=False):
            if not stage.name.isidentifier():
                raise ValueError(f"stages: found the name {stage.name!r}, expected letters, digits and '_'")
            if names.count(stage.name) > 1:
                raise ValueError(f"stages: {stage.name!r} stands there twice")
            check_count(f"quota of {stage.name}", stage.quota)
            if before is not None and stage.quota > before.quota:
                raise ValueError(
                    f"quota of {stage.name}: found {stage.quota}, but {before.name} before it keeps only {before.quota}"
                )
        self.models = nn.ModuleDict({stage.name: stage.model for stage in stages})
        self.quotas = [stage.quota for stage in stages]

    @property
    def names(self) -> list[str]:
        """The names of the stages in order."""
        return list(self.models)

    @property
    def stages(self) -> list[Stage]:
        """The stages in order."""
        return [Stage(name, self.models[name], quota) for name, quota in zip(self.names, self.quotas, strict=True)]

    def forward(self, batch: Batch) -> list[Tensor]:
        """The scores ``(B, N)`` of every stage for every item."""
        return [model(batch) for model in self.models.values()]

    @torch.no_grad()
    def recommend(self, batch: Batch) -> Recommendation:
        """Run the hard funnel: a stage scores what the stages before it kept, and keeps the best."""
        places = torch.arange(batch.mask.shape[-1], device=batch.mask.device).expand(batch.mask.shape)
        real = batch.mask
        kept: list[Tensor] = []
        scores: list[Tensor] = []
        for stage in self.stages:
            scored = stage.model(_Part(batch, places.clamp(min=0), real))
            order = rank_order(scored, real)[..., : stage.quota]
            real = real.gather(-1, order)
            places = places.gather(-1, order).masked_fill(~real, -1)
            kept.append(places)
            scores.append(scored.gather(-1, order).masked_fill(~real, -torch.inf))
        return Recommendation(self.names, kept, scores)

    # --- files ---

    def save(self, path: str | Path) -> None:
        """Write all stages into one file, from which each can be loaded alone."""
        tensors: dict[str, Tensor] = {}
        same: dict[str, str] = {}  # names of tensors that stages share, by the name under which they are stored
        seen: dict[int, str] = {}
        for name, tensor in self.state_dict(keep_vars=True).items():
            first = seen.setdefault(id(tensor), name)
            if first == name:
                tensors[name] = tensor.detach()
            else:
                same[name] = first
        about = {"kind": KIND, "stages": [_description(stage) for stage in self.stages], "same": same}
        write_checkpoint(Path(path), tensors, about)

    @classmethod
    def load(cls, path: str | Path, *, models: Mapping[str, nn.Module] | None = None) -> Cascade:
        """A saved cascade. `models` holds, by stage, those that are not from :mod:`rankfall.models`."""
        tensors, about = read_checkpoint(Path(path))
        names = [stage["name"] for stage in _stages_of(about, path)]
        return cls(_load_stages(tensors, about, names, models or {}, path))

    @staticmethod
    def load_stage(path: str | Path, name: str, *, model: nn.Module | None = None) -> Stage:
        """One stage of a saved cascade; nothing else is read."""
        path = Path(path)
        _, about = read_checkpoint(path, lambda tensor: False)
        names = [stage["name"] for stage in _stages_of(about, path)]
        if name not in names:
            raise ValueError(f"{path} has no stage {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}")
        prefix = f"models.{name}."
        stored = {target for source, target in about["same"].items() if source.startswith(prefix)}
        tensors, _ = read_checkpoint(path, lambda tensor: tensor.startswith(prefix) or tensor in stored)
        (stage,) = _load_stages(tensors, about, [name], {} if model is None else {name: model}, path)
        return stage


class _Part:
    """Some of the candidates of a batch."""

    def __init__(self, batch: Batch, places: Tensor, mask: Tensor) -> None:
        self.user, self.context = batch.user, batch.context
        self.sequences, self.sequence_mask = batch.sequences, batch.sequence_mask
        self.items = {name: _gather(values, places) for name, values in batch.items.items()}
        self.mask = mask


def _gather(values: Tensor, places: Tensor) -> Tensor:
    if values.ndim == places.ndim:
        return values.gather(-1, places)
    return values.gather(-2, places.unsqueeze(-1).expand(*places.shape, values.shape[-1]))


def _description(stage: Stage) -> dict[str, Any]:
    about: dict[str, Any] = {"name": stage.name, "quota": stage.quota}
    if isinstance(stage.model, Scorer):
        about |= {"model": stage.model.config(), "features": stage.model.features.to_json()}
    return about


def _stages_of(about: Mapping[str, Any], path: str | Path) -> list[dict[str, Any]]:
    if about.get("kind") != KIND:
        raise ValueError(f"{path} is a checkpoint, but not of a cascade")
    stages: list[dict[str, Any]] = about["stages"]
    return stages


def _load_stages(
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
    names: Iterable[str],
    models: Mapping[str, nn.Module],
    path: str | Path,
) -> list[Stage]:
    described = {stage["name"]: stage for stage in about["stages"]}
    made: dict[str, nn.Module] = {}
    for name in names:
        made[name] = _load_model(described[name], tensors, about["same"], made, models, path)
    return [Stage(name, model, described[name]["quota"]) for name, model in made.items()]


def _load_model(
    stage: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    same: Mapping[str, str],
    made: Mapping[str, nn.Module],
    models: Mapping[str, nn.Module],
    path: str | Path,
) -> nn.Module:
    name, prefix = stage["name"], f"models.{stage['name']}."
    if name in models:
        model = models[name]
    elif "model" in stage:
        features = Features.from_json(stage["features"])
        model = from_config(stage["model"], features, tables=_shared_tables(prefix, same, made))
    else:
        raise ValueError(f"{path}: the model of stage {name!r} is not one of rankfall's; give it in `models`")
    state = {source.removeprefix(prefix): tensors[source] for source in tensors if source.startswith(prefix)}
    state |= {
        source.removeprefix(prefix): tensors[target] for source, target in same.items() if source.startswith(prefix)
    }
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path}: the weights of stage {name!r} do not fit its model: {error}") from None
    return model.eval()


def _shared_tables(prefix: str, same: Mapping[str, str], made: Mapping[str, nn.Module]) -> dict[str, nn.Embedding]:
    """The embedding tables that a stage has in common with stages that are already there."""
    tables: dict[str, nn.Embedding] = {}
    for source, target in same.items():
        owner = made.get(target.split(".")[1])
        if source.startswith(prefix) and isinstance(owner, Scorer):
            tables |= {
                name: table
                for name, table in owner.embedding.tables.items()
                if any(
                    parameter == target.split(".", 2)[2]
                    for parameter, value in owner.named_parameters()
                    if value is table.weight
                )
            }
    return tables
