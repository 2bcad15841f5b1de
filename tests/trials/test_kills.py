"""A small loop whose service and joiner are killed, and planted errors that the comparison has to find."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall import api
from rankfall.data import ImpressionLog
from rankfall.serving.recording.recorder import sampling_key
from trials.joined_check import LOST_SECONDS, Comparison, compare_log
from trials.kills import KillReport, KillSettings, KillTrial
from trials.small_world import World, make_world

if TYPE_CHECKING:
    from pathlib import Path

    from trials.client_ledger import Event, Ledger

pytestmark = [pytest.mark.trial, pytest.mark.service, pytest.mark.xdist_group("bench serve")]
# a simulated day passes in two seconds: on a busy machine, an event that is sent again may need one of them
SETTINGS = KillSettings(kills=2, every=2.0, rate=40.0, requests_per_day=80, days=2.5, wait="24h", with_trainer=False)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, KillTrial, KillReport]:
    """A trial with one kill of the service and one of the joiner."""
    world = make_world(tmp_path_factory.mktemp("world"), past_requests=20)
    api.stream(world.config, world.stream, bundles=1, progress=False, on_notice=lambda text: None)
    trial = KillTrial(world, SETTINGS, on_step=lambda step, done, total: None)
    return world, trial, trial.run()


def test_nothing_acknowledged_is_lost(trial: tuple[World, KillTrial, KillReport]) -> None:
    _, after, report = trial
    found = report.comparison
    assert report.problems == []
    assert report.kills == {"service": 1, "joiner": 1}
    assert report.same_bytes
    assert len(report.days) >= 3
    assert found.requests == found.verdicts["same"] == len(after.ledger.asked) >= 2.5 * 80
    assert found.sampled == found.joined + found.lost
    assert found.events == found.joined_events + found.unsampled_events + found.kept_apart
    assert found.joined_events > 0 < found.unsampled_events
    # the share of sampled requests: 0.9, within 5 standard deviations
    assert found.sampled / found.requests == pytest.approx(0.9, abs=5 * (0.09 / found.requests) ** 0.5)


def test_planted_errors_are_found(trial: tuple[World, KillTrial, KillReport]) -> None:
    world, after, report = trial
    good = report.comparison
    kills = after.service_kills

    def compared(ledger: Ledger, kills: list[float] = kills) -> Comparison:
        return compare_log(
            world.log,
            ledger,
            world.bundles,
            kills,
            share=0.9,
            counts=SETTINGS.counts,
            key=sampling_key(str(world.records)),
        )

    assert compared(after.ledger) == good
    joined = _joined_event(world.log, after.ledger)
    # an acknowledged event that was never written
    ledger = deepcopy(after.ledger)
    ledger.events.append(replace(joined, id="planted"))
    assert compared(ledger).different == 1
    # an event of an item that was not answered
    ledger = deepcopy(after.ledger)
    ledger.events.append(replace(joined, id="planted", item=10**6))
    assert compared(ledger).lost_events == 1
    # a request that no client sent
    ledger = deepcopy(after.ledger)
    ledger.events = [event for event in ledger.events if event.request != joined.request]
    del ledger.asked[joined.request]
    assert compared(ledger).never_asked == 1
    # an answer with two items exchanged
    ledger = deepcopy(after.ledger)
    asked = ledger.asked[joined.request]
    asked.ids[:2] = reversed(asked.ids[:2])
    assert compared(ledger).verdicts["wrong"] == 1
    # a request that was answered, but is not in the log
    ledger = deepcopy(after.ledger)
    asked = ledger.asked[joined.request]
    ledger.asked["planted"] = replace(asked, request="planted", answered=min(kills) - 2 * LOST_SECONDS)
    assert compared(ledger).missing == 1
    ledger.asked["planted"].answered = min(kills) - 0.1
    assert (compared(ledger).missing, compared(ledger).lost) == (0, good.lost + 1)


def _joined_event(log: Path, ledger: Ledger) -> Event:
    """Return an event of a request that was answered at once and joined."""
    joined = {
        request for day in ImpressionLog.load(log).days.values() for request in day.table()["request"].to_pylist()
    }
    return next(
        event for event in ledger.events if event.request in joined and ledger.asked[event.request].attempts == 1
    )
