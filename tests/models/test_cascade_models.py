"""Models that score impressions, against loops over single items; and changes that must not affect a score."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import rankfall as rf
from rankfall.models import DIN, KINDS, EmbeddingMLP, Scorer, TwoTower, from_config
from rankfall.models import layers as attention
from rankfall.models.layers import ACTIVATIONS, AttentionPooling, Layers, PReLU, RowNorm, attention_weights
from rankfall.training.config.cascade_config import StageConfig
from support.batches import FEATURES, RECFLOW, Impressions, blank, map_events, map_items, random_batch, spread, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.data.impressions.spec import Feature, Features

SMALL: dict[str, dict[str, Any]] = {
    "two_tower": {"hidden": [6, 5, 4]},
    "mlp": {"hidden": [6, 5]},
    "din": {"hidden": [6, 5], "attention": 7},
}
every_kind = pytest.mark.parametrize("kind", list(KINDS))


def make(kind: str, *, seed: int = 0, features: Features = FEATURES, **options: Any) -> Scorer:
    torch.manual_seed(seed)
    return from_config({"kind": kind, "dim": 3, "std": 1.0, **SMALL[kind], **options}, features)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the attention use several blocks of impressions and items, even for the small batches of these tests."""
    monkeypatch.setattr(attention, "_BLOCK_ON_CPU", 200)


# --- the formulas, one item at a time -----------------------------------------------------------------------------


class Naive:
    """A model's scores from its weights, without batching, splitting or sharing."""

    def __init__(self, model: Scorer) -> None:
        self.model = model
        self.weights = dict(model.named_parameters())
        self.features = model.features

    def __call__(self, batch: Impressions) -> Tensor:
        rows = []
        for b, real in enumerate(batch.mask.tolist()):
            scores = [
                self.score(batch, b, n) if real[n] else batch.items["price"].new_zeros(()) for n in range(len(real))
            ]
            rows.append(torch.stack(scores))
        return torch.stack(rows)

    def score(self, batch: Impressions, b: int, n: int) -> Tensor:
        item = [self.embed(feature, batch.items[feature.name][b, n]) for feature in self.features.of("item")]
        request = [self.embed(feature, batch.context[feature.name][b]) for feature in self.features.of("context")]
        request += [self.embed(feature, batch.user[feature.name][b]) for feature in self.features.of("user")]
        if isinstance(self.model, DIN):
            interests = [self.interest(batch, b, n, number) for number in range(len(self.features.sequences))]
            return self.network("head", torch.cat([*request, *interests, *item])).squeeze(0)
        request += [self.mean(batch, b, number) for number in range(len(self.features.sequences))]
        if isinstance(self.model, TwoTower):
            user = self.network("user_tower", torch.cat(request))
            return user @ self.network("item_tower", torch.cat(item))
        return self.network("head", torch.cat([*request, *item])).squeeze(0)

    def embed(self, feature: Feature, value: Tensor) -> Tensor:
        if feature.embedding is None:
            return value.reshape(-1)
        table = self.weights[f"embedding.table/{feature.embedding.replace('.', '/')}.weight"]
        return table[int(value)] if value else torch.zeros_like(table[0])

    def events(self, batch: Impressions, b: int, number: int) -> list[Tensor]:
        sequence = self.features.sequences[number]
        events = []
        for place, real in enumerate(batch.sequence_mask[sequence.name][b]):
            if real:
                ids = [(name, batch.sequences[sequence.name][name][b, place]) for name in sequence.features]
                events.append(torch.cat([self.embed(self.features.item(name), value) for name, value in ids]))
        return events

    def mean(self, batch: Impressions, b: int, number: int) -> Tensor:
        events = self.events(batch, b, number)
        width = len(self.features.sequences[number].features) * self.model.embedding.dim
        return sum(events, torch.zeros(width, dtype=torch.float64)) / max(1, len(events))

    def interest(self, batch: Impressions, b: int, n: int, number: int) -> Tensor:
        events = self.events(batch, b, number)
        if not events:
            return self.mean(batch, b, number)
        sequence = self.features.sequences[number]
        values = [self.embed(self.features.item(name), batch.items[name][b, n]) for name in sequence.features]
        unit = f"attention.{number}"
        logits = []
        for event in events:
            hidden = F.linear(
                torch.cat([event, *values]), self.weights[f"{unit}.hidden.weight"], self.weights[f"{unit}.hidden.bias"]
            )
            activated = self.activate(f"{unit}.activation", self.model.config()["attention_activation"], hidden)
            logits.append(self.weights[f"{unit}.out.weight"][0] @ activated)
        weights = torch.stack(logits).exp() / torch.stack(logits).exp().sum()
        return (weights.unsqueeze(-1) * torch.stack(events)).sum(0)

    def network(self, name: str, row: Tensor) -> Tensor:
        for number in itertools.count():
            layer = f"{name}.layers.{number}.linear"
            if f"{layer}.weight" not in self.weights:
                return F.linear(row, self.weights[f"{name}.out.weight"], self.weights[f"{name}.out.bias"])
            hidden = F.linear(row, self.weights[f"{layer}.weight"], self.weights[f"{layer}.bias"])
            activation = f"{name}.layers.{number}.activation"
            row = self.activate(activation, self.model.config()["activation"], hidden)
        raise AssertionError

    def activate(self, module: str, activation: str, row: Tensor) -> Tensor:
        if activation != "prelu":
            return ACTIVATIONS[activation]()(row)  # type: ignore[no-any-return]
        slopes = self.weights[f"{module}.weight"]
        assert slopes.shape == row.shape
        return torch.stack([x if x > 0 else slope * x for x, slope in zip(row, slopes, strict=True)])


