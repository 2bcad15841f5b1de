"""The cascade: the hard funnel against loops, and files from which single stages can be loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import rankfall as rf
from rankfall._tensor_file import write_checkpoint
from rankfall.data.impressions.spec import Feature, Features, Sequence

if TYPE_CHECKING:
    from pathlib import Path

FEATURES = Features(
    (
        Feature("user_id", "user", "user.user_id", 20),
        Feature("hour", "context", "context.hour", 26),
        Feature("film", "item", "film", 50),
        Feature("genre", "item", "item.genre", 9),
        Feature("price", "item"),
        Feature("vector", "item", size=3),
    ),
    (Sequence("history", 6, ("film", "genre")),),
)


class Ready(nn.Module):
    """A model that returns scores of the batch."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Any) -> Tensor:
        scores: Tensor = batch.items[self.name] + self.bias
        return scores


def batch_of(seed: int = 0, count: int = 6, n: int = 9) -> Any:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, n + 1, (count, 1), generator=g)
    mask = (torch.arange(n) < lengths).gather(-1, torch.rand(count, n, generator=g).argsort(-1))
    events = torch.randint(0, 7, (count, 1), generator=g)

    def ids(rows: int, *shape: int) -> Tensor:
        return torch.randint(0, rows, shape, generator=g, dtype=torch.int32)

    return SimpleNamespace(
        user={"user_id": ids(20, count)},
        context={"hour": ids(26, count)},
        items={
            "film": ids(50, count, n),
            "genre": ids(9, count, n),
            "price": torch.rand(count, n, generator=g),
            "vector": torch.rand(count, n, 3, generator=g),
            "one": torch.rand(count, n, generator=g),
            "two": torch.rand(count, n, generator=g),
        },
        sequences={"history": {"film": ids(50, count, 6), "genre": ids(9, count, 6)}},
        sequence_mask={"history": torch.arange(6) < events},
        mask=mask,
    )


