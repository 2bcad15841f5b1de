"""A trained cascade that answers requests without torch or any training code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from rankfall._errors import RankfallError, checked
from rankfall.encoding import BadValueError
from rankfall.serving.bundle_files import (
    EXAMPLES,
    ITEMS,
    Items,
    errors_name,
    read_files,
    read_lookup,
    read_manifest,
    read_table,
)
from rankfall.serving.onnx_stages import NotFiniteError, at_places, best_order, by_row, load_stage
from rankfall.serving.request_encoder import (
    NO_ITEM,
    EncodedRequests,
    RequestEncoder,
    RequestError,
    distinct,
    padded,
    parts_of,
    request_schema,
    stacked,
)
from rankfall.serving.value_encoders import shown
from rankfall.storage.files import parse_json
from rankfall.storage.manifests import SEAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rankfall.encoding import Lookup
    from rankfall.serving.onnx_stages import Rows, Scores, Stage
    from rankfall.serving.request_encoder import Request


Id = int | str
TOLERANCE = 1e-4  # of scores, relative to max(1, score)


@dataclass(frozen=True, slots=True)
class StageTrace:
    """The items that one stage of the cascade scored for a request.

    `ids` are in the order of their scores, best first; the stage kept the first `kept` of them. A stage that searches
    an index has scores of the kept items only.
    """

    name: str
    ids: list[Id]
    scores: list[float]
    kept: int
    threshold: float | None  # the lowest kept score, None if no item was kept
    milliseconds: float  # that the stage took for the whole batch


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best items for a request by the scores of the last stage, best first."""

    ids: list[Id]
    scores: list[float]
    unknown: list[Id]  # candidates that the bundle does not have
    stages: list[StageTrace] | None = None  # with `explain`
    notes: list[str] = field(default_factory=list)  # values of the request that were never seen in training
    trail: Trail | None = field(default=None, compare=False, repr=False)  # if the request is sampled


@dataclass(frozen=True, slots=True)
class Answers:
    """The rankings of a batch, and the milliseconds that each stage took for the whole batch."""

    rankings: list[Ranking]
    milliseconds: dict[str, float]


def is_same(ranking: Ranking, ids: Sequence[Id], scores: Sequence[float]) -> bool:
    """Return whether a ranking has the expected scores, and the expected items except for ties."""
    if len(ranking.ids) != len(ids):
        return False
    of_item = dict(zip(ids, scores, strict=True))
    own = [of_item.get(one, scores[-1]) for one in ranking.ids]
    found = np.array(ranking.scores)
    return all(
        np.all(np.abs(found - expected) <= TOLERANCE * np.maximum(1, np.abs(expected)))
        for expected in (np.array(scores), np.array(own))
    )


@dataclass(frozen=True, slots=True)
class StageItems:
    """The items of a stage for each of several requests.

    Args:
        stage: The stage.
        rows: Items that it scored, best first, or the best of all items that it found (S, N).
        scores: Their scores; None if it found them and kept all.
        kept: How many of them it kept for each request (S,).
        is_search: Whether it found them among all items.
    """

    stage: Stage
    rows: Rows
    scores: Scores | None
    kept: Rows
    is_search: bool

    def take(self, places: Sequence[int] | Rows) -> StageItems:
        """Return the items of the requests at these indices."""
        scores = None if self.scores is None else self.scores[places]
        return StageItems(self.stage, self.rows[places], scores, self.kept[places], self.is_search)

    def sorted(self, order: Rows | None) -> StageItems:
        """Return the items best first, in this order or, if they have scores, in that of the scores."""
        if self.scores is None:
            return self
        order = best_order(self.scores) if order is None else order
        return replace(self, rows=by_row(self.rows, order), scores=by_row(self.scores, order))


