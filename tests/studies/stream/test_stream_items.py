"""Which items a stream knows of on a day, and how often it reads the log to find out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rankfall.data import ImpressionLog
from rankfall.data.impressions.loader import ItemFirstSeen
from rankfall.training.run_directory import Stopped
from support.logs import ITEMS
from support.streams import stream_content, streamed
from support.week_log import WEEK, add_day, log_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.studies.results import StreamResult


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each day was read for its items."""
    counts: Counter[str] = Counter()

    original = ItemFirstSeen._read

    def counting(self: ItemFirstSeen, log: ImpressionLog, day: Any) -> None:
        counts[day.name] += 1
        original(self, log, day)

    monkeypatch.setattr(ItemFirstSeen, "_read", counting)
    return counts


def first_by_loop(log: ImpressionLog, days: Sequence[str]) -> NDArray[np.int32]:
    """Of each item the first day, one list after the other."""
    first = np.full(ITEMS, len(days))
    for number, day in reversed(list(enumerate(days))):
        for column in ("item", "left_out"):
            for items in log.days[day].table()[column].to_pylist():
                first[items] = number
    return first.astype(np.int32)


def test_first_days_are_those_of_a_loop(tmp_path: Path, read: Counter[str]) -> None:
    log = ImpressionLog.load(log_of(tmp_path / "log", range(4), impressions=2))
    items, asked = np.arange(ITEMS, dtype=np.int32), ItemFirstSeen()
    for days in (WEEK[:1], WEEK[:3], WEEK[:2], WEEK[:4]):
        assert np.array_equal(asked.numbers(log, days, items), first_by_loop(log, days))
    assert read == dict.fromkeys(WEEK[:4], 1)
    other = [WEEK[0], WEEK[2], WEEK[1]]  # an order that begins alike
    assert np.array_equal(asked.numbers(log, other, items), first_by_loop(log, other))
    assert read == {WEEK[0]: 1, WEEK[1]: 2, WEEK[2]: 2, WEEK[3]: 1}
    assert asked.numbers(log, WEEK[:1], np.array([ITEMS + 5], np.int32)).tolist() == [1]


@pytest.mark.parametrize("drawn", [{"negatives": 3}, {"negatives": 0, "length": 30}])
def test_every_day_is_read_once(tmp_path: Path, read: Counter[str], drawn: dict[str, int]) -> None:
    growing = log_of(tmp_path / "log", range(3))
    over = False

    def more(result: StreamResult) -> None:
        nonlocal over
        over = len(result.learned) == 4
        if not over:
            add_day(growing, 3)

    with pytest.raises(Stopped):
        streamed(stream_content(growing, data=drawn), tmp_path / "out", follow=0.01, on_result=more, stop=lambda: over)
    assert read == dict.fromkeys(WEEK[:4], 1)