def trained(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def two_stages(**options: Any) -> rf.Cascade:
    torch.manual_seed(0)
    first = trained(rf.models.TwoTower(FEATURES, hidden=(8, 4)))
    second = trained(rf.models.DIN(FEATURES, hidden=(8,), **options))
    return rf.Cascade([rf.Stage("retrieval", first, 5), rf.Stage("ranking", second, 3)]).eval()


def test_scores_are_those_of_the_models() -> None:
    cascade, batch = two_stages(), batch_of()
    first, second = cascade(batch)
    torch.testing.assert_close(first, cascade.models["retrieval"](batch))
    torch.testing.assert_close(second, cascade.models["ranking"](batch))


def test_the_funnel_keeps_what_a_loop_keeps() -> None:
    batch = batch_of(count=30)
    stages = [rf.Stage("a", Ready("one"), 5), rf.Stage("b", Ready("two"), 3), rf.Stage("c", Ready("price"), 3)]
    ids = torch.arange(1000, 1009).expand(30, 9)
    result = rf.Cascade(stages).recommend(batch)
    items = result.items(ids)
    for i in range(30):
        left = [j for j in range(9) if batch.mask[i, j]]
        for t, name in enumerate(("one", "two", "price")):
            scores = batch.items[name][i].tolist()
            left = sorted(left, key=lambda j: -scores[j])[: stages[t].quota]
            missing = stages[t].quota - len(left)
            assert result.places[t][i].tolist() == left + [-1] * missing
            assert items[t][i].tolist() == [1000 + j for j in left] + [-1] * missing
            assert result.scores[t][i].tolist() == [scores[j] for j in left] + [-torch.inf] * missing


def test_recommend_agrees_with_the_metric() -> None:
    cascade, batch = two_stages(), batch_of(count=40)
    scores = cascade(batch)
    funnel = rf.metrics.funnel(scores, torch.ones(40, 9), quotas=cascade.quotas, mask=batch.mask)
    for places, survivors in zip(cascade.recommend(batch).places, funnel.survivors.unbind(-2), strict=True):
        found = torch.zeros(40, 10, dtype=torch.bool).scatter(-1, places % 10, True)[:, :9]  # -1 goes to the tenth
        assert torch.equal(found, survivors)


def test_a_saved_cascade_comes_back(tmp_path: Path) -> None:
    cascade, batch = two_stages(), batch_of()
    cascade.save(tmp_path / "cascade.safetensors")
    again = rf.Cascade.load(tmp_path / "cascade.safetensors")
    assert (again.names, again.quotas) == (["retrieval", "ranking"], [5, 3])
    for one, other in zip(cascade(batch), again(batch), strict=True):
        assert torch.equal(one, other)


def test_a_stage_comes_back_alone(tmp_path: Path) -> None:
    cascade, batch = two_stages(), batch_of()
    path = tmp_path / "cascade.safetensors"
    cascade.save(path)
    for stage, scores in zip(cascade.stages, cascade(batch), strict=True):
        alone = rf.Cascade.load_stage(path, stage.name)
        assert (alone.name, alone.quota) == (stage.name, stage.quota)
        assert torch.equal(alone.model(batch), scores)
    with pytest.raises(
        ValueError, match="has no stage 'rankin', did you mean 'ranking'; its stages are retrieval, ranking"
    ):
        rf.Cascade.load_stage(path, "rankin")


def test_shared_tables_stay_shared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = trained(rf.models.TwoTower(FEATURES, hidden=(8, 4)))
    assert isinstance(first, rf.models.TwoTower)
    film = first.embedding.tables["film"]
    second = trained(rf.models.DIN(FEATURES, hidden=(8,), tables={"film": film}))
    cascade = rf.Cascade([rf.Stage("retrieval", first, 5), rf.Stage("ranking", second, 3)]).eval()
    batch, path = batch_of(), tmp_path / "cascade.safetensors"
    cascade.save(path)
    again = rf.Cascade.load(path)
    models = [again.models[name] for name in again.names]
    assert all(isinstance(model, rf.models.Scorer) for model in models)
    tables = [model.embedding.tables for model in models if isinstance(model, rf.models.Scorer)]
    assert tables[0]["film"] is tables[1]["film"]
    assert tables[0]["item.genre"] is not tables[1]["item.genre"]
    for one, other in zip(cascade(batch), again(batch), strict=True):
        assert torch.equal(one, other)
    for stage, scores in zip(cascade.stages, cascade(batch), strict=True):
        assert torch.equal(rf.Cascade.load_stage(path, stage.name).model(batch), scores)


def test_own_models_are_given_when_loading(tmp_path: Path) -> None:
    path = tmp_path / "cascade.safetensors"
    own = Ready("one")
    nn.init.constant_(own.bias, 2.5)
    rf.Cascade([rf.Stage("own", own, 5)]).save(path)
    with pytest.raises(ValueError, match=r"the model of stage 'own' is not from rankfall\.models; pass it in `models`"):
        rf.Cascade.load(path)
    again = rf.Cascade.load(path, models={"own": Ready("one")})
    assert again.models["own"].bias == 2.5
    with pytest.raises(ValueError, match="the weights of stage 'own' do not fit its model"):
        rf.Cascade.load(path, models={"own": nn.Linear(2, 2)})


def test_a_cascade_can_be_trained_as_one_network() -> None:
    cascade, batch = two_stages().train(), batch_of(count=32)
    grades = torch.rand(32, 9, generator=torch.Generator().manual_seed(1)).argsort(-1).argsort(-1).float()
    objective = rf.objectives.LCRON(relevant=2, topk=rf.ops.topk("dftopk"))
    optimizer = torch.optim.Adam([*cascade.parameters(), *objective.parameters()], lr=0.01)
    values = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = objective(cascade(batch), grades, mask=batch.mask)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < 0.8 * values[0]


def model() -> nn.Module:
    return Ready("one")


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "stages: found none, expected at least one stage"),
        ([rf.Stage("a b", model(), 3)], "stages: found the name 'a b', expected letters, digits and '_'"),
        ([rf.Stage("a", model(), 3), rf.Stage("a", model(), 3)], "stages: duplicate name 'a'"),
        ([rf.Stage("a", model(), 0)], "quota of a must be at least 1, got 0"),
        (
            [rf.Stage("a", model(), 2), rf.Stage("b", model(), 3)],
            "quota of b: found 3, expected at most 2, the quota of a before it",
        ),
    ],
)
def test_wrong_stages_are_refused(stages: list[rf.Stage], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rf.Cascade(stages)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match="does not exist, expected a checkpoint"):
        rf.Cascade.load(path)
    write_checkpoint(path, {"a": torch.zeros(1)}, {"kind": "ranker"})
    with pytest.raises(ValueError, match="is a checkpoint, but not a checkpoint of a cascade"):
        rf.Cascade.load(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        rf.Cascade.load(path)
