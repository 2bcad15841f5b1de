"""The cascade: stages in order, each a model and the number of items it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankfall._checks import check_count
from rankfall._errors import RankfallError, did_you_mean
from rankfall._lists import rank_order
from rankfall._tensor_file import read_checkpoint, write_checkpoint
from rankfall.data.impressions.spec import Features
from rankfall.models.build import build_model, describe_model, tables_of
from rankfall.registry.references import Source, check_present, check_weights_fit
from rankfall.storage.trust import stored_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rankfall.models import ImpressionFeatures

KIND = "cascade"  # value of the key `kind` in checkpoints


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a cascade.

    Attributes:
        name: Name of the stage: letters, digits and underscores.
        model: Any module that maps a batch to scores ``(B, N)``.
        quota: Number of items that the stage keeps, at least 1.
    """

    name: str
    model: nn.Module
    quota: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The items that each stage of the hard funnel kept, best first.

    Attributes:
        stages: Names of the stages.
        places: One tensor ``(B, quota)`` per stage: positions in the lists of the batch, -1 where a list has no more
            items.
        scores: One tensor ``(B, quota)`` per stage: scores of the stage itself, -inf where a list has no more items.
    """

    stages: list[str]
    places: list[Tensor]
    scores: list[Tensor]

    def items(self, ids: Tensor) -> list[Tensor]:
        """Return the ids of the kept items, one tensor ``(B, quota)`` per stage.

        Args:
            ids: Tensor ``(B, N)`` of the ids of the batch.

        Returns:
            Ids by stage, -1 where a list has no more items.
        """
        return [ids.gather(-1, places.clamp(min=0)).masked_fill(places < 0, -1).to(ids.dtype) for places in self.places]


class Cascade(nn.Module):
    """Stages in order, trained as one network.

    Args:
        stages: The stages. Names are unique, and no quota exceeds the one of the stage before it.

    Raises:
        ValueError: If there is no stage, or a name or quota is not allowed.

    Examples:
        ::

            cascade = rf.Cascade([
                rf.Stage("retrieval", rf.models.TwoTower(log.features), quota=30),
                rf.Stage("ranking", rf.models.DIN(log.features), quota=20),
            ])
            scores = cascade(batch)  # one (B, N) tensor per stage
            loss = rf.objectives.LCRON(relevant=10)(scores, batch.grade, relevance=batch.relevance, mask=batch.mask)
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        if not stages:
            raise RankfallError("stages: found none, expected at least one stage")
        names = [stage.name for stage in stages]
        for before, stage in zip([None, *stages], stages, strict=False):
            if not stage.name.isidentifier():
                raise RankfallError(f"stages: found the name {stage.name!r}, expected letters, digits and '_'")
            if names.count(stage.name) > 1:
                raise RankfallError(f"stages: duplicate name {stage.name!r}")
            check_count(f"quota of {stage.name}", stage.quota)
            if before is not None and stage.quota > before.quota:
                raise RankfallError(
                    f"quota of {stage.name}: found {stage.quota}, expected at most {before.quota}, "
                    f"the quota of {before.name} before it"
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

    def forward(self, batch: ImpressionFeatures) -> list[Tensor]:
        """Return the scores ``(B, N)`` of every stage for every item, one tensor per stage."""
        return [model(batch) for model in self.models.values()]

    @torch.no_grad()
    def recommend(self, batch: ImpressionFeatures) -> Recommendation:
        """Run the hard funnel: each stage scores the items that the stages before it kept, and keeps the best."""
        places = torch.arange(batch.mask.shape[-1], device=batch.mask.device).expand(batch.mask.shape)
        real = batch.mask
        kept: list[Tensor] = []
        scores: list[Tensor] = []
        for stage in self.stages:
            scored = stage.model(_CandidateSubset(batch, places.clamp(min=0), real))
            order = rank_order(scored, real)[..., : stage.quota]
            real = real.gather(-1, order)
            places = places.gather(-1, order).masked_fill(~real, -1)
            kept.append(places)
            scores.append(scored.gather(-1, order).masked_fill(~real, -torch.inf))
        return Recommendation(self.names, kept, scores)

    # --- files ---

    def save(self, path: str | Path) -> None:
        """Write all stages into one file, from which each stage can be loaded separately."""
        tensors: dict[str, Tensor] = {}
        same: dict[str, str] = {}  # other names of tensors that stages share -> the name under which they are stored
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
    def load(cls, path: str | Path, *, models: Mapping[str, nn.Module] | None = None, trust: bool = False) -> Cascade:
        """Load a saved cascade.

        Args:
            path: File written by :meth:`save`.
            models: Models by stage, for stages whose models are not from :mod:`rankfall.models`. Their weights are
                loaded.
            trust: Import the code of models that the file names by ``module:class`` or ``file.py:class``, also
                of other users. Without it, only files that you have trained with before are imported.

        Raises:
            ValueError: If the file is no checkpoint of a cascade, its weights do not fit the models, or it names code
                that is missing or not trusted.
        """
        tensors, about = read_checkpoint(Path(path))
        names = [stage["name"] for stage in _stages_of(about, path)]
        with stored_code(path, trust=trust):
            return cls(_load_stages(tensors, about, names, models or {}, path))

    @staticmethod
    def load_stage(path: str | Path, name: str, *, model: nn.Module | None = None, trust: bool = False) -> Stage:
        """Load one stage of a saved cascade, without reading the others.

        Args:
            path: File written by :meth:`save`.
            name: Name of the stage.
            model: Model of the stage, if it is not from :mod:`rankfall.models`. Its weights are loaded.
            trust: As of :meth:`load`.

        Raises:
            ValueError: If the file has no such stage, or its weights do not fit the model.
        """
        path = Path(path)
        _, about = read_checkpoint(path, lambda tensor: False)
        names = [stage["name"] for stage in _stages_of(about, path)]
        if name not in names:
            raise RankfallError(
                f"{path} has no stage {name!r}{did_you_mean(name, names)}; its stages are {', '.join(names)}"
            )
        prefix = f"models.{name}."
        stored = {target for source, target in about["same"].items() if source.startswith(prefix)}
        tensors, _ = read_checkpoint(path, lambda tensor: tensor.startswith(prefix) or tensor in stored)
        with stored_code(path, trust=trust):
            (stage,) = _load_stages(tensors, about, [name], {} if model is None else {name: model}, path)
        return stage


class _CandidateSubset:
    """A subset of the candidates of a batch."""

    def __init__(self, batch: ImpressionFeatures, places: Tensor, mask: Tensor) -> None:
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
    described = describe_model(stage.model)
    if described is not None:
        about |= {"model": described.config, "features": described.features.to_json()}
        about |= {} if described.source is None else {"source": described.source}
    return about


def _stages_of(about: Mapping[str, Any], path: str | Path) -> list[dict[str, Any]]:
    if about.get("kind") != KIND:
        raise RankfallError(f"{path} is a checkpoint, but not a checkpoint of a cascade")
    stages: list[dict[str, Any]] = about["stages"]
    return stages


def _load_stages(
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
    names: Iterable[str],
    models: Mapping[str, nn.Module],
    path: str | Path,
) -> list[Stage]:
    described, same = {stage["name"]: stage for stage in about["stages"]}, about["same"]
    loaded: dict[str, nn.Module] = {}
    for name in names:
        stage, prefix = described[name], f"models.{name}."
        if name in models:
            model = models[name]
        elif "model" in stage:
            if "source" in stage:
                source = Source(**stage["source"])
                check_present([source], path)
                check_weights_fit([source], path)
            tables = _shared_tables(prefix, same, loaded)
            model = build_model(stage["model"], Features.from_json(stage["features"]), tables=tables)
        else:
            raise RankfallError(f"{path}: the model of stage {name!r} is not from rankfall.models; pass it in `models`")
        stored = {source: source for source in tensors} | dict(same)
        state = {
            source.removeprefix(prefix): tensors[target]
            for source, target in stored.items()
            if source.startswith(prefix)
        }
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise RankfallError(f"{path}: the weights of stage {name!r} do not fit its model: {error}") from None
        loaded[name] = model.eval()
    return [Stage(name, model, described[name]["quota"]) for name, model in loaded.items()]


def _shared_tables(prefix: str, same: Mapping[str, str], loaded: Mapping[str, nn.Module]) -> dict[str, nn.Embedding]:
    """Return the embedding tables that a stage shares with stages that have been loaded already."""
    tables: dict[str, nn.Embedding] = {}
    for source, target in same.items():
        owner = loaded.get(target.split(".")[1])
        if source.startswith(prefix) and owner is not None:
            tables |= {
                name: table
                for name, table in tables_of(owner).items()
                if any(
                    parameter == target.split(".", 2)[2]
                    for parameter, value in owner.named_parameters()
                    if value is table.weight
                )
            }
    return tables
