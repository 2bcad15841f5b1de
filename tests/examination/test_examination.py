"""The examination curve of a log: reading, estimating, the verb."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from rankfall.examination import ExaminationCurve, Shows, estimate_examination, read_shows
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.simulation.world import ATTENTION
from support.command_line import run
from support.logs import random_log

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog

VIEW = "effective_view"
UNIQUE = ("item", "user.user_id", "rank", "context.minute", "context.hour", "context.weekday")  # of nearly every show


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    plan = Simulation(preset="tiny", days=2, requests_per_day=1500, seed=4)
    return simulate_log(plan, tmp_path_factory.mktemp("examination") / "log")


def impressions(log: ImpressionLog) -> list[dict[str, Any]]:
    return [row for day in log.days.values() for row in day.table().to_pylist()]


def test_shows_are_the_items_with_a_position(log: ImpressionLog) -> None:
    shows = read_shows(log, VIEW, given=["rank", "item", "user.age", "item.author_id"])
    found = zip(
        shows.request,
        shows.position,
        shows.click,
        shows.cluster,
        shows.values["rank"],
        *(shows.values[name] for name in ("item", "user.age", "item.author_id")),
        strict=True,
    )
    expected = [
        (number, position, click > 0, row["user.user_id"], (depth << 32) + rank + 1, item, row["user.age"], author)
        for number, row in enumerate(impressions(log))
        for position, click, depth, rank, item, author in zip(
            *(row[name] for name in ("position", f"feedback.{VIEW}", "depth", "rank", "item", "item.author_id")),
            strict=True,
        )
        if position >= 0
    ]
    assert [tuple(row) for row in found] == expected
    assert shows.resampled == "users"


def test_the_curve_of_the_simulated_platform(log: ImpressionLog) -> None:
    pairs = estimate_examination(log, VIEW, resamples=20)
    assert pairs.given == ["rank"]
    assert not pairs.notes
    truth = np.array([(1 + point.position) ** -ATTENTION for point in pairs.points])
    estimate, naive = (np.array([getattr(point, name) for point in pairs.points]) for name in ("examination", "naive"))
    assert len(truth) >= 9
    assert np.abs(estimate - truth)[1:6].max() < 0.06
    assert np.abs(estimate - truth)[1:6].mean() < 0.5 * np.abs(naive - truth)[1:6].mean()
    assert all(point.low <= point.examination <= point.high for point in pairs.points)
    em = estimate_examination(log, VIEW, method="em", given=["rank"], resamples=2)
    assert np.abs(np.array([point.examination for point in em.points]) - estimate)[:6].max() < 0.03


def test_counts_and_days(log: ImpressionLog) -> None:
    day = next(iter(log.days))
    curve = estimate_examination(log, VIEW, method="naive", days=[day], positions=3, resamples=2)
    items = [
        (position, click)
        for row in log.days[day].table().to_pylist()
        for position, click in zip(row["position"], row[f"feedback.{VIEW}"], strict=True)
    ]
    assert [point.shows for point in curve.points] == [sum(at == place for at, _ in items) for place in range(3)]
    clicks = [sum(at == place and click > 0 for at, click in items) for place in range(3)]
    assert [point.clicks for point in curve.points] == clicks
    assert (curve.days, curve.requests, curve.given) == ([day], 1500, [])
    left_out = sum(at >= 3 for at, _ in items)
    assert curve.notes == [f"{left_out:,} shows below position 2 are left out"]
    rate = (clicks[1] / curve.points[1].shows) / (clicks[0] / curve.points[0].shows)
    assert curve.points[1].examination == curve.points[1].naive == pytest.approx(rate)


def test_the_same_seed_gives_the_same_curve(log: ImpressionLog) -> None:
    first, again = (estimate_examination(log, VIEW, resamples=3, seed=1) for _ in range(2))
    other = estimate_examination(log, VIEW, resamples=3, seed=2)
    assert first == again
    assert [point.examination for point in first.points] == [point.examination for point in other.points]
    assert first.points[1].low != other.points[1].low


def test_ranks_that_are_the_positions_are_left_out(tmp_path: Path) -> None:
    plan = Simulation(preset="recflow-like-3", days=1, requests_per_day=150, seed=4)
    log = simulate_log(plan, tmp_path / "log")
    with pytest.raises(ValueError, match="rank and position cannot be told apart"):
        estimate_examination(log, VIEW, given=["rank"])
    curve = estimate_examination(log, VIEW, method="em", resamples=2, positions=3)
    assert "rank" not in curve.given
    assert any("too steeply" in note for note in curve.notes)


def test_a_rising_curve_is_noted(log: ImpressionLog, tmp_path: Path) -> None:
    from rankfall.examination import _rising

    points = estimate_examination(log, VIEW, resamples=3).points
    assert _rising(points) == []
    (note,) = _rising([*points[:3], points[0]])
    assert "rises from position 2 to 0" in note


def test_positions_must_begin_at_0() -> None:
    from rankfall.examination import _usable

    rows = np.arange(300)
    shows = Shows(rows % 3 + 1, rows > 0, rows, rows, "requests", {})
    with pytest.raises(ValueError, match=r"position 0 has 0 shows and 0 clicks, .* counted from 0"):
        _usable(shows, 30)


def test_propensities_of_positions(log: ImpressionLog, tmp_path: Path) -> None:
    curve = estimate_examination(log, VIEW, resamples=2, positions=3)
    curve.save(tmp_path / "curve.json")
    assert ExaminationCurve.load(tmp_path / "curve.json") == curve
    values = [point.examination for point in curve.points]
    found = curve.propensities(torch.tensor([[0, 2], [1, 9]], dtype=torch.int32))
    torch.testing.assert_close(found, torch.tensor([[values[0], values[2]], [values[1], values[2]]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--feedback", "efective_view"], "feedback: found 'efective_view', did you mean 'effective_view'"),
        (["--feedback", VIEW, "--given", "item.author"], "given: found 'item.author', did you mean 'item.author_id'"),
        (["--feedback", VIEW, "--days", "2024-01-99"], "has no day '2024-01-99'"),
        (["--feedback", VIEW, *(f"--given={name}" for name in UNIQUE)], "describe items by less"),
    ],
)
def test_wrong_arguments(
    log: ImpressionLog, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("examination", str(log.path), *options, "--resamples", "2") == 1
    assert message in capsys.readouterr().err


def test_a_log_without_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = random_log(tmp_path / "log")
    assert run("examination", str(getattr(log, "path", log)), "--feedback", "click") == 1
    assert "has no positions; prepare it with 'position: COLUMN'" in capsys.readouterr().err


def test_the_verb(log: ImpressionLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "curve.json"
    arguments = ("examination", str(log.path), "--feedback", VIEW, "--resamples", "3", "--out", str(out))
    assert run(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())
    assert run(*arguments) == 1
    assert "exists already" in capsys.readouterr().err
    assert run(*arguments, "--force") == 0
    shown = capsys.readouterr().out
    point = ExaminationCurve.load(out).points[1]
    assert f"{point.examination:.3f}" in shown
    assert f"{point.low:.3f} to {point.high:.3f}" in shown
    assert "Estimated by pairs given rank" in shown
