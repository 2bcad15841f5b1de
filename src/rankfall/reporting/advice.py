"""What to do next about a cascade: the findings of its diagnosis and the quotas that its plan recommends."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankfall.reporting.estimates import with_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.studies.diagnosis.diagnosis_result import Diagnosis, Finding
    from rankfall.studies.plan.plan_result import FrontPoint, PlanResult

FINDINGS = 5  # findings of a diagnosis, the ones with most recall at stake
CHEAPER = 0.95  # share of the current cost, below which other quotas of the same recall are worth a change


@dataclass(frozen=True)
class Advice:
    """Steps with what they are worth, and commands with what they are for.

    Attributes:
        steps: Text and worth of each step.
        commands: Purpose and text of each command.
        about: A sentence about the run, if the page shows several.
    """

    steps: Sequence[tuple[str, str]]
    commands: Sequence[tuple[str, str]]
    about: str = ""


def advise(run: str, diagnosis: Diagnosis | None, plan: PlanResult | None, overrides: Sequence[str] = ()) -> Advice:
    """Return what to do next about a run, and the commands that find out more.

    Args:
        run: Path of the run directory.
        diagnosis: Diagnosis of the run, if there is one.
        plan: Plan of its quotas, if there is one.
        overrides: What was measured differently from the configuration of the run.
    """
    measured = shlex.join([run, *overrides])
    steps = [(one.text, _stake(one)) for one in (diagnosis.findings[:FINDINGS] if diagnosis else ())]
    commands = []
    if diagnosis is None:
        commands.append(("Find out why each stage loses items:", f"rankfall evaluate {measured} --diagnose"))
    if plan is None:
        commands.append(("Find the quotas that keep most for their cost:", f"rankfall plan {measured}"))
    elif _is_no_better(plan):
        steps.append((f"Keep the quotas: {_why_keep(plan)}.", ""))
    else:
        steps.append((f"Set the quotas to {_quotas(plan, plan.chosen.point)} ({plan.chosen.reason}).", _gain(plan)))
        commands += _apply(run, plan)
    return Advice(steps, commands)


def _is_no_better(plan: PlanResult) -> bool:
    """Whether the chosen quotas cost as much as the current ones and are not distinguishable from them."""
    chosen = plan.chosen
    same = chosen.point.quotas == plan.current.point.quotas
    return same or (chosen.difference.low <= 0 and chosen.cost_ratio > CHEAPER)


def _why_keep(plan: PlanResult) -> str:
    chosen = plan.chosen
    if chosen.point.quotas == plan.current.point.quotas:
        return f"they are the choice of the plan ({chosen.reason})"
    others = f"{_quotas(plan, chosen.point)} ({chosen.reason})"
    difference = with_interval(chosen.difference, "+.3f")
    return f"{others} are not distinguishable from them, {difference} {plan.metric}{_with(plan)}"


def _quotas(plan: PlanResult, point: FrontPoint) -> str:
    return ", ".join(f"{stage} {quota:,}" for stage, quota in zip(plan.stages, point.quotas, strict=True))


def _stake(finding: Finding) -> str:
    one = finding.at_stake
    return "" if one is None else f"at stake: {with_interval(one, '+.3f')} joint recall"


def _gain(plan: PlanResult) -> str:
    difference = with_interval(plan.chosen.difference, "+.3f")
    return f"{difference} {plan.metric} for {plan.chosen.cost_ratio:.2f} of the cost{_with(plan)}"


def _with(plan: PlanResult) -> str:
    """Return what the plan measured differently from the run, since its figures are not those of the page."""
    return f", measured with {', '.join(plan.overrides)}" if plan.overrides else ""


def _apply(run: str, plan: PlanResult) -> list[tuple[str, str]]:
    chosen = plan.chosen
    measured = shlex.join([*chosen.train_overrides, *plan.overrides])
    return [
        ("Measure the planned quotas on this run:", f"rankfall evaluate {run} {measured}"),
        ("Serve them:", f"rankfall export {run} {' '.join(chosen.export_options)} --out BUNDLE"),
    ]
