"""What to do next: findings in their order, quotas only where they gain something, and commands that work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.reporting.diagnosis import advise
from rankfall.studies.diagnosis.diagnosis_result import Diagnosis, Finding
from rankfall.studies.plan.plan_result import ChosenQuotas, CurrentQuotas, FrontPoint, GridPoint, PlanResult
from rankfall.training.cascade_metrics import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence


def point(*quotas: int) -> FrontPoint:
    return FrontPoint(list(quotas), 10.0, [10.0, 0.0], [100.0, 30.0], Estimate(0.5, 0.4, 0.6))


def plan(chosen: Sequence[int], gain: tuple[float, float, float], cost_ratio: float) -> PlanResult:
    now, then = point(30, 8), point(*chosen)
    return PlanResult(
        run="run",
        split="test",
        metric="joint_recall",
        stages=["retrieval", "ranking"],
        requests=10,
        undefined=0,
        entered=100.0,
        unit="items",
        cost_source="given",
        costs=[],
        grid={},
        points=[],
        front=[then],
        current=CurrentQuotas(now, True, GridPoint([30, 8], 10, 0.5), GridPoint([30, 8], 10, 0.5)),
        chosen=ChosenQuotas(
            then,
            "best joint_recall for at most 10 items",
            Estimate(*gain),
            cost_ratio,
            [f"stages.{number}.quota={quota}" for number, quota in enumerate(chosen)],
            [f"--quota {stage}={quota}" for stage, quota in zip(("retrieval", "ranking"), chosen, strict=True)],
        ),
    )


def diagnosis(*texts: str) -> Diagnosis:
    findings = [Finding("stage", "ranking", text, Estimate(0.1, 0.05, 0.15)) for text in texts]
    empty: dict[str, Any] = {"stages": [], "agreement": [], "worst_requests": []}
    return Diagnosis(
        split="test",
        requests=10,
        all_items=False,
        joint_recall=Estimate(0.5, 0.4, 0.6),
        findings=findings,
        **empty,
    )


def test_without_a_diagnosis_and_a_plan_there_are_commands_that_make_them() -> None:
    found = advise("runs/first", None, None)
    assert found.steps == []
    assert [command for _, command in found.commands] == [
        "rankfall evaluate runs/first --diagnose",
        "rankfall plan runs/first",
    ]


def test_findings_come_first_and_then_the_quotas() -> None:
    found = advise("runs/first", diagnosis(*"abcdefg"), plan((40, 8), (0.05, 0.02, 0.08), 1.3))
    assert [text for text, _ in found.steps] == [
        *"abcde",
        "Set the quotas to retrieval 40, ranking 8 (best joint_recall for at most 10 items).",
    ]
    assert found.steps[0][1] == "at stake: +0.100 [+0.050, +0.150] joint recall"
    assert found.steps[-1][1] == "+0.050 [+0.020, +0.080] joint_recall for 1.30 of the cost"
    assert [command for _, command in found.commands] == [
        "rankfall evaluate runs/first stages.0.quota=40 stages.1.quota=8",
        "rankfall export runs/first --quota retrieval=40 --quota ranking=8 --out BUNDLE",
    ]


def test_advice_says_what_a_plan_measured_differently() -> None:
    """A plan over all items beside a run that was measured on short lists."""
    other = replace(plan((40, 8), (0.05, 0.02, 0.08), 1.3), overrides=["data.length=all", "data.test=[a, b]"])
    same = replace(plan((32, 8), (0.01, -0.01, 0.03), 1.0), overrides=["data.length=all"])
    assert advise("run", None, same).steps[-1][0].endswith("joint_recall, measured with data.length=all.")
    found = advise("runs/first", None, other)
    assert found.steps[-1][1].endswith(" of the cost, measured with data.length=all, data.test=[a, b]")
    assert found.commands[-2][1] == (
        "rankfall evaluate runs/first stages.0.quota=40 stages.1.quota=8 data.length=all 'data.test=[a, b]'"
    )


@pytest.mark.parametrize(
    ("chosen", "gain", "cost_ratio", "keep"),
    [
        ((30, 8), (0.0, 0.0, 0.0), 1.0, True),  # the same quotas
        ((32, 8), (0.01, -0.01, 0.03), 1.0, True),  # nothing that can be told
        ((32, 8), (0.01, -0.01, 0.03), 0.5, False),  # as good for half of the cost
        ((32, 8), (0.02, 0.01, 0.03), 1.0, False),  # better for the same cost
    ],
)
def test_quotas_change_only_for_a_gain(
    chosen: tuple[int, int], gain: tuple[float, float, float], cost_ratio: float, keep: bool
) -> None:
    found = advise("run", diagnosis(), plan(chosen, gain, cost_ratio))
    ((text, _),) = found.steps
    assert text.startswith("Keep the quotas: " if keep else "Set the quotas to ")
    assert bool(found.commands) != keep


def test_a_finding_without_a_stake_has_none() -> None:
    one = diagnosis("a")
    silent = replace(one, findings=[replace(one.findings[0], at_stake=None)])
    assert advise("run", silent, None).steps == [("a", "")]
