"""What to do next about a cascade: the findings of its diagnosis and the quotas that its plan recommends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankfall.reporting.comparison_table import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.studies.diagnosis.results import Diagnosis, Finding
    from rankfall.studies.plan.plan_result import ChosenQuotas, PlanResult
    from rankfall.training.stage_figures import Estimate

FINDINGS = 5  # findings of a diagnosis, the ones with most recall at stake


@dataclass(frozen=True)
class Advice:
    """Steps with what they are worth, and commands with what they are for."""

    steps: Sequence[tuple[str, str]]
    commands: Sequence[tuple[str, str]]


def advise(run: str, diagnosis: Diagnosis | None, plan: PlanResult | None) -> Advice:
    """Return what to do next about a run, and the commands that find out more."""
    steps = [(one.text, _stake(one)) for one in (diagnosis.findings[:FINDINGS] if diagnosis else ())]
    commands = []
    if diagnosis is None:
        commands.append(("Find out why each stage loses items:", f"rankfall evaluate {run} --diagnose"))
    if plan is None:
        commands.append(("Find the quotas that keep most for their cost:", f"rankfall plan {run}"))
    else:
        steps.append((_choice(plan), _gain(plan)))
        commands += _apply(run, plan.chosen)
    return Advice(steps, commands)


def _stake(finding: Finding) -> str:
    one = finding.at_stake
    return "" if one is None else f"at stake: {_signed(one)} joint recall"


def _choice(plan: PlanResult) -> str:
    quotas = zip(plan.stages, plan.chosen.point.quotas, strict=True)
    keep = ", ".join(f"{stage} {quota:,}" for stage, quota in quotas)
    if plan.chosen.point.quotas == plan.current.point.quotas:
        return f"Keep the quotas: {keep} ({plan.chosen.reason})."
    return f"Set the quotas to {keep} ({plan.chosen.reason})."


def _gain(plan: PlanResult) -> str:
    if plan.chosen.point.quotas == plan.current.point.quotas:
        return ""
    return f"{_signed(plan.chosen.difference)} {plan.metric} for {plan.chosen.cost_ratio:.2f} of the cost"


def _apply(run: str, chosen: ChosenQuotas) -> list[tuple[str, str]]:
    return [
        ("Measure the planned quotas on this run:", f"rankfall evaluate {run} {' '.join(chosen.train_overrides)}"),
        ("Serve them:", f"rankfall export {run} {' '.join(chosen.export_options)}"),
    ]


def _signed(one: Estimate) -> str:
    return " ".join([_plus(one.value), f"[{_plus(one.low)}, {_plus(one.high)}]"])


def _plus(value: float) -> str:
    return f"+{short(value)}" if value >= 0 else short(value)
