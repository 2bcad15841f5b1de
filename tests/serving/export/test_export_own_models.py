"""Models of users as ONNX graphs: what they read, and why torch cannot export some."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from rankfall.cascade import Stage
from rankfall.data.impressions.log import ImpressionLog
from rankfall.models import TwoTower
from rankfall.models.build import build_model, describe_model, has_vectors, is_own
from rankfall.serving.bundle_files import read_file
from rankfall.serving.export import onnx_graphs as graphs
from rankfall.serving.onnx_stages import Graph

if TYPE_CHECKING:
    from pathlib import Path

MODELS = """
import torch
from torch import nn


class Plain(nn.Module):
    '''Reads some features by every way that a mapping has.'''

    def __init__(self, features, *, scale: float = 2.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))
        self.table = nn.Embedding(features.tables["user.id"], 3)

    def forward(self, batch):
        users = self.table(batch.user["id"]).sum(-1, keepdim=True)
        load = batch.context.get("load").unsqueeze(-1)
        events = batch.sequence_mask["history"].sum(-1, keepdim=True)
        real = batch.mask.to(users.dtype)
        return self.scale * batch.items["price"] * users * real + load + events

    def helper(self, x):
        return x


class Bessel(Plain):
    def forward(self, batch):
        scores = super().forward(batch)
        return torch.special.bessel_j0(scores)


class Branches(Plain):
    def forward(self, batch):
        scores = super().forward(batch)
        if scores.sum() > 0:
            return scores
        return 2 * scores
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


def stage(log: Path, file: Path, name: str) -> Stage:
    torch.manual_seed(0)
    model = build_model({"kind": f"{file}:{name}", "scale": 3.0}, ImpressionLog.load(log).features).eval()
    return Stage("ranking", model, 3)


def test_inputs_are_those_that_the_model_reads(log: Path, file: Path) -> None:
    one = stage(log, file, "Plain")
    assert graphs.inputs_of(one) == ["user.id", "context.load", "sequence.history.mask", "item.price"]
    described = describe_model(one.model)
    assert described is not None
    assert described.config == {"kind": f"{file}:Plain", "scale": 3.0}
    assert described.source is not None
    assert described.source["file"] == str(file)
    assert "_rankfall_description" not in one.model.state_dict()


@pytest.mark.slow
def test_a_graph_gives_what_the_model_gives(log: Path, file: Path, tmp_path: Path) -> None:
    one = stage(log, file, "Plain")
    graphs.write_graph(one, tmp_path / "model.onnx")
    graph = Graph(read_file(tmp_path / "model.onnx"), 1)
    rng = np.random.default_rng(0)
    for batch, candidates, length in ((1, 1, 1), (4, 7, 3)):
        inputs = {
            "user.id": rng.integers(0, 30, batch).astype(np.int32),
            "context.load": rng.normal(size=batch).astype(np.float32),
            "sequence.history.mask": rng.random((batch, length)) < 0.5,
            "item.price": rng.normal(size=(batch, candidates)).astype(np.float32),
        }
        given = graphs.as_batch({name: torch.from_numpy(values) for name, values in inputs.items()}, mask=True)
        with torch.no_grad():
            np.testing.assert_allclose(graph(inputs), one.model(given), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_what_cannot_be_exported_is_named_with_its_line(
    log: Path, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = MODELS.splitlines()
    bessel = lines.index("        return torch.special.bessel_j0(scores)") + 1
    with pytest.raises(ValueError, match=rf"ranking: Bessel cannot .*uses \w+\.bessel_j0 \({file}, line {bessel}\)"):
        graphs.write_graph(stage(log, file, "Bessel"), tmp_path / "model.onnx")
    branch = lines.index("        if scores.sum() > 0:") + 1
    with pytest.raises(
        ValueError, match=rf"Branches cannot be exported \({file}, line {branch}\): the path .*torch.where"
    ):
        graphs.write_graph(stage(log, file, "Branches"), tmp_path / "model.onnx")
    assert capfd.readouterr().out == ""  # torch prints graphs


def test_a_model_without_a_description_cannot_be_exported() -> None:
    with pytest.raises(ValueError, match="the model of ranking was not built from a configuration"):
        graphs.inputs_of(Stage("ranking", nn.Linear(2, 1), 3))


def test_only_models_that_multiply_their_vectors_have_an_index(log: Path) -> None:
    class Sharper(TwoTower):
        """The vectors of a two-tower model, and other scores."""

        def forward(self, batch: object) -> torch.Tensor:
            return super().forward(batch).sigmoid()  # type: ignore[arg-type]

    class Renamed(TwoTower):
        """A two-tower model."""

    features = ImpressionLog.load(log).features
    found = {kind.__name__: has_vectors(kind(features, hidden=[4])) for kind in (TwoTower, Sharper, Renamed)}
    assert found == {"TwoTower": True, "Sharper": False, "Renamed": True}
    assert [is_own(kind(features, hidden=[4])) for kind in (TwoTower, Renamed)] == [False, True]