@every_kind
@pytest.mark.parametrize("activation", ["relu", "prelu"])
@pytest.mark.parametrize("blocks", [attention._BLOCK_ON_CPU, 200])
def test_scores_and_gradients_are_those_of_the_formula(
    kind: str, activation: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_BLOCK_ON_CPU", blocks)
    model = make(kind, activation=activation).double()
    batch = random_batch(dtype=torch.float64)
    weight = torch.randn(batch.mask.shape, dtype=torch.float64) * batch.mask
    expected, found = Naive(model)(batch), model(batch)
    assert found.isfinite().all()
    torch.testing.assert_close(found * batch.mask, expected)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad((found * weight).sum(), parameters)
    for ours, theirs in zip(gradients, torch.autograd.grad((expected * weight).sum(), parameters), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert theirs.any()


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_any_activation_in_the_attention(activation: str, small_blocks: None) -> None:
    model = make("din", attention_activation=activation).double()
    batch = random_batch(dtype=torch.float64)
    expected, found = Naive(model)(batch), model(batch)
    torch.testing.assert_close(found * batch.mask, expected)
    parameters = list(model.attention.parameters())  # type: ignore[union-attr]
    gradients = torch.autograd.grad((found * batch.mask).sum(), parameters)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected.sum(), parameters), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("block", [2**20, 10])
def test_attention_has_the_gradient_of_its_formula(
    activation: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_BLOCK_ON_CPU", block)
    mask = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 3, 4), (3, 5, 4), (4,))]

    def weights(events: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        return attention_weights(events, targets, weight, mask, ACTIVATIONS[activation]())

    assert torch.autograd.gradcheck(weights, inputs)


@every_kind
def test_gradcheck_of_all_layers(kind: str) -> None:
    model = make(kind, activation="tanh").double()
    batch = random_batch(dtype=torch.float64, count=2, n=3)
    layers = {name: value for name, value in model.named_parameters() if "table/" not in name}

    def scores(*values: Tensor) -> Tensor:
        result: Tensor = functional_call(model, dict(zip(layers, values, strict=True)), (batch,))
        return result

    assert torch.autograd.gradcheck(scores, tuple(layers.values()), fast_mode=True)


@pytest.mark.parametrize("options", [{}, {"batch_norm": True}, {"residual": True}, {"activation": "silu"}])
def test_an_input_in_parts_is_one_input(options: dict[str, Any]) -> None:
    layers = Layers(7, [7, 7, 4], **options).double()
    users, items = torch.randn(3, 1, 2, dtype=torch.float64), torch.randn(3, 5, 5, dtype=torch.float64)
    joined = torch.cat([users.expand(3, 5, 2), items], dim=-1)
    torch.testing.assert_close(layers(users, items), layers(joined))


def test_attention_is_the_concatenated_layer() -> None:
    pool = AttentionPooling(3, 5)
    events, targets = torch.randn(2, 4, 3), torch.randn(2, 6, 3)
    mask = torch.tensor([[True] * 4, [True, False, True, False]])
    pairs = torch.cat([events[:, None].expand(2, 6, 4, 3), targets[:, :, None].expand(2, 6, 4, 3)], dim=-1)
    logits = (F.relu(pool.hidden(pairs)) @ pool.out.weight[0]).masked_fill(~mask[:, None], -torch.inf)
    torch.testing.assert_close(pool(events, targets, mask), logits.softmax(-1) @ events)


# --- what does not change a score ---------------------------------------------------------------------------------

options_of_layers = pytest.mark.parametrize("options", [{}, {"batch_norm": True}, {"residual": True}])


@every_kind
@options_of_layers
def test_scores_follow_their_items(kind: str, options: dict[str, Any]) -> None:
    model, batch = make(kind, **options).double(), random_batch(dtype=torch.float64)
    order = torch.randperm(batch.mask.shape[1])
    torch.testing.assert_close(model(map_items(batch, lambda values: values[:, order])), model(batch)[:, order])


@every_kind
@options_of_layers
def test_padding_anywhere_changes_nothing(kind: str, options: dict[str, Any], small_blocks: None) -> None:
    model, batch = make(kind, **options).double(), random_batch(dtype=torch.float64)
    places = torch.tensor([1, 2, 4, 7, 8, 11, 12])
    padded = map_items(batch, lambda values: spread(values, places, 14))
    states, scores = [], []
    for one, where in ((batch, slice(None)), (padded, places)):
        fresh = make(kind, **options).double()
        fresh.load_state_dict(model.state_dict())
        scored = fresh(one)
        assert scored.isfinite().all()
        scores.append(scored[:, where] * batch.mask)
        (scores[-1].sin().sum()).backward()
        states.append([*fresh.state_dict().values(), *(parameter.grad for parameter in fresh.parameters())])
    torch.testing.assert_close(*scores)
    torch.testing.assert_close(*states)  # gradients and running statistics too


@every_kind
def test_what_stands_in_padding_changes_nothing(kind: str) -> None:
    model, batch = make(kind, batch_norm=True), random_batch()
    other = random_batch(seed=1)
    changed = replace(
        batch,
        items={
            name: blank(values, batch.mask) + blank(other.items[name], ~batch.mask)
            for name, values in batch.items.items()
        },
        sequences={
            name: {
                feature: torch.where(batch.sequence_mask[name], ids, other.sequences[name][feature])
                for feature, ids in values.items()
            }
            for name, values in batch.sequences.items()
        },
    )
    torch.testing.assert_close(model(changed) * batch.mask, model(batch) * batch.mask)


@every_kind
def test_longer_padding_of_sequences_changes_nothing(kind: str) -> None:
    model, batch = make(kind), random_batch()
    longer = map_events(batch, lambda ids: F.pad(ids, (0, 3)))
    torch.testing.assert_close(model(longer), model(batch))


@every_kind
def test_an_impression_is_scored_alone_as_among_others(kind: str, small_blocks: None) -> None:
    model, batch = make(kind), random_batch()
    alone = take(batch, slice(2, 3))
    torch.testing.assert_close(model(alone), model(batch)[2:3])


@every_kind
@pytest.mark.parametrize("length", [0, 2])
def test_nobody_did_anything_before(kind: str, length: int) -> None:
    model, batch = make(kind), random_batch()
    empty = map_events(batch, lambda ids: torch.zeros_like(ids[:, :length]))
    none = map_events(batch, lambda ids: torch.zeros_like(ids))
    scores = model(empty)
    torch.testing.assert_close(scores, model(none))
    scores.sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


@every_kind
@pytest.mark.parametrize(("count", "n"), [(0, 4), (3, 0), (1, 1)])
def test_batches_of_any_size(kind: str, count: int, n: int) -> None:
    model, batch = make(kind), random_batch()
    cut = map_items(take(batch, slice(count)), lambda values: values[:, :n])
    scores = model(cut)
    assert scores.shape == cut.mask.shape
    scores.sum().backward()


# --- batch norm ---------------------------------------------------------------------------------------------------


def test_batch_norm_is_that_of_the_real_rows() -> None:
    rows = torch.randn(4, 6, 5, dtype=torch.float64)
    mask = torch.rand(4, 6) < 0.5
    ours, theirs = RowNorm(5).double(), nn.BatchNorm1d(5).double()
    for norm in (ours, theirs):
        nn.init.uniform_(norm.weight)
        norm.weight.data.copy_(torch.arange(1.0, 6.0))
    for _ in range(2):
        ours_in, theirs_in = rows.clone().requires_grad_(), rows.clone().requires_grad_()
        found, expected = ours(ours_in, mask), theirs(theirs_in[mask])
        torch.testing.assert_close(found[mask], expected)
        gradients = torch.autograd.grad(found[mask].sin().sum(), [ours_in, ours.weight, ours.bias])
        for one, other in zip(
            gradients, torch.autograd.grad(expected.sin().sum(), [theirs_in, theirs.weight, theirs.bias]), strict=True
        ):
            torch.testing.assert_close(one, other)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    torch.testing.assert_close(ours.eval()(rows, mask), theirs.eval()(rows.view(-1, 5)).view_as(rows))


@pytest.mark.parametrize("real", [0, 1])
def test_batch_norm_of_too_few_rows_uses_the_running_statistics(real: int) -> None:
    norm = RowNorm(5)
    norm(torch.randn(20, 5))
    before = [norm.running_mean.clone(), norm.running_var.clone()]  # type: ignore[union-attr]
    rows = torch.randn(6, 5)
    found = norm(rows, torch.arange(6) < real)
    torch.testing.assert_close([norm.running_mean, norm.running_var], before)
    torch.testing.assert_close(found, norm.eval()(rows))


# --- tables -------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("sparse", [False, True])
def test_row_0_stays_0_and_row_1_is_trained(kind: str, sparse: bool) -> None:
    model, batch = make(kind, sparse=sparse), random_batch()
    batch.items["video"][:, 0] = 1  # never seen
    before = {name: table.weight.detach().clone() for name, table in model.embedding.tables.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(batch) * batch.mask).square().sum().backward()
    optimizer.step()
    for name, table in model.embedding.tables.items():
        assert not table.weight[0].any(), name
        assert not torch.equal(table.weight, before[name]), name
    assert (model.embedding.tables["video"].weight[1] != before["video"][1]).all()


@every_kind
def test_sparse_gradients_make_the_same_step(kind: str) -> None:
    models = [make(kind, sparse=sparse) for sparse in (False, True)]
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in range(2):
            batch = random_batch(seed=seed)
            optimizer.zero_grad()
            (model(batch) * batch.mask).square().sum().backward()
            optimizer.step()
    assert all(table.weight.grad is not None for table in models[1].embedding.tables.values())
    assert all(table.weight.grad.is_sparse for table in models[1].embedding.tables.values())  # type: ignore[union-attr]
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict())


