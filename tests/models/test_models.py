"""Models of rows: shapes, layers, batch norm over rows, and feature scaling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from rankfall.models import ACTIVATIONS, MLP, FeatureScaling, Linear
from rankfall.models.layers import PReLU


def rows(count: int = 6, features: int = 3) -> torch.Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("activation", "batch_norm", "residual", "grades"),
    list(itertools.product(ACTIVATIONS, (True, False), (True, False), (None, 4))),
)
def test_one_output_a_row_and_a_gradient_for_every_weight(
    activation: str, batch_norm: bool, residual: bool, grades: int | None
) -> None:
    model = MLP(
        3, [5, 5, 2], activation=activation, batch_norm=batch_norm, residual=residual, dropout=0.1, grades=grades
    )
    output = model(rows())
    assert output.shape == ((6,) if grades is None else (6, grades))
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_linear_is_a_weighted_sum() -> None:
    model = Linear(3)
    weights, bias = (parameter.detach() for parameter in model.parameters())
    torch.testing.assert_close(model(rows()), (rows() * weights).sum(-1) + bias)
    assert Linear(3, grades=5)(rows()).shape == (6, 5)


def test_mlp_is_its_formula() -> None:
    model = MLP(3, [3, 2], activation="tanh", batch_norm=False, residual=True)
    (w1, b1, w2, b2, w3, b3) = (parameter.detach() for parameter in model.parameters())
    hidden = rows() + torch.tanh(rows() @ w1.T + b1)  # 3 -> 3: residual
    hidden = torch.tanh(hidden @ w2.T + b2)  # 3 -> 2: not
    torch.testing.assert_close(model(rows()), (hidden @ w3.T + b3).squeeze(-1))


def test_prelu_has_a_slope_per_unit() -> None:
    model = PReLU(3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([0.1, 0.2, 0.3]))
    inputs = torch.tensor([[[1.0, -1.0, -1.0], [-2.0, 0.0, 3.0]]])
    torch.testing.assert_close(model(inputs), torch.tensor([[[1.0, -0.2, -0.3], [-0.2, 0.0, 3.0]]]))
    assert PReLU(2).weight.tolist() == [0.25, 0.25]
    torch_model = nn.PReLU(3)
    torch_model.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(inputs), torch_model(inputs.mT).mT)


def test_he_initialisation_keeps_the_scale_of_signals() -> None:
    torch.manual_seed(0)
    model = MLP(1000, [1000] * 5, init="he", batch_norm=False)
    for part in model.modules():
        if isinstance(part, nn.Linear):
            assert part.weight.std().item() == pytest.approx((2 / 1000) ** 0.5, rel=0.1)
            assert not part.bias.any()
    inputs = torch.randn(50, 1000)
    assert model.layers(inputs).square().mean().item() == pytest.approx(1, abs=0.3)
    assert MLP(1000, [1000] * 5, batch_norm=False).layers(inputs).square().mean().item() < 0.01
    with pytest.raises(ValueError, match="init must be one of default, he, got 'hee', did you mean 'he'"):
        MLP(3, [2], init="hee")


def test_batch_norm_has_its_momentum() -> None:
    model = MLP(3, [4], norm_momentum=0.25)
    norm = next(part for part in model.modules() if isinstance(part, nn.BatchNorm1d))
    linear = next(part for part in model.modules() if isinstance(part, nn.Linear))
    model(rows())
    torch.testing.assert_close(norm.running_mean, 0.25 * linear(rows()).mean(0))


def test_a_single_row_is_normalised_by_the_running_statistics() -> None:
    model = MLP(3, [4])
    model(rows())
    alone = model.train()(rows(1))
    torch.testing.assert_close(alone, model.eval()(rows(1)))


def test_dropout_has_a_share_for_each_layer() -> None:
    model = MLP(3, [4, 4, 4], dropout=[0.0, 0.5, 0.25])
    assert [part.p for part in model.modules() if isinstance(part, nn.Dropout)] == [0.5, 0.25]
    model = MLP(3, [4, 4], dropout=0.5, activation="selu")
    assert [part.p for part in model.modules() if isinstance(part, nn.AlphaDropout)] == [0.5, 0.5]
    assert torch.equal(model.eval()(rows()), model(rows()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "rule"}, "activation must be one of relu, .*, got 'rule'"),
        ({"dropout": [0.1]}, r"dropout must be one number, or one per hidden layer \(2\)"),
        ({"grades": 1}, "grades must be at least 2, got 1"),
    ],
)
def test_what_a_model_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MLP(3, [4, 4], **options)  # type: ignore[arg-type]


# --- scaling ------------------------------------------------------------------------------------------------------


def test_scaling_keeps_the_digits_of_values_far_from_zero() -> None:
    values = np.array([[2**24 + 2], [2**24 + 4], [2**24 + 6]], np.float32)
    mean, deviation = values.astype(float).mean(0), values.astype(float).std(0)
    scaled = FeatureScaling(torch.tensor(mean), torch.tensor(deviation))(torch.tensor(values))
    assert scaled.dtype == torch.float32
    np.testing.assert_allclose(scaled[:, 0], [-(1.5**0.5), 0, 1.5**0.5], rtol=1e-6, atol=1e-7)


def test_log1p_keeps_the_sign() -> None:
    scaled = FeatureScaling.identity(3, log1p=True)(torch.tensor([[-1.0, 0.0, np.e - 1]]))
    torch.testing.assert_close(scaled, torch.tensor([[-np.log(2.0), 0.0, 1.0]], dtype=torch.float32))


def test_scaling_is_stored_and_not_trained() -> None:
    scaling = FeatureScaling(torch.ones(2), torch.ones(2))
    assert set(scaling.state_dict()) == {"mean", "deviation"}
    assert list(scaling.parameters()) == []