@dataclass(frozen=True, slots=True)
class Trails:
    """What the stages of a bundle did with several requests.

    Args:
        encoded: The requests.
        items: Number of items of the bundle.
        stages: The items of each stage.
        rows: The items of the answers (S, N), best first, and -1.
        scores: Their scores.
    """

    encoded: EncodedRequests
    items: int
    stages: list[StageItems]
    rows: Rows
    scores: Scores

    def take(self, places: Sequence[int]) -> Trails:
        """Return the trails of the requests at these indices."""
        stages = [one.take(places) for one in self.stages]
        return Trails(self.encoded.take(places), self.items, stages, self.rows[places], self.scores[places])

    @classmethod
    def join(cls, parts: Sequence[Trails]) -> Trails:
        """Concatenate trails of the same bundle whose first stages all searched, or all scored a list."""
        stages = []
        for of_stage in zip(*(part.stages for part in parts), strict=True):
            given = [one.scores for one in of_stage if one.scores is not None]
            joined = stacked([one.rows for one in of_stage], NO_ITEM), stacked(given, -np.inf) if given else None
            kept = np.concatenate([one.kept for one in of_stage])
            stages.append(StageItems(of_stage[0].stage, *joined, kept, of_stage[0].is_search))
        rows = stacked([part.rows for part in parts], NO_ITEM)
        scores = stacked([part.scores for part in parts], -np.inf)
        return cls(EncodedRequests.join([part.encoded for part in parts]), parts[0].items, stages, rows, scores)

    @property
    def bytes_each(self) -> int:
        """About the number of bytes per request."""
        arrays: list[NDArray[Any]] = [self.rows, self.scores, *self.encoded.arrays.values()]
        arrays += [array for one in self.stages for array in (one.rows, one.scores) if array is not None]
        return sum(array.nbytes for array in arrays) // len(self.rows)


class Trail(NamedTuple):
    """One of the requests of trails."""

    trails: Trails
    place: int


MOST_IDS = 100_000  # in `candidates`, and in `exclude`, of one request
MOST_THREADS = 1024
_NO_ROWS = np.empty(0, np.int64)