def test_only_large_tables_are_sparse() -> None:
    tables = make("mlp", sparse=26).embedding.tables
    assert {name: table.sparse for name, table in tables.items()} == {
        "hour": True,
        "user.id": False,
        "video": True,
        "item.author": False,
    }


def test_one_table_for_each_name() -> None:
    model = make("mlp", std=0.5)
    shapes = {name: tuple(table.weight.shape) for name, table in model.embedding.tables.items()}
    assert shapes == {"hour": (26, 3), "user.id": (12, 3), "video": (30, 3), "item.author": (9, 3)}
    wide = make("mlp", dim=2000, std=0.5).embedding.tables["video"].weight.detach()
    assert float(wide[1:].std()) == pytest.approx(0.5, rel=0.02)
    assert not wide[0].any()


def test_stages_share_the_tables_they_are_given() -> None:
    first = make("two_tower")
    shared = {"video": first.embedding.tables["video"]}
    second = DIN(FEATURES, dim=3, tables=shared)
    assert second.embedding.tables["video"] is first.embedding.tables["video"]
    assert second.embedding.tables["hour"] is not first.embedding.tables["hour"]
    batch = random_batch()
    both = (first(batch) + second(batch)).sum()
    weight = shared["video"].weight
    parts = [torch.autograd.grad(model(batch).sum(), weight)[0] for model in (first, second)]
    torch.testing.assert_close(torch.autograd.grad(both, weight)[0], parts[0] + parts[1])


