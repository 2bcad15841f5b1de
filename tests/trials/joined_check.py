"""Comparison of a joined log with what clients know of their requests and events.

The bundles answer every request again, without a service. A request that needed several attempts may have been recorded
by any bundle, and its client knows the last answer only; all other samples have to equal those of the bundle that the
answer names.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.answer_check import AnswerChecker, model_name, wrong_unexpected_items
from rankfall.serving import Bundle
from rankfall.serving.drawing import draw_samples
from rankfall.serving.recording.recorder import sample_requests
from trials.small_world import KINDS, STAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall.serving.bundle import Ranking
    from rankfall.serving.drawing import Sample
    from trials.client_ledger import Asked, Event, Ledger

LOST_SECONDS = 2.0  # a sample is lost only if its service was killed so soon after the answer
_BATCH = 32
_QUOTED = 5


@dataclass
class Comparison:
    """How a joined log compares with the records of clients. Requests and events are counted once."""

    requests: int = 0  # answered
    repeated: int = 0  # of them, those that needed several attempts
    verdicts: dict[str, int] = field(default_factory=dict)  # of the answers
    models: dict[str, int] = field(default_factory=dict)  # requests by the model that answered
    sampled: int = 0  # expected in the log
    joined: int = 0  # in the log
    twice: int = 0  # requests that the log has more than once
    never_asked: int = 0  # requests of the log that no client sent
    lost: int = 0  # sampled requests that the log lacks, because the service was killed before it wrote them
    missing: int = 0  # others that the log lacks
    different: int = 0  # requests with other items, stages, positions, probabilities or feedback
    events: int = 0  # acknowledged
    joined_events: int = 0  # of them, those of joined requests
    unsampled_events: int = 0  # of requests that were not sampled
    kept_apart: int = 0  # of lost requests, and of items that the sample of a repeated request does not have
    lost_events: int = 0  # found nowhere
    quoted: list[str] = field(default_factory=list)

    def quote(self, text: str) -> None:
        """Keep the first few differences."""
        if len(self.quoted) < _QUOTED:
            self.quoted.append(text[:500])

    def problems(self) -> list[str]:
        """Return the violated requirements as sentences."""
        found = {
            f"{self.verdicts.get('wrong', 0):,} answers were wrong": self.verdicts.get("wrong", 0),
            f"{self.twice:,} requests are in the log more than once": self.twice,
            f"{self.never_asked:,} requests of the log were never sent": self.never_asked,
            f"{self.missing:,} samples are missing that no kill explains": self.missing,
            f"{self.different:,} requests of the log differ from the reference": self.different,
            f"{self.lost_events:,} acknowledged events were lost": self.lost_events,
            "no event was joined": not self.joined_events,
        }
        return [text for text, is_one in found.items() if is_one]


@dataclass(frozen=True)
class _Expected:
    """The sample of a request: answered items in order, and the draws with their stages and probabilities."""

    answered: list[int]
    drawn: dict[int, tuple[int, float]]


def compare_log(
    log: Path,
    ledger: Ledger,
    bundles: Path,
    kills: Sequence[float],
    *,
    share: float,
    counts: tuple[int, ...],
    key: bytes,
) -> Comparison:
    """Compare a joined log with the records of clients.

    Args:
        log: The log. Events that are kept apart are in the directory beside it.
        ledger: What clients know.
        bundles: Directory of the bundles that were served.
        kills: When the service was killed, by ``time.monotonic()``.
        share: Share of requests that the service sampled.
        counts: Items that it drew per stage.
        key: The secret by which it sampled.
    """
    found = Comparison()
    loaded = {model_name(bundle.manifest): bundle for bundle in map(Bundle.load, sorted(bundles.iterdir()))}
    answered = [one for one in ledger.asked.values() if one.answered is not None]
    found.requests = len(answered)
    found.repeated = sum(one.attempts > 1 for one in answered)
    found.models = dict(Counter(one.model for one in answered))
    expected = _expected(answered, loaded, share, counts, key, found)
    rows = _read_log(log, {one.request for one in answered}, found)
    events = defaultdict(list)
    for event in ledger.events:
        events[event.request].append(event)
    found.events = len(ledger.events)
    apart = _kept_apart(log)
    for one in answered:
        if one.request not in expected:
            found.unsampled_events += len(events[one.request])
            continue
        found.sampled += 1
        row = rows.get(one.request)
        if row is None:
            _note_lost(one, kills, found)
        _check_events(one, row, events[one.request], apart, found)
        if row is not None:
            found.joined += 1
            possible = expected[one.request]
            why = [_difference(row, possible[model], events[one.request]) for model in possible]
            if all(why):
                found.different += 1
                found.quote(f"request {one.request}, {one.attempts} attempts: {why[0]}")
    return found


# --- the reference ------------------------------------------------------------------------------------------------


def _expected(
    answered: Sequence[Asked],
    bundles: Mapping[str, Bundle],
    share: float,
    counts: tuple[int, ...],
    key: bytes,
    found: Comparison,
) -> dict[str, dict[str, _Expected]]:
    """Return the possible samples of the sampled requests by request and model, and check the answers."""
    expected: dict[str, dict[str, _Expected]] = {}
    verdicts: Counter[str] = Counter(
        {"wrong": sum(one.model not in bundles for one in answered)}
    )  # of a bundle that never existed
    for model, bundle in bundles.items():
        asked = [one for one in answered if one.model == model or one.attempts > 1]
        for start in range(0, len(asked), _BATCH):
            part = asked[start : start + _BATCH]
            sampled, seeds = sample_requests([one.request for one in part], share, key)
            rankings = bundle.run(bundle.encode([one.body for one in part]), sampled=sampled).rankings
            own = [(one, ranking) for one, ranking in zip(part, rankings, strict=True) if one.model == model]
            verdicts.update(_verdicts(model, bundle, own, found))
            trails = {one.request: ranking.trail for one, ranking in zip(part, rankings, strict=True) if ranking.trail}
            samples = draw_samples(list(trails.values()), seeds[sampled], counts)
            for request, sample in zip(trails, samples, strict=True):
                assert sample is not None  # scores are finite
                expected.setdefault(request, {})[model] = _sample(bundle, sample)
    found.verdicts = dict(verdicts)
    return expected


def _verdicts(model: str, bundle: Bundle, answers: Sequence[tuple[Asked, Ranking]], found: Comparison) -> Iterator[str]:
    """Yield the verdicts on answers."""
    checker = AnswerChecker({model: [{"ids": right.ids, "scores": right.scores} for _, right in answers]})
    verdicts = Counter[str]()
    for place, (one, _) in enumerate(answers):
        verdict, why = checker(place, {"model": model, "ids": one.ids, "scores": one.scores})
        verdicts[verdict] += 1
        if why:
            found.quote(why)
    requests = [one.body for one, _ in answers]
    for why in wrong_unexpected_items({model: bundle}, requests, checker.unexpected):
        verdicts.update(tied=-1, wrong=1)
        found.quote(why)
    yield from verdicts.elements()


def _sample(bundle: Bundle, sample: Sample) -> _Expected:
    real = sample.rows >= 0
    ids = bundle.items.id_array(sample.rows[real]).to_pylist()
    columns = sample.stages[real].tolist(), sample.ranks[real].tolist(), sample.inclusion[real].tolist()
    answered, drawn = {}, {}
    for item, stage, rank, inclusion in zip(ids, *columns, strict=True):
        if stage == len(STAGES) - 1:
            answered[rank] = item
        else:
            drawn[item] = stage, inclusion
    return _Expected([answered[rank] for rank in sorted(answered)], drawn)


# --- the log ------------------------------------------------------------------------------------------------------


def _read_log(log: Path, asked: set[str], found: Comparison) -> dict[str, dict[str, Any]]:
    """Return the impressions of the trial by request."""
    from rankfall.data import ImpressionLog

    names = ["request", "item", "depth", "position", "inclusion", *(f"feedback.{kind}" for kind in KINDS)]
    rows: dict[str, dict[str, Any]] = {}
    for day in ImpressionLog.load(log).days.values():
        for row in day.table().select(names).to_pylist():
            request = row["request"]
            if request in asked:
                found.twice += request in rows
                rows[request] = row
            elif not request.startswith("past-"):
                found.never_asked += 1
    return rows


def _kept_apart(log: Path) -> set[tuple[str, str]]:
    """Return request and id of the events that joining kept apart."""
    import pyarrow.parquet as pq

    apart = set()
    for path in log.with_name(f"{log.name}.join").glob("days/*/apart.parquet"):
        columns = pq.read_table(path, columns=["request", "id"])
        apart |= set(zip(columns["request"].to_pylist(), columns["id"].to_pylist(), strict=True))
    return apart


def _note_lost(asked: Asked, kills: Sequence[float], found: Comparison) -> None:
    assert asked.answered is not None
    if any(kill - LOST_SECONDS <= asked.answered <= kill + LOST_SECONDS for kill in kills):
        found.lost += 1
    else:
        found.missing += 1
        found.quote(f"request {asked.request} of {asked.body['time']} is missing, after {asked.attempts} attempts")


def _check_events(
    asked: Asked, row: dict[str, Any] | None, events: Sequence[Event], apart: set[tuple[str, str]], found: Comparison
) -> None:
    """Check that acknowledged events of a sampled request are in the log, or kept apart."""
    items = set() if row is None else set(row["item"])
    for event in events:
        is_apart = (event.request, event.id) in apart
        if (event.item in items) == is_apart:
            found.lost_events += 1
            where = "kept apart from its request" if is_apart else "neither joined nor kept apart"
            found.quote(f"the event {event} is {where} ({asked.attempts} attempts)")
        elif is_apart:
            found.kept_apart += 1
        else:
            found.joined_events += 1  # their sums are compared


def _difference(row: Mapping[str, Any], expected: _Expected, events: Sequence[Event]) -> str:
    """Return how an impression differs from the expected one; an empty text if it does not."""
    last = len(STAGES) - 1
    places = [(place, item) for place, item, depth in _zip(row, "position", "item", "depth") if depth == last]
    answered = [item for _, item in sorted(places)]
    if answered != expected.answered or [place for place, _ in sorted(places)] != list(range(len(places))):
        return f"the log has {answered} as answered, expected {expected.answered}"
    drawn = {
        item: (depth, inclusion) for item, depth, inclusion in _zip(row, "item", "depth", "inclusion") if depth < last
    }
    if drawn != expected.drawn:
        return f"the log has the draws {drawn}, expected {expected.drawn}"
    for kind in KINDS:
        sums: Counter[int] = Counter()
        for event in events:
            if event.kind == kind:
                sums[event.item] += event.value  # type: ignore[assignment]  # sums of floats
        for item, value in _zip(row, "item", f"feedback.{kind}"):
            if not math.isclose(value, sums[item], abs_tol=1e-6):
                return f"item {item} has {kind} {value}, expected {sums[item]}"
    return ""


def _zip(row: Mapping[str, Any], *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(row[name] for name in names), strict=True)