class Bundle:
    """A bundle written by ``rankfall export``. It may be used by any number of threads at once.

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
        vocabularies: Mapping[str, Lookup],
        stages: Sequence[Stage],
        examples: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.items = items
        self.vocabularies = dict(vocabularies)
        self.stages = list(stages)
        self._examples = [dict(example) for example in examples]
        self._requests = RequestEncoder(manifest["request"], self.vocabularies, items)

    @classmethod
    @checked
    def load(cls, path: str | Path, *, threads: int = 1, shared: Path | None = None, seal: str | None = None) -> Bundle:
        """Read all files of a bundle into memory and compare them with their checksums.

        What happens to the files afterwards has no effect.

        Args:
            path: Directory of the bundle.
            threads: The number of threads that one call may use.
            shared: A directory that only the caller's processes may write, for copies of the files. Processes that
                name the same one share the memory of tables and indexes.
            seal: The checksum that the manifest must have, for example that of a bundle that was tried before.

        Raises:
            ValueError: A file is missing or has changed, or this release cannot read the bundle.
            OSError: A file cannot be read, or copied to `shared`.
        """
        if not 1 <= threads <= MOST_THREADS:
            raise RankfallError(f"threads: found {shown(threads)}, expected a whole number from 1 to {MOST_THREADS:,}")
        path = Path(path)
        manifest = read_manifest(path)
        if seal not in (None, manifest[SEAL]):
            raise RankfallError(f"path: {path} has been replaced since it was tried")
        with errors_name(path):
            files = read_files(path, manifest, shared)
            examples = parse_json(bytes(files[EXAMPLES].content))
            items = Items(files[ITEMS])
            stages = [load_stage(about, files, items, threads) for about in manifest["stages"]]
            tables = {table: files[f"vocabularies/{table}.arrow"] for table in manifest["vocabularies"]}
            vocabularies = {table: read_lookup(read_table(file), "value") for table, file in tables.items()}
            return cls(path, manifest, items, vocabularies, stages, examples)

    def __repr__(self) -> str:
        """Return one line with the number of items and the stages."""
        funnel = " -> ".join(f"{stage.name} {stage.quota}" for stage in self.stages)
        return f"Bundle({self.path}: {len(self.items):,} items -> {funnel})"

    @property
    def names(self) -> list[str]:
        """The names of the stages, in order."""
        return [stage.name for stage in self.stages]

    @property
    def quotas(self) -> list[int]:
        """The number of items that each stage keeps."""
        return [stage.quota for stage in self.stages]

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a request."""
        return request_schema(self.manifest["request"])

    def examples(self) -> list[dict[str, Any]]:
        """Return sample requests of the log with their answers at export: ``request``, ``ids``, ``scores``.

        Examples of newer bundles also have ``relevant``, the ids of the request's ground truth in the log, and
        ``feedback``, by name the pairs of id and value of values that are not 0.
        """
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
        """Return the best items for a request, or for each of several.

        Args:
            requests: A request or a list of requests.
            k: The number of items to return; by default as many as the last stage keeps.
            candidates: Ids of the items to rank; by default all items.
            exclude: Ids of items that are never returned.
            explain: Whether to return what each stage did.

        For a list of requests, `k`, `candidates` and `exclude` are lists with one entry per request, which may be None.

        Raises:
            RequestError: A request is not valid.
        """
        if not isinstance(requests, Mapping):
            encoded = self.encode(requests, k=k, candidates=candidates, exclude=exclude)
            return self.run(encoded, explain=explain).rankings
        encoded = self._encode([requests], [k], [candidates], [exclude], _only_request)
        return self.run(encoded, explain=explain).rankings[0]

    @overload
    def score(self, requests: Request, candidates: Sequence[Id]) -> dict[str, list[float]]: ...
    @overload
    def score(
        self, requests: Sequence[Request], candidates: Sequence[Sequence[Id]]
    ) -> list[dict[str, list[float]]]: ...
    def score(self, requests: Any, candidates: Any) -> Any:
        """Score candidates by every stage, including those that an earlier stage would drop.

        Args:
            requests: A request or a list of requests.
            candidates: Ids of items, or one list of them per request.

        Returns:
            ``{stage: [score, ...]}`` with one score per candidate, NaN for items that the bundle does not have; for a
            list of requests one such dictionary each.

        Raises:
            RequestError: A request is not valid.
        """
        if isinstance(requests, Mapping) or not isinstance(requests, Sequence):
            encoded = self._encode([requests], [None], [candidates], [None], _only_request)
            return self._run_scores(encoded, _only_request)[0]
        given, nothing = _one_each("candidates", candidates, len(requests)), [None] * len(requests)
        return self._run_scores(self._encode(requests, nothing, given, nothing, _numbered_request), _numbered_request)

    def check(self) -> None:
        """Answer the examples of the bundle and compare the answers with those at export.

        Items whose scores are equal within the tolerance may change places, or be replaced at the end of a ranking.

        Raises:
            ValueError: An answer differs.
        """
        examples = self.examples()
        with errors_name(self.path / EXAMPLES):
            for place, ranking in enumerate(self.rank([example["request"] for example in examples])):
                if not is_same(ranking, examples[place]["ids"], examples[place]["scores"]):
                    raise RankfallError(f"path: {self.path} answers its example {place} differently than at export")
            # the items with the smallest and the largest ids of features, which must be in the embedding tables
            rows = self.items.extremes()[None]
            if examples and rows.size:
                encoded = self.encode([examples[0]["request"]])
                for stage in self.stages:
                    stage.score(encoded, rows)

    # --- in two steps, to compute the requests of several callers at once -----------------------------------------

    def encode(
        self,
        requests: Sequence[Request],
        *,
        k: int | Sequence[int | None] | None = None,
        candidates: Sequence[Sequence[Id] | None] | None = None,
        exclude: Sequence[Sequence[Id] | None] | None = None,
    ) -> EncodedRequests:
        """Validate and encode a list of requests with the arguments of :meth:`rank`, for `run` and `run_scores`."""
        if not isinstance(requests, list | tuple):
            raise RankfallError(f"requests: found {shown(requests)}, expected a request or a list of them")
        count = len(requests)
        each = [k] * count if k is None or isinstance(k, int) else _one_each("k", k, count)
        allowed = [None] * count if candidates is None else _one_each("candidates", candidates, count)
        forbidden = [None] * count if exclude is None else _one_each("exclude", exclude, count)
        return self._encode(requests, each, allowed, forbidden, _numbered_request)

    def read_times(self, times: Sequence[Any]) -> list[int]:
        """Return times, given as those of requests, in milliseconds since 1970.

        Raises:
            BadValueError: A value is not a time; the error has its position.
        """
        return self._requests.times.milliseconds(times)

    def run(
        self, batch: EncodedRequests, *, explain: bool = False, sampled: NDArray[np.bool_] | None = None
    ) -> Answers:
        """Rank items for encoded requests.

        Args:
            batch: The requests.
            explain: Whether to return what each stage did.
            sampled: Which requests are sampled; their rankings have trails, from which
                :func:`~rankfall.serving.drawing.draw_samples` draws.

        Raises:
            RequestError: The numbers of a request are too large for the models.
        """
        rankings: list[Any] = [None] * len(batch)
        milliseconds = dict.fromkeys(self.names, 0.0)
        parts = parts_of(batch.candidates)
        try:
            for places in parts:
                part = batch if len(parts) == 1 else batch.take(places)
                with at_places(places):
                    answers = self._run(part, explain, None if sampled is None else sampled[places])
                for place, ranking in zip(places, answers.rankings, strict=True):
                    rankings[place] = ranking
                milliseconds = {name: milliseconds[name] + answers.milliseconds[name] for name in milliseconds}
        except NotFiniteError as error:
            raise _too_large(error.place, _request_name(batch)) from None
        return Answers(rankings, milliseconds)

    def run_scores(self, batch: EncodedRequests) -> list[dict[str, list[float]]]:
        """Score the candidates of encoded requests by every stage, as :meth:`score` does.

        Raises:
            RequestError: A request has no candidates, or its numbers are too large for the models.
        """
        return self._run_scores(batch, _request_name(batch))

    def _encode(
        self,
        requests: Sequence[Request],
        k: Sequence[int | None],
        candidates: Sequence[Sequence[Id] | None],
        exclude: Sequence[Sequence[Id] | None],
        name: Callable[[int], str],
    ) -> EncodedRequests:
        arrays = self._requests.encode(requests, name=name)
        excluded = [
            _NO_ROWS if ids is None else self._rows(ids, f"{name(place)}.exclude", place)
            for place, ids in enumerate(exclude)
        ]
        excluded = [np.unique(rows[rows != NO_ITEM]) if len(rows) else rows for rows in excluded]
        given = [
            None if ids is None else self._rows(ids, f"{name(place)}.candidates", place)
            for place, ids in enumerate(candidates)
        ]
        allowed = [None if rows is None else distinct(rows, excluded[place]) for place, rows in enumerate(given)]
        unknown = [
            [] if ids is None else [ids[at] for at in np.flatnonzero(rows == NO_ITEM).tolist()]
            for ids, rows in zip(candidates, given, strict=True)
        ]
        counts = [self._count(one, f"{name(place)}.k", place) for place, one in enumerate(k)]
        notes = self._requests.notes(requests, arrays)
        return EncodedRequests(arrays, np.array(counts, np.int64), allowed, excluded, given, unknown, notes)

    def _run_scores(self, encoded: EncodedRequests, name: Callable[[int], str]) -> list[dict[str, list[float]]]:
        lengths = []
        for place, of_request in enumerate(encoded.given):
            if of_request is None:
                message = f"{name(place)}.candidates: found nothing, expected a list of ids of items"
                raise RequestError(message, place)
            lengths.append(len(of_request))
        scores: list[dict[str, list[float]]] = [{} for _ in lengths]
        try:
            for places in parts_of(encoded.given):
                part = encoded.take(places)
                rows = padded(part.given)
                for stage in self.stages:
                    with at_places(places):
                        of_stage = np.where(rows == NO_ITEM, np.nan, stage.score(part, rows))
                    for place, found in zip(places, of_stage.tolist(), strict=True):
                        scores[place][stage.name] = found[: lengths[place]]
        except NotFiniteError as error:
            raise _too_large(error.place, name) from None
        return scores

    # --- the funnel ---------------------------------------------------------------------------------------------

    def _run(self, encoded: EncodedRequests, explain: bool, sampled: NDArray[np.bool_] | None) -> Answers:
        traces: list[list[StageTrace]] = [[] for _ in range(len(encoded))]
        milliseconds: dict[str, float] = {}
        sampled_places = _NO_ROWS if sampled is None else np.flatnonzero(sampled)
        trail_stages: list[StageItems] = []
        rows = None if encoded.candidates[0] is None else padded(encoded.candidates)
        scores: Scores | None = None
        for stage in self.stages:
            begin = perf_counter()
            is_last, is_search = stage is self.stages[-1], rows is None
            order = None
            if rows is None:  # a search keeps all that it finds; its scores are rarely needed
                rows, scores = kept = stage.search(encoded, scored=explain or is_last)
            else:
                scores = stage.score(encoded, rows)
                order = best_order(scores)
                kept = by_row(rows, order[:, : stage.quota]), by_row(scores, order[:, : stage.quota])
            milliseconds[stage.name] = 1000 * (perf_counter() - begin)
            if explain and scores is not None:
                self._trace(stage, rows, scores, milliseconds[stage.name], traces)
            if len(sampled_places):
                counts = encoded.k if is_last else np.full(len(encoded), stage.quota)  # what `k` cuts off is dropped
                of_trail = scores if is_last or not is_search else None  # a search that keeps all needs no scores
                items = StageItems(stage, rows, of_trail, counts, is_search).take(sampled_places)
                trail_stages.append(items.sorted(None if order is None else order[sampled_places]))
            rows, scores = kept
        assert rows is not None  # a bundle has at least one stage,
        assert scores is not None  # and the last one returns scores
        rows, scores = _best_first(rows, scores)
        counts = np.minimum((rows != NO_ITEM).sum(axis=1), encoded.k)
        ids, lists = self._ids(rows, counts.tolist()), scores.tolist()
        rankings = [
            Ranking(
                ids[place],
                lists[place][:count],
                encoded.unknown[place],
                traces[place] if explain else None,
                encoded.notes[place],
            )
            for place, count in enumerate(counts.tolist())
        ]
        if len(sampled_places):
            is_answered = np.arange(rows.shape[1]) < counts[sampled_places, None]
            answered = np.where(is_answered, rows[sampled_places], NO_ITEM)
            of_sampled = encoded if len(sampled_places) == len(encoded) else encoded.take(sampled_places)
            trails = Trails(of_sampled, len(self.items), trail_stages, answered, scores[sampled_places])
            for number, place in enumerate(sampled_places.tolist()):
                rankings[place] = replace(rankings[place], trail=Trail(trails, number))
        return Answers(rankings, milliseconds)

    def _trace(
        self, stage: Stage, rows: Rows, scores: Scores, milliseconds: float, traces: list[list[StageTrace]]
    ) -> None:
        rows, scores = _best_first(rows, scores)
        scored = (rows != NO_ITEM).sum(axis=1).tolist()
        for place, ids in enumerate(self._ids(rows, scored)):
            kept = min(len(ids), stage.quota)
            of_request = scores[place, : len(ids)].tolist()
            threshold = of_request[kept - 1] if kept else None
            traces[place].append(StageTrace(stage.name, ids, of_request, kept, threshold, round(milliseconds, 3)))

    def _ids(self, rows: Rows, counts: Sequence[int]) -> list[list[Id]]:
        """Return the ids of the first `counts` rows of each request."""
        flat, width = self.items.ids(np.maximum(rows, 0).ravel()), rows.shape[1]
        return [flat[place * width : place * width + count] for place, count in enumerate(counts)]

    # --- validation -----------------------------------------------------------------------------------------------

    def _rows(self, ids: Any, where: str, place: int) -> Rows:
        if not isinstance(ids, list | tuple | np.ndarray):
            raise RequestError(f"{where}: found {shown(ids)}, expected a list of ids of items", place)
        if len(ids) > MOST_IDS:
            raise RequestError(f"{where}: found {len(ids):,} ids, expected at most {MOST_IDS:,}", place)
        ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
        try:
            return self.items.rows(ids)
        except BadValueError as error:
            raise RequestError(f"{where}[{error.position}]: {error}", place) from None

    def _count(self, k: Any, where: str, place: int) -> int:
        last = self.stages[-1]
        if k is None:
            return last.quota
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= last.quota:
            expected = f"a whole number from 1 to {last.quota}, which is what {last.name} keeps"
            raise RequestError(f"{where}: found {shown(k)}, expected {expected}", place)
        return int(k)


def _best_first(rows: Rows, scores: Scores) -> tuple[Rows, Scores]:
    """Return the items of each request and their scores, best first."""
    order = best_order(scores)
    return by_row(rows, order), by_row(scores, order)


def _only_request(place: int) -> str:
    return "request"


def _numbered_request(place: int) -> str:
    return f"requests[{place}]"


def _request_name(encoded: EncodedRequests) -> Callable[[int], str]:
    return _only_request if len(encoded) == 1 else _numbered_request


def _too_large(place: int, name: Callable[[int], str]) -> RequestError:
    return RequestError(
        f"{name(place)}: found numbers so large that scores are not finite, expected numbers like those of the log",
        place,
    )


def _one_each(what: str, given: Any, count: int) -> Sequence[Any]:
    if not isinstance(given, list | tuple) or len(given) != count:
        found = f"{len(given)} of them" if isinstance(given, list | tuple) else shown(given)
        raise RankfallError(f"{what}: found {found}, expected a list with one entry for each of {count} requests")
    return given