@pytest.mark.parametrize("name", ["type", "forward", "items", "a-b"])
def test_tables_may_have_any_name(name: str) -> None:
    features = replace(
        FEATURES,
        features=tuple(
            replace(feature, embedding=name) if feature.embedding == "video" else feature
            for feature in FEATURES.features
        ),
    )
    model = make("din", features=features)
    assert name in model.embedding.tables
    model(random_batch(features))


# --- features -----------------------------------------------------------------------------------------------------


def test_only_limits_model_inputs() -> None:
    only = ["user.id", "item.video", "item.price", "sequence.likes"]
    model, batch = make("mlp", only=only), random_batch()
    assert set(model.embedding.tables) == {"user.id", "video"}
    scores = model(batch)
    for changed in (
        replace(batch, context={}, user={"id": batch.user["id"]}),
        replace(batch, items={"video": batch.items["video"], "price": batch.items["price"]}),
        replace(batch, sequences={"likes": batch.sequences["likes"]}),
    ):
        assert torch.equal(model(changed), scores)


def test_a_linear_model_of_numbers() -> None:
    model, batch = make("mlp", only=["item.price"], hidden=[]), random_batch()
    weight, bias = (parameter.detach() for parameter in model.parameters())
    torch.testing.assert_close(model(batch), batch.items["price"] * weight[0, 0] + bias)


