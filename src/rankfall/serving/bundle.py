"""A trained cascade that answers requests. Needs neither torch nor anything else of training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from rankfall.serving.features import BadValueError, shown
from rankfall.serving.files import EXAMPLES, ITEMS, map_table, numbers, one_array, read_manifest, verify
from rankfall.serving.items import Items
from rankfall.serving.lookup import Lookup
from rankfall.serving.ranking import Answers, Ranking, StageTrace
from rankfall.serving.requests import Batch, RequestEncoder, RequestError, padded
from rankfall.serving.schema import request_schema
from rankfall.serving.stages import NOBODY, NotFiniteError, at, by_row, load_stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.serving.ranking import Id
    from rankfall.serving.requests import Request
    from rankfall.serving.stages import Rows, Scores, Stage

MOST_IDS = 100_000  # in `candidates`, and in `exclude`, of one request
_TOGETHER = 2**20  # candidates of all requests that are ranked at once, with what pads the shorter lists
TOLERANCE = 1e-4  # of scores, relative to the larger of 1 and the score


class Bundle:
    """A bundle that ``rankfall export`` wrote; any number of threads may ask it at once.

    ::

    bundle = rf.serving.Bundle.load("bundle")
    request = {"user": {"user_id": 17, "age": 3}, "sequences": {"history": [{"video_id": 7}, {"video_id": 8}]}}
    bundle.rank(request, k=10).ids
    bundle.rank([request, request], k=10, exclude=[[7], None], explain=True)[0].stages
    """

    def __init__(
        self,
        path: Path,
        manifest: dict[str, Any],
        items: Items,
        stages: Sequence[Stage],
        examples: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.items = items
        self.stages = list(stages)
        self._examples = [dict(example) for example in examples]
        self._requests = RequestEncoder(manifest["request"], _vocabularies(path, manifest))

    @classmethod
    def load(cls, path: str | Path, *, threads: int = 1) -> Bundle:
        """Open a bundle all of whose files have their checksums. `threads` is how many a call may use."""
        if not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads: found {shown(threads)}, expected a whole number of at least 1")
        path = Path(path)
        manifest = read_manifest(path)
        try:
            verify(path, manifest)
            examples = json.loads((path / EXAMPLES).read_text(encoding="utf-8"))
            items, folder = Items(path / ITEMS), path / "stages"
            stages = [load_stage(about, folder / about["name"], items, threads) for about in manifest["stages"]]
            return cls(path, manifest, items, stages, examples)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"path: {path} is damaged, or was not written by 'rankfall export' ({error!r})") from None

    def __repr__(self) -> str:
        """One line: what there is."""
        funnel = " -> ".join(f"{stage.name} {stage.quota}" for stage in self.stages)
        return f"Bundle({self.path}: {len(self.items):,} items -> {funnel})"

    @property
    def names(self) -> list[str]:
        """The stages in order."""
        return [stage.name for stage in self.stages]

    @property
    def quotas(self) -> list[int]:
        """How many items each of them keeps."""
        return [stage.quota for stage in self.stages]

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a request."""
        return request_schema(self.manifest["request"])

    def examples(self) -> list[dict[str, Any]]:
        """Some requests of the log and what they were answered at export: ``request``, ``ids``, ``scores``."""
        return deepcopy(self._examples)

    # --- answers ------------------------------------------------------------------------------------------------

    @overload
    def rank(
        self,
        requests: Request,
        *,
        k: int | None = None,
        candidates: Sequence[Id] | None = None,
        exclude: Sequence[Id] | None = None,
        explain: bool = False,
    ) -> Ranking: ...
    @overload
    def rank(
        self,
        requests: Sequence[Request],
        *,
        k: int | Sequence[int | None] | None = None,
        candidates: Sequence[Sequence[Id] | None] | None = None,
        exclude: Sequence[Sequence[Id] | None] | None = None,
        explain: bool = False,
    ) -> list[Ranking]: ...
    def rank(
        self,
        requests: Any,
        *,
        k: Any = None,
        candidates: Any = None,
        exclude: Any = None,
        explain: bool = False,
    ) -> Ranking | list[Ranking]:
        """The best items for a request, or for each of several.

        k: how many, by default all that the last stage keeps. candidates: rank these items, not all. exclude: never
        answer with these. Of several requests each has its own, or None. explain: say what each stage did.
        """
        if not isinstance(requests, Mapping):
            return self.run(
                self.encode(requests, k=k, candidates=candidates, exclude=exclude), explain=explain
            ).rankings
        batch = self._encode([requests], [k], [candidates], [exclude], _the_only)
        return self.run(batch, explain=explain).rankings[0]

    @overload
    def score(self, requests: Request, candidates: Sequence[Id]) -> dict[str, list[float]]: ...
    @overload
    def score(
        self, requests: Sequence[Request], candidates: Sequence[Sequence[Id]]
    ) -> list[dict[str, list[float]]]: ...
    def score(self, requests: Any, candidates: Any) -> Any:
        """The scores of candidates by every stage, whatever the stages before would drop: ``{stage: [score, ...]}``.

        One for each candidate in their order, NaN for those that the bundle does not have. Of several requests each has
        its own candidates.
        """
        if isinstance(requests, Mapping):
            (found,) = self._score([requests], [candidates], _the_only)
            return found
        return self._score(requests, _one_each("candidates", candidates, len(requests)), _one_of_many)

    def check(self) -> None:
        """Answer the examples of the bundle, and refuse one that answers otherwise than at export."""
        examples = self.examples()
        if not examples:
            return
        for place, ranking in enumerate(self.rank([example["request"] for example in examples])):
            expected = np.array(examples[place]["scores"])
            if len(ranking.scores) != len(expected) or not np.all(
                np.abs(np.array(ranking.scores) - expected) <= TOLERANCE * np.maximum(1, np.abs(expected))
            ):
                raise ValueError(f"path: {self.path} answers its example {place} otherwise than when it was exported")

    # --- in two steps, for those who gather requests of several callers --------------------------------------------

    def encode(
        self,
        requests: Sequence[Request],
        *,
        k: int | Sequence[int | None] | None = None,
        candidates: Sequence[Sequence[Id] | None] | None = None,
        exclude: Sequence[Sequence[Id] | None] | None = None,
    ) -> Batch:
        """Check requests, and everything else that :meth:`rank` takes; nothing of it can be wrong afterwards."""
        if not isinstance(requests, list | tuple):
            raise ValueError(f"requests: found {shown(requests)}, expected a request or a list of them")
        count = len(requests)
        each = [k] * count if k is None or isinstance(k, int) else _one_each("k", k, count)
        allowed = [None] * count if candidates is None else _one_each("candidates", candidates, count)
        forbidden = [None] * count if exclude is None else _one_each("exclude", exclude, count)
        return self._encode(requests, each, allowed, forbidden, _one_of_many)

    def run(self, batch: Batch, *, explain: bool = False) -> Answers:
        """Answer requests that were checked.

        Numbers that are too large for the models are still an error, a :class:`RequestError` that names the request.
        """
        try:
            return self._run_parts(batch, explain)
        except NotFiniteError as error:
            raise _too_large(error.place, _the_only if len(batch) == 1 else _one_of_many) from None

    def _run_parts(self, batch: Batch, explain: bool) -> Answers:
        if not len(batch):
            return Answers([], dict.fromkeys(self.names, 0.0))
        parts = _parts(batch.candidates)
        if len(parts) == 1:
            return self._run(batch, explain)
        rankings: list[Any] = [None] * len(batch)
        milliseconds = dict.fromkeys(self.names, 0.0)
        for places in parts:
            with at(places):
                answers = self._run(batch.take(places), explain)
            for place, ranking in zip(places, answers.rankings, strict=True):
                rankings[place] = ranking
            milliseconds = {name: milliseconds[name] + answers.milliseconds[name] for name in milliseconds}
        return Answers(rankings, milliseconds)

    def _encode(
        self,
        requests: Sequence[Request],
        k: Sequence[int | None],
        candidates: Sequence[Sequence[Id] | None],
        exclude: Sequence[Sequence[Id] | None],
        name: Callable[[int], str],
    ) -> Batch:
        arrays = self._requests.encode(requests, name=name)
        excluded = [np.unique(self._known(ids, f"{name(place)}.exclude", place)) for place, ids in enumerate(exclude)]
        allowed: list[Rows | None] = []
        unknown: list[list[Id]] = []
        for place, ids in enumerate(candidates):
            if ids is None:
                allowed.append(None)
                unknown.append([])
                continue
            rows = self._rows(ids, f"{name(place)}.candidates", place)
            allowed.append(_once(rows[rows != NOBODY], excluded[place]))
            unknown.append([ids[i] for i in np.flatnonzero(rows == NOBODY).tolist()])
        counts = [self._count(one, f"{name(place)}.k", place) for place, one in enumerate(k)]
        return Batch(arrays, np.array(counts, np.int64), allowed, excluded, unknown)

    def _score(
        self, requests: Sequence[Request], candidates: Sequence[Any], name: Callable[[int], str]
    ) -> list[dict[str, list[float]]]:
        if not requests:
            return []
        nothing: list[None] = [None] * len(requests)
        batch = self._encode(requests, nothing, nothing, nothing, name)
        rows = [self._rows(ids, f"{name(place)}.candidates", place) for place, ids in enumerate(candidates)]
        found: list[dict[str, list[float]]] = [{} for _ in requests]
        try:
            for places in _parts(rows):
                with at(places):
                    self._score_part(batch.take(places), [rows[place] for place in places], [found[p] for p in places])
        except NotFiniteError as error:
            raise _too_large(error.place, name) from None
        return found

    def _score_part(self, batch: Batch, lists: Sequence[Rows], found: Sequence[dict[str, list[float]]]) -> None:
        rows = padded(lists)
        for stage in self.stages:
            scores = np.where(rows == NOBODY, np.nan, stage.score(batch, rows))
            for place, of_request in enumerate(found):
                of_request[stage.name] = scores[place, : len(lists[place])].tolist()

    # --- the funnel ---------------------------------------------------------------------------------------------

    def _run(self, batch: Batch, explain: bool) -> Answers:
        traces: list[list[StageTrace]] = [[] for _ in range(len(batch))]
        milliseconds: dict[str, float] = {}
        rows = None if batch.candidates[0] is None else padded(batch.candidates)
        for stage in self.stages:
            begin = perf_counter()
            rows, scores, order = self._pass(stage, batch, rows)
            milliseconds[stage.name] = 1000 * (perf_counter() - begin)
            if explain:
                self._trace(stage, rows, scores, order, milliseconds[stage.name], traces)
            kept = order[:, : stage.quota]
            rows, scores = by_row(rows, kept), by_row(scores, kept)
        assert rows is not None  # there is a stage
        counts = np.minimum((rows != NOBODY).sum(axis=1), batch.k)
        ids = self._ids(rows, counts)
        return Answers(
            [
                Ranking(ids[place], scores[place, :count].tolist(), batch.unknown[place], of if explain else None)
                for place, (count, of) in enumerate(zip(counts.tolist(), traces, strict=True))
            ],
            milliseconds,
        )

    def _pass(self, stage: Stage, batch: Batch, rows: Rows | None) -> tuple[Rows, Scores, Rows]:
        """What a stage scores, and in which order it likes that: the best first, padding last."""
        if rows is None:
            rows, scores = stage.search(batch)
            # of equal scores the first row is the first
            return rows, scores, np.lexsort((rows, np.where(rows == NOBODY, np.inf, -scores)))
        scores = stage.score(batch, rows)
        # of equal scores the first in the list is the first
        return rows, scores, np.argsort(np.where(rows == NOBODY, np.inf, -scores), axis=1, kind="stable")

    def _trace(
        self,
        stage: Stage,
        rows: Rows,
        scores: Scores,
        order: Rows,
        milliseconds: float,
        traces: list[list[StageTrace]],
    ) -> None:
        rows, scores = by_row(rows, order), by_row(scores, order)
        scored = (rows != NOBODY).sum(axis=1)
        for place, ids in enumerate(self._ids(rows, scored)):
            kept = min(len(ids), stage.quota)
            of_request = scores[place, : len(ids)].tolist()
            threshold = of_request[kept - 1] if kept else None
            traces[place].append(StageTrace(stage.name, ids, of_request, kept, threshold, milliseconds))

    def _ids(self, rows: Rows, counts: Rows) -> list[list[Id]]:
        """The source's ids of the first rows of each request, so many as `counts` says."""
        flat = self.items.ids(rows[np.arange(rows.shape[1]) < counts[:, None]])
        ends = np.cumsum(counts).tolist()
        return [flat[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]

    # --- what else is checked -------------------------------------------------------------------------------------

    def _rows(self, ids: Any, where: str, place: int) -> Rows:
        if not isinstance(ids, list | tuple | np.ndarray):
            raise RequestError(f"{where}: found {shown(ids)}, expected a list of ids of items", place)
        if len(ids) > MOST_IDS:
            raise RequestError(f"{where}: found {len(ids):,} ids, expected at most {MOST_IDS:,}", place)
        ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
        try:
            return self.items.rows(ids)
        except BadValueError as error:
            raise RequestError(f"{where}[{error.place}]: {error}", place) from None

    def _known(self, ids: Any, where: str, place: int) -> Rows:
        if ids is None:
            return np.empty(0, np.int64)
        rows = self._rows(ids, where, place)
        known: Rows = rows[rows != NOBODY]
        return known

    def _count(self, k: Any, where: str, place: int) -> int:
        last = self.stages[-1]
        if k is None:
            return last.quota
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= last.quota:
            raise RequestError(
                f"{where}: found {shown(k)}, expected 1 to {last.quota}, which is what {last.name} keeps", place
            )
        return int(k)


def _the_only(place: int) -> str:
    return "request"


def _one_of_many(place: int) -> str:
    return f"requests[{place}]"


def _too_large(place: int, name: Callable[[int], str]) -> RequestError:
    return RequestError(
        f"{name(place)}: found numbers so large that its scores are not finite, expected some like those of the log",
        place,
    )


def _vocabularies(path: Path, manifest: Mapping[str, Any]) -> dict[str, Lookup]:
    lookups = {}
    for table in manifest["vocabularies"]:
        columns = map_table(path / "vocabularies" / f"{table}.arrow")
        hashes, places = (numbers(one_array(columns, name)) for name in ("hash", "place"))
        lookups[table] = Lookup(one_array(columns, "value"), hashes, places)
    return lookups


def _parts(lists: Sequence[Rows | None]) -> list[list[int]]:
    """Which requests are answered together: without a list, or with lists that can be padded to the longest."""
    parts = [without] if (without := [place for place, rows in enumerate(lists) if rows is None]) else []
    lengths = {place: len(rows) for place, rows in enumerate(lists) if rows is not None}
    if len(lengths) * max(lengths.values(), default=0) <= _TOGETHER:
        return [*parts, list(lengths)] if lengths else parts
    part: list[int] = []
    for place in sorted(lengths, key=lambda place: lengths[place]):
        if part and (len(part) + 1) * lengths[place] > _TOGETHER:
            parts.append(part)
            part = []
        part.append(place)
    return [*parts, part]


def _one_each(what: str, given: Any, count: int) -> Sequence[Any]:
    if not isinstance(given, list | tuple) or len(given) != count:
        found = f"{len(given)} of them" if isinstance(given, list | tuple) else shown(given)
        raise ValueError(f"{what}: found {found}, expected a list with one entry for each of {count} requests")
    return given


def _once(rows: Rows, excluded: Rows) -> Rows:
    """Every row once, at its first place, without those excluded."""
    _, first = np.unique(rows, return_index=True)
    rows = rows[np.sort(first)]
    left: Rows = rows[~np.isin(rows, excluded)]
    return left
