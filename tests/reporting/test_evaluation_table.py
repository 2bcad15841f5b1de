"""The terminal tables of an evaluation: the funnel first, directions, intervals and counts."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from rankfall.reporting.run import evaluation_blocks
from rankfall.reporting.terminal import show
from rankfall.studies.results import EvaluationSummary
from rankfall.training.cascade_metrics import MeasuredFunnel, stage_figures
from rankfall.training.config.component_checks import measures
from rankfall.training.evaluation import Evaluation

if TYPE_CHECKING:
    from torch import Tensor

STAGES, QUOTAS = ["retrieval", "ranking"], [20, 5]


def printed(summary: EvaluationSummary, width: int = 120) -> str:
    file = io.StringIO()
    Console(width=width, file=file).print(show(evaluation_blocks(summary, "run, test")))
    return file.getvalue()


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of each line of the tables by the first one."""
    lines = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in text.splitlines() if "│" in line]
    return {cells[0]: cells[1:] for cells in lines}


def short(share: float) -> str:
    """Return a share below 1 with three digits, as the funnel shows it."""
    return f".{share * 1000:03.0f}"


def evaluation(requests: int = 50) -> Evaluation:
    generator = torch.Generator().manual_seed(0)

    def shares(*shape: int) -> Tensor:
        values = torch.rand(*shape, generator=generator)
        values[:3] = math.nan
        return values

    left = shares(requests, 2).cumprod(-1)
    names = measures(STAGES, ["arp"], ["revenue"])
    values = {name: shares(requests) for name in names} | {"joint_value": shares(requests)}
    values["retrieval/lost"], values["ranking/lost"] = 1 - left[:, 0], left[:, 0] - left[:, 1]
    values["joint_recall"] = left[:, 1]
    chance = {name: torch.full((requests,), 0.25) for name in values}
    ranked = torch.full((requests,), 80)
    ranked[:10] = 4
    measured = MeasuredFunnel(values, chance, {}, STAGES, QUOTAS, left, ranked, None)
    return Evaluation.of_cascade([str(number) for number in range(requests)], measured)


def test_the_funnel_comes_first_and_every_figure_once() -> None:
    summary = evaluation().summary()
    text = printed(summary)
    found = rows(text)
    assert summary.funnel is not None
    first, second = summary.funnel
    assert found["retrieval"] == [
        "20",
        f"{first.entered:.1f}",
        f"{short(first.kept.value)} [{short(first.kept.low)}, {short(first.kept.high)}]",
        short(first.chance),
        short(first.lost.value),
        f"{first.loss_share.value:.0%}",
    ]
    assert found["ranking"][2].startswith(f"{short(second.kept.value)} [")
    assert found["joint_recall ↑"][0] == f"{summary.metrics['joint_recall']:.4f}"
    assert found["joint_recall ↑"][3] == "47"
    assert found["retrieval/alone/arp ↓"][0] == f"{summary.metrics['retrieval/alone/arp']:.4f}"
    assert {"joint_value ↑", "joint/revenue ↑", "retrieval/revenue ↑", "ranking/alone/recall ↑"} <= set(found)
    assert not {"retrieval/recall ↑", "ranking/revenue ↑", "ranking/value ↑", "retrieval/lost ↓"} & set(found)
    assert text.index("kept ↑") < text.index("joint_recall") < text.index("retrieval/alone/recall")
    assert "n = 47" in text
    assert "3 of 50 have no relevant item and are excluded from the means" in text
    assert "7 of 47 that count are not longer than the quota of ranking" in text
    assert "bootstrap over requests" in text


def test_production_and_warnings_are_shown() -> None:
    summary = evaluation().summary()
    left = torch.rand(50, 2, generator=torch.Generator().manual_seed(1)).cumprod(-1)
    production = stage_figures(STAGES, QUOTAS, left, torch.full((50,), 80))
    changed = EvaluationSummary(
        **vars(summary) | {"production": production, "production_note": "what it is", "warnings": ["too short"]}
    )
    text = printed(changed, 140)
    assert rows(text)["ranking"][-1] == short(production[1].kept.value)
    assert "production" in text.splitlines()[4]
    assert "production: what it is" in text
    assert "warning: too short" in text
    narrow = printed(changed, 70)  # columns continue below instead of being cut
    assert "…" not in narrow
    assert short(production[1].kept.value) in narrow
    assert short(production[0].kept.value) in narrow


def test_lists_have_one_table_with_the_number_of_defined_lists() -> None:
    values = {"ndcg@10": torch.tensor([0.5, math.nan, 1.0, 0.0]), "arp": torch.tensor([2.0, math.nan, 3.0, 4.0])}
    summary = Evaluation(["1", "2", "3", "4"], values, values).summary()
    text = printed(summary)
    found = rows(text)
    assert found["ndcg@10 ↑"][0::3] == ["0.5000", "3"]
    assert found["arp ↓"][0] == "3.0000"
    assert "1 of 4 have no relevant document and are excluded from the means" in text
    assert "bootstrap over lists" in text
    assert "n: on how many" not in text
    differ = values | {"opa": torch.tensor([0.5, math.nan, math.nan, math.nan])}
    text = printed(Evaluation(["1", "2", "3", "4"], differ, differ).summary())
    assert "1 of 4 have no relevant document" in text
    assert "n: on how many of them a metric is defined" in text
    assert rows(text)["opa ↑"][3] == "1"