def test_sequence_adds_its_tables() -> None:
    model = make("din", only=["item.price", "sequence.history"])
    assert set(model.embedding.tables) == {"video", "item.author"}
    assert model.head.layers[0].linear.in_features == 1 + 6  # type: ignore[index, union-attr]
    model(random_batch())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("mlp", {"only": ["item.prices"]}, r"only: found 'item.prices', did you mean 'item.price'; allowed are .*"),
        ("mlp", {"only": ["sequence.video"]}, r"allowed are .*, sequence.history, sequence.likes"),
        ("mlp", {"only": "item.price"}, "only must be a list of names, got 'item.price'"),
        ("mlp", {"only": ["user.id"]}, "EmbeddingMLP needs at least one item feature"),
        ("two_tower", {"only": ["item.price"]}, "TwoTower needs a user feature, a context feature or a sequence"),
        ("two_tower", {"hidden": []}, "hidden must have at least one width"),
        ("din", {"only": ["item.price"]}, "DIN needs a sequence"),
        ("din", {"activation": "relo"}, "activation must be one of .*, got 'relo', did you mean 'relu'"),
        ("din", {"attention_activation": "x"}, "attention_activation must be one of .*, got 'x'"),
        ("din", {"dim": 0}, "dim must be at least 1, got 0"),
        ("din", {"attentoin": 3}, "din has no option 'attentoin', did you mean 'attention'; its options are dim, .*"),
        ("dine", {}, "kind: found 'dine', did you mean 'din'; allowed are din, mlp, two_tower"),
    ],
)
def test_what_a_model_cannot_be(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_config({"kind": kind, **options}, FEATURES)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "vidoe",
            (30, 8),
            "tables: found 'vidoe', did you mean 'video'; allowed are hour, user.id, video, item.author",
        ),
        ("video", (31, 8), r"tables: 'video' has the shape \(31, 8\), expected \(30, 8\)"),
        ("video", (30, 8), "tables: 'video' must have padding_idx=0, got None"),
        ("video", (30, 4), r"tables: 'video' has the shape \(30, 4\), expected \(30, 8\)"),
    ],
)
def test_tables_that_cannot_be_shared(name: str, shape: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EmbeddingMLP(FEATURES, tables={name: nn.Embedding(*shape)})


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [-1, 30])
def test_ids_that_a_table_does_not_have(value: int, sparse: bool) -> None:
    batch = random_batch()
    batch.items["video"][0, 0] = value
    with pytest.raises(ValueError, match=r"item.video: found ids from .* to .*, expected 0 to 29"):
        make("mlp", sparse=sparse)(batch)


def test_a_batch_without_a_feature() -> None:
    batch = random_batch()
    del batch.items["author"]
    with pytest.raises(ValueError, match=r"the batch has no feature item.author"):
        make("mlp")(batch)


# --- as published -------------------------------------------------------------------------------------------------


def shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for name, value in model.named_parameters() if name.endswith("weight")]


