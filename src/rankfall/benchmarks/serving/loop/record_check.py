"""Comparison of the records of a service with the answers and acknowledgements that a load generator received."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from rankfall.benchmarks.serving.answer_check import AnswerChecker
from rankfall.serving.recording.record_schemas import EVENTS, SAMPLES
from rankfall.serving.recording.record_segments import recover, segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rankfall.benchmarks.serving.checked_load import CheckedLoad

_QUOTED = 3


@dataclass
class RecordCheck:
    """What the records have, compared with what the load generator knows."""

    samples: int = 0
    events: int = 0
    megabytes: float = 0.0
    repeated: int = 0  # samples of requests that have another one
    missing: int = 0  # answered requests without a sample
    unanswered: int = 0  # samples of requests that the generator got no answer to
    wrong: int = 0  # samples with another answer than the bundle's, or with an item twice
    lost_events: int = 0  # acknowledged events that are not recorded
    quoted: list[str] = field(default_factory=list)


def check_records(directory: Path, load: CheckedLoad, answered: Sequence[str], events: Sequence[str]) -> RecordCheck:
    """Compare the records of a service that has ended with what clients know.

    Args:
        directory: The directory of the records.
        load: The requests and their expected answers.
        answered: Ids of the requests that were answered.
        events: Ids of the events that were acknowledged.
    """
    for kind in (SAMPLES, EVENTS):
        recover(directory / kind)
    found = RecordCheck()
    found.megabytes = sum(path.stat().st_size for path in directory.rglob("*.arrows")) / 1e6
    checker = _SampleChecker(load, found)
    requests: Counter[str] = Counter()
    for batch in _batches(directory / SAMPLES):
        requests.update(batch["request"].to_pylist())
        checker.check(batch)
    recorded = Counter[str]()
    for batch in _batches(directory / EVENTS):
        recorded.update(batch["id"].to_pylist())
    found.samples, found.events = requests.total(), recorded.total()
    found.repeated = requests.total() - len(requests)
    found.missing = len(set(answered) - requests.keys())
    found.unanswered = len(requests.keys() - set(answered))
    found.lost_events = len(set(events) - recorded.keys())
    return found


def _batches(directory: Path) -> Iterator[pa.RecordBatch]:
    for segment in segments(directory):
        yield from segment.batches()


class _SampleChecker:
    """Checks that samples have the expected answers of their bodies."""

    def __init__(self, load: CheckedLoad, found: RecordCheck) -> None:
        self._found = found
        self._checker = AnswerChecker(json.loads(load.expected.read_text()))
        self._places: dict[str, list[int]] = defaultdict(list)  # by body; requests may be equal
        for place, request in enumerate(load.requests):
            self._places[orjson.dumps(request, option=orjson.OPT_SORT_KEYS).decode()].append(place)

    def check(self, batch: pa.RecordBatch) -> None:
        sampled = batch.filter(batch["sampled"])
        if not len(sampled):
            return
        last = pc.max(pc.list_flatten(sampled["stage"])).as_py()
        for row in sampled.select(["request", "model", "body", "item", "stage", "score"]).to_pylist():
            why = self._difference(row, last)
            if why:
                self._found.wrong += 1
                if len(self._found.quoted) < _QUOTED:
                    self._found.quoted.append(f"sample of {row['request']}: {why[:300]}")

    def _difference(self, row: dict[str, Any], last: int) -> str:
        if len(set(row["item"])) != len(row["item"]):
            return "an item occurs twice"
        places = self._places.get(row["body"])
        if places is None:
            return f"no request has the body {row['body']}"
        shown = [number for number, stage in enumerate(row["stage"]) if stage == last]
        ids, scores = [row["item"][number] for number in shown], [row["score"][number] for number in shown]
        verdict, why = self._checker(places[0], {"model": row["model"], "ids": ids, "scores": scores})
        return why if verdict == "wrong" else ""
