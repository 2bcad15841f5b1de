"""A trained cascade that answers requests. Needs neither torch nor anything else of training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from rankfall.serving.bundle_files import EXAMPLES, ITEMS, map_table, numbers, one_array, read_manifest, verify
from rankfall.serving.bundle_items import Items
from rankfall.serving.lookup import Lookup
from rankfall.serving.onnx_stages import NO_ITEM, NotFiniteError, at, by_row, load_stage
from rankfall.serving.request_encoder import Batch, RequestEncoder, RequestError, padded
from rankfall.serving.request_schema import request_schema
from rankfall.serving.results import Answers, Ranking, StageTrace
from rankfall.serving.value_checks import BadValueError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.serving.onnx_stages import Rows, Scores, Stage
    from rankfall.serving.request_encoder import Request
    from rankfall.serving.results import Id

MOST_IDS = 100_000  # in `candidates`, and in `exclude`, of one request
_TOGETHER = 2**20  # candidates of all requests that are ranked at once, with what pads the shorter lists
_NO_ROWS = np.empty(0, np.int64)
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
        """Answer the examples of the bundle, and refuse one that answers otherwise than at export.

        Items whose scores are equal within the tolerance may change places, or be another at the end of a ranking.
        """
        examples = self.examples()
        for place, ranking in enumerate(self.rank([example["request"] for example in examples])):
            if not _is_same(ranking, examples[place]["ids"], examples[place]["scores"]):
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
        excluded = [
            _NO_ROWS if ids is None else np.unique(self._known(ids, f"{name(place)}.exclude", place))
            for place, ids in enumerate(exclude)
        ]
        allowed: list[Rows | None] = []
        unknown: list[list[Id]] = []
        for place, ids in enumerate(candidates):
            if ids is None:
                allowed.append(None)
                unknown.append([])
                continue
            rows = self._rows(ids, f"{name(place)}.candidates", place)
            allowed.append(_once(rows[rows != NO_ITEM], excluded[place]))
            unknown.append([ids[i] for i in np.flatnonzero(rows == NO_ITEM).tolist()])
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
            scores = np.where(rows == NO_ITEM, np.nan, stage.score(batch, rows))
            for place, of_request in enumerate(found):
                of_request[stage.name] = scores[place, : len(lists[place])].tolist()

    # --- the funnel ---------------------------------------------------------------------------------------------

    def _run(self, batch: Batch, explain: bool) -> Answers:
        traces: list[list[StageTrace]] = [[] for _ in range(len(batch))]
        milliseconds: dict[str, float] = {}
        rows = None if batch.candidates[0] is None else padded(batch.candidates)
        scores: Scores | None = None
        for stage in self.stages:
            begin = perf_counter()
            if rows is None:  # a search keeps all that it finds, and most of the time nobody needs its scores
                rows, scores = kept = stage.search(batch, scored=explain or stage is self.stages[-1])
            else:
                scores = stage.score(batch, rows)
                kept = _best_first(rows, scores, stage.quota)
            milliseconds[stage.name] = 1000 * (perf_counter() - begin)
            if explain and scores is not None:
                self._trace(stage, rows, scores, milliseconds[stage.name], traces)
            rows, scores = kept
        assert rows is not None  # there is a stage,
        assert scores is not None  # and the last one has scores
        rankings = self._rankings(batch, *_best_first(rows, scores), traces if explain else None)
        return Answers(rankings, milliseconds)

    def _rankings(
        self, batch: Batch, rows: Rows, scores: Scores, traces: Sequence[list[StageTrace]] | None
    ) -> list[Ranking]:
        counts = np.minimum((rows != NO_ITEM).sum(axis=1), batch.k).tolist()
        ids, lists = self._ids(rows, counts), scores.tolist()
        return [
            Ranking(ids[place], lists[place][:count], batch.unknown[place], traces[place] if traces else None)
            for place, count in enumerate(counts)
        ]

    def _trace(
        self, stage: Stage, rows: Rows, scores: Scores, milliseconds: float, traces: list[list[StageTrace]]
    ) -> None:
        rows, scores = _best_first(rows, scores)
        scored = (rows != NO_ITEM).sum(axis=1).tolist()
        for place, ids in enumerate(self._ids(rows, scored)):
            kept = min(len(ids), stage.quota)
            of_request = scores[place, : len(ids)].tolist()
            threshold = of_request[kept - 1] if kept else None
            traces[place].append(StageTrace(stage.name, ids, of_request, kept, threshold, milliseconds))

    def _ids(self, rows: Rows, counts: Sequence[int]) -> list[list[Id]]:
        """The source's ids of the first rows of each request, so many as `counts` says."""
        flat, width = self.items.ids(np.maximum(rows, 0).ravel()), rows.shape[1]
        return [flat[place * width : place * width + count] for place, count in enumerate(counts)]

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
        rows = self._rows(ids, where, place)
        known: Rows = rows[rows != NO_ITEM]
        return known

    def _count(self, k: Any, where: str, place: int) -> int:
        last = self.stages[-1]
        if k is None:
            return last.quota
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= last.quota:
            expected = f"a whole number from 1 to {last.quota}, which is what {last.name} keeps"
            raise RequestError(f"{where}: found {shown(k)}, expected {expected}", place)
        return int(k)


def _best_first(rows: Rows, scores: Scores, count: int | None = None) -> tuple[Rows, Scores]:
    """The best items of each request and their scores; of equal ones the first is the first, and -1 comes last."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return by_row(rows, order), by_row(scores, order)


def _is_same(ranking: Ranking, ids: Sequence[Id], scores: Sequence[float]) -> bool:
    """Whether a ranking has the scores that were expected, of the same items but for equal ones."""
    if len(ranking.ids) != len(ids):
        return False
    of_item = dict(zip(ids, scores, strict=True))
    own = [of_item.get(one, scores[-1]) for one in ranking.ids]
    found = np.array(ranking.scores)
    return all(
        np.all(np.abs(found - expected) <= TOLERANCE * np.maximum(1, np.abs(expected)))
        for expected in (np.array(scores), np.array(own))
    )


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