def test_published_shapes() -> None:
    tower = TwoTower(RECFLOW)
    assert shapes(tower.user_tower) == [(128, 104), (64, 128), (32, 64)]
    assert shapes(tower.item_tower) == [(128, 64), (64, 128), (32, 64)]
    din = DIN(RECFLOW)
    assert shapes(din.attention) == [(80, 80), (1, 80)]
    assert shapes(din.head) == [(128, 168), (128, 128), (32, 128), (1, 32)]
    assert shapes(EmbeddingMLP(RECFLOW).head) == [(128, 168), (64, 128), (32, 64), (1, 32)]
    assert {len(model.embedding.tables) for model in (tower, din)} == {13}


@pytest.mark.parametrize(
    ("preset", "kind", "expected"),
    [
        ("lcron_industrial", "two_tower", [(1024, 832), (256, 1024), (256, 256), (64, 256)]),
        ("lcron_industrial", "mlp", [(1024, 1344), (512, 1024), (512, 512), (1, 512)]),
        ("dftopk_industrial", "two_tower", [(1024, 1248), (768, 1024), (768, 768), (96, 768)]),
        ("dftopk_industrial", "mlp", [(1024, 2016), (768, 1024), (768, 768), (1, 768)]),
        ("arf_industrial", "mlp", [(1024, 168), (256, 1024), (256, 256), (256, 256), (1, 256)]),
    ],
)
def test_published_shapes_of_industrial_networks(preset: str, kind: str, expected: list[tuple[int, int]]) -> None:
    stage = StageConfig.model_validate(
        {"name": "a", "quota": 1, "model": {"kind": kind, "preset": preset, "std": 0.01, "sparse": True}}
    )
    assert "preset" not in stage.model
    model = from_config(stage.model, RECFLOW)
    tower = model.user_tower if isinstance(model, TwoTower) else model.head
    assert isinstance(tower, nn.Module)
    assert [shape for shape in shapes(tower) if len(shape) == 2] == expected
    layers = [part for part in tower.modules() if type(part).__name__ == "_Layer"]
    assert len(layers) == len(expected) - 1
    prelu = preset != "arf_industrial"
    for layer in layers:
        assert isinstance(layer.norm, RowNorm)
        assert layer.norm.momentum == 0.001
        assert isinstance(layer.activation, PReLU if prelu else nn.SELU)
        assert isinstance(layer.linear, nn.Linear)
        same = layer.linear.in_features == layer.linear.out_features
        assert layer.residual == (same and not prelu)
        if prelu:
            deviation = layer.linear.weight.std().item()
            assert deviation == pytest.approx((2 / layer.linear.in_features) ** 0.5, rel=0.02)


@pytest.mark.parametrize("kind", ["two_tower", "mlp", "din"])
def test_the_default_initialisation_is_that_of_torch(kind: str) -> None:
    torch.manual_seed(3)
    model = KINDS[kind](FEATURES)  # type: ignore[call-arg]
    assert {"init": "default", "norm_momentum": 0.1}.items() <= model.config().items()
    linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
    torch.manual_seed(3)
    for table in model.embedding.tables.values():
        nn.Embedding(table.num_embeddings, table.embedding_dim, padding_idx=0)
    for linear in linears:  # modules in the order of their construction
        again = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)
        assert torch.equal(again.weight, linear.weight)
    other = KINDS[kind](FEATURES, init="he", norm_momentum=0.5)  # type: ignore[call-arg]
    assert {"init": "he", "norm_momentum": 0.5}.items() <= other.config().items()


def test_scores_are_products_of_the_vectors() -> None:
    model, batch = TwoTower(FEATURES), random_batch()
    users, items = model.user_vectors(batch), model.item_vectors(batch.items)
    assert (users.shape, items.shape) == ((5, 32), (5, 7, 32))
    torch.testing.assert_close(model(batch), torch.einsum("bd,bnd->bn", users, items))
    catalogue = {name: values[0] for name, values in batch.items.items()}
    torch.testing.assert_close(model.item_vectors(catalogue), items[0])


def test_dropout_is_for_training() -> None:
    model, batch = make("din", dropout=0.5), random_batch()
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


# --- descriptions, files, compilers -------------------------------------------------------------------------------


@every_kind
def test_a_description_and_a_state_make_the_model_again(kind: str) -> None:
    options: dict[str, Any] = {
        "batch_norm": True,
        "activation": "elu",
        "sparse": 20,
        "only": ("item.video", "sequence.history"),
    }
    model, batch = make(kind, **options), random_batch()
    model(batch)
    config = json.loads(json.dumps(model.config()))
    again = from_config(config, FEATURES)
    assert again.config() == model.config()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(batch), model.eval()(batch))


@every_kind
def test_defaults_are_described(kind: str) -> None:
    assert from_config({"kind": kind}, FEATURES).config() == KINDS[kind](FEATURES).config()  # type: ignore[call-arg]


@every_kind
def test_bfloat16_by_autocast(kind: str) -> None:
    model, batch = make(kind, std=0.1), random_batch()
    expected = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch)
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.05)
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.slow
@every_kind
def test_compiles_into_one_graph(kind: str) -> None:
    torch._dynamo.reset()
    model, other = (make(kind, batch_norm=True, residual=True) for _ in range(2))
    batch = random_batch()
    compiled: Callable[[Impressions], Tensor] = torch.compile(other, fullgraph=True, backend="aot_eager")
    found, expected = compiled(batch), model(batch)
    torch.testing.assert_close(found, expected)
    (found * batch.mask).sum().backward()
    (expected * batch.mask).sum().backward()
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


class UserTower(nn.Module):
    def __init__(self, model: TwoTower) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        user: dict[str, Tensor],
        context: dict[str, Tensor],
        sequences: dict[str, dict[str, Tensor]],
        sequence_mask: dict[str, Tensor],
    ) -> Tensor:
        return self.model.user_vectors(Impressions(user, context, {}, sequences, sequence_mask, torch.ones(0)))


class ItemTower(nn.Module):
    def __init__(self, model: TwoTower) -> None:
        super().__init__()
        self.model = model

    def forward(self, items: dict[str, Tensor]) -> Tensor:
        return self.model.item_vectors(items)


@pytest.mark.parametrize("tower", ["user", "item"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_towers_are_exported(tower: str, batch_norm: bool) -> None:
    model = TwoTower(FEATURES, batch_norm=batch_norm, activation="prelu" if batch_norm else "relu").eval()
    batch = random_batch()
    any_size = torch.export.Dim("B")
    if tower == "user":
        module: nn.Module = UserTower(model)
        inputs: tuple[Any, ...] = (batch.user, batch.context, batch.sequences, batch.sequence_mask)
    else:
        module, inputs = ItemTower(model), (batch.items,)
    dynamic = torch.utils._pytree.tree_map(lambda _: {0: any_size}, inputs)
    program = torch.export.export(module, inputs, dynamic_shapes=dynamic)
    other = random_batch(count=9, seed=3)
    inputs = (other.user, other.context, other.sequences, other.sequence_mask) if tower == "user" else (other.items,)
    torch.testing.assert_close(program.module()(*inputs), module(*inputs))


def test_din_is_exported() -> None:
    model, batch = make("din").eval(), random_batch()

    class Ranker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *parts: Any) -> Tensor:
            scores: Tensor = self.model(Impressions(*parts))
            return scores

    parts = (batch.user, batch.context, batch.items, batch.sequences, batch.sequence_mask, batch.mask)
    program = torch.export.export(Ranker(), parts)
    torch.testing.assert_close(program.module()(*parts), model(batch))


def test_an_own_model_is_any_module_that_scores_a_batch() -> None:
    class Cheap(nn.Module):
        def __init__(self, features: Features) -> None:
            super().__init__()
            self.embedding = rf.models.FeatureEmbedding(features, only=["item.author"])
            self.out = nn.Linear(self.embedding.item_width, 1)

        def forward(self, batch: rf.models.ImpressionFeatures) -> Tensor:
            scores: Tensor = self.out(self.embedding.items(batch.items)).squeeze(-1)
            return scores - batch.items["price"]

    assert Cheap(FEATURES)(random_batch()).shape == (5, 7)


def test_batches_are_as_they_say() -> None:
    batch = random_batch()
    assert not batch.sequence_mask["history"][1].any()
    assert not batch.mask.all()
    assert batch.mask[:, 0].all()
    for values in batch.items.values():
        assert torch.equal(values, blank(values, batch.mask))
