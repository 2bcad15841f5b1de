"""Bundles against the models they were made of, brute force, and everything that can be wrong with a request."""

from __future__ import annotations

import datetime as dt
import json
import math
import shutil
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

import faiss

from rankfall.data import ImpressionLoader
from rankfall.models import TwoTower
from rankfall.serving import Bundle, EncodedRequests, RequestError
from rankfall.serving.bundle_files import read_file
from rankfall.serving.export.onnx_graphs import exact_search, write_index
from rankfall.serving.onnx_stages import Index
from rankfall.storage.manifests import seal
from rankfall.training.train_cascade import load_run
from support.bundles import DAYS, platform_bundle, platform_log, platform_run, raw_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.cascade import Cascade
    from rankfall.data import Impressions


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(platform_bundle())


@pytest.fixture(scope="module")
def cascade() -> Cascade:
    return load_run(platform_run())[1]


@pytest.fixture(scope="module")
def impressions() -> Impressions:
    """The test day."""
    return next(iter(ImpressionLoader(platform_log(), DAYS[2], batch=60, shuffle=False)))


@pytest.fixture(scope="module")
def requests(impressions: Impressions) -> list[dict[str, Any]]:
    return [raw_request(impressions, place) for place in range(len(impressions))]


def item_ids() -> list[int]:
    ids: list[int] = platform_log().items()["item"].to_pylist()
    return ids


@torch.no_grad()
def scores_of_all(cascade: Cascade, impressions: Impressions) -> NDArray[np.float32]:
    """The scores of the first stage for all items of the log, by PyTorch."""
    model = cascade.models["retrieval"]
    assert isinstance(model, TwoTower)
    table = platform_log().items()
    names = [feature.name for feature in model.embedding.item_features]
    vectors = model.item_vectors({name: torch.tensor(table[f"item.{name}"].to_numpy()) for name in names})
    scores: NDArray[np.float32] = (model.user_vectors(impressions) @ vectors.T).numpy()
    return scores


# --- the same answers ---------------------------------------------------------------------------------------------


def test_funnels_over_the_log_s_lists_are_those_of_the_cascade(
    bundle: Bundle, cascade: Cascade, impressions: Impressions, requests: list[dict[str, Any]]
) -> None:
    expected = cascade.recommend(impressions)
    items = expected.items(impressions.item)
    lists = [row[row >= 0].tolist() for row in impressions.item]
    found = bundle.rank(requests, candidates=lists, explain=True)
    for place, ranking in enumerate(found):
        assert ranking.ids == items[-1][place].tolist()
        np.testing.assert_allclose(ranking.scores, expected.scores[-1][place], atol=1e-5)
        assert ranking.stages is not None
        for number, stage in enumerate(ranking.stages):
            assert stage.ids[: stage.kept] == items[number][place].tolist()


def test_every_stage_scores_as_its_model(
    bundle: Bundle, cascade: Cascade, impressions: Impressions, requests: list[dict[str, Any]]
) -> None:
    with torch.no_grad():
        expected = dict(zip(cascade.names, cascade(impressions), strict=True))
    found = bundle.score(requests, [row.tolist() for row in impressions.item])
    for place, scores in enumerate(found):
        assert list(scores) == ["retrieval", "ranking"]
        for name, of_stage in scores.items():
            np.testing.assert_allclose(of_stage, expected[name][place], atol=1e-5)


def test_without_a_list_the_best_of_all_items_are_found(
    bundle: Bundle, cascade: Cascade, impressions: Impressions, requests: list[dict[str, Any]]
) -> None:
    ids, scores = item_ids(), scores_of_all(cascade, impressions)
    for place, ranking in enumerate(bundle.rank(requests, explain=True)):
        assert ranking.stages is not None
        retrieval, ranked = ranking.stages
        best = sorted(range(len(ids)), key=lambda row: -scores[place, row])[:25]
        assert retrieval.ids == [ids[row] for row in best]
        np.testing.assert_allclose(retrieval.scores, scores[place, best], atol=1e-5)
        assert set(ranked.ids) == set(retrieval.ids)
        assert ranking.ids == ranked.ids[:10]


def test_a_batch_is_answered_as_its_requests_alone(bundle: Bundle, requests: list[dict[str, Any]]) -> None:
    some = [{}, requests[0], {"sequences": {"history": []}}, *requests[1:4]]
    lists = [None, item_ids()[:40], None, None, item_ids()[30:33], []]
    excluded = [item_ids()[::2], None, None, item_ids()[:100], None, None]
    time = "2024-01-15T10:00:00Z"
    some = [{"time": time, **request} for request in some]
    together = bundle.rank(some, k=[3, None, 10, 1, 5, 2], candidates=lists, exclude=excluded)
    for place, ranking in enumerate(together):
        k = [3, None, 10, 1, 5, 2][place]
        alone = bundle.rank(some[place], k=k, candidates=lists[place], exclude=excluded[place])
        assert alone.ids == ranking.ids
        np.testing.assert_allclose(alone.scores, ranking.scores, atol=1e-5)
    assert [len(ranking.ids) for ranking in together] == [3, 10, 10, 1, 3, 0]


def test_joined_requests_give_same_rankings(bundle: Bundle, requests: list[dict[str, Any]]) -> None:
    parts = [bundle.encode([requests[0]], k=2), bundle.encode([{"time": 0}], candidates=[item_ids()[:5]])]
    parts.append(bundle.encode(requests[1:3], exclude=[None, item_ids()[:9]]))
    answers = bundle.run(EncodedRequests.join(parts))
    apart = [ranking for part in parts for ranking in bundle.run(part).rankings]
    assert [ranking.ids for ranking in answers.rankings] == [ranking.ids for ranking in apart]
    assert list(answers.milliseconds) == bundle.names
    assert bundle.run(bundle.encode([])).rankings == []


def test_batches_are_joined_as_if_they_had_come_together(bundle: Bundle, requests: list[dict[str, Any]]) -> None:
    some = [*requests[:5], {"time": 0}, {"time": 0, "sequences": {"history": requests[5]["sequences"]["history"][:2]}}]
    parts = [bundle.encode([request]) for request in some[:4]]
    joined, together = EncodedRequests.join([*parts, bundle.encode(some[4:])]), bundle.encode(some)
    assert joined.arrays.keys() == together.arrays.keys()
    for name, expected in together.arrays.items():
        np.testing.assert_array_equal(joined.arrays[name], expected)
        assert joined.arrays[name].dtype == expected.dtype


def test_of_equal_scores_the_first_item_wins(
    bundle: Bundle, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of those in the bundle, or of those in the list the one that the stage before liked better."""
    ranking: Any = bundle.stages[1]

    def all_the_same(arrays: dict[str, NDArray[Any]], shape: tuple[int, int]) -> NDArray[np.float32]:
        return np.ones(shape, np.float32)

    monkeypatch.setattr(ranking, "_graph", all_the_same)
    ids = item_ids()
    for request in requests[:5]:
        explained = bundle.rank(request, explain=True)
        assert explained.stages is not None
        assert explained.ids == sorted(explained.stages[0].ids, key=lambda one: ids.index(int(one)))[:10]
        assert bundle.rank(request).ids == explained.ids
        listed = bundle.rank(request, candidates=ids[::-2], explain=True)
        assert listed.stages is not None
        assert listed.ids == listed.stages[0].ids[:10]


def test_the_funnel_is_explained(bundle: Bundle, requests: list[dict[str, Any]]) -> None:
    ranking = bundle.rank(requests[5], k=4, explain=True)
    assert ranking.stages is not None
    retrieval, ranked = ranking.stages
    assert (retrieval.kept, len(retrieval.ids)) == (25, 25)
    assert (ranked.kept, len(ranked.ids)) == (10, 25)
    for stage in (retrieval, ranked):
        assert stage.scores == sorted(stage.scores, reverse=True)
        assert stage.threshold == stage.scores[stage.kept - 1]
        assert stage.milliseconds > 0
    assert ranking.ids == ranked.ids[:4]
    assert ranking.scores == ranked.scores[:4]
    assert bundle.rank(requests[5]).stages is None


def test_many_threads_get_the_same_answers(bundle: Bundle, requests: list[dict[str, Any]]) -> None:
    expected = [bundle.rank(request).ids for request in requests]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda request: bundle.rank(request).ids, requests * 3)) == expected * 3


def test_events_may_come_as_columns(bundle: Bundle, requests: list[dict[str, Any]]) -> None:
    request = max(requests, key=lambda request: len(request["sequences"]["history"]))
    events = request["sequences"]["history"]
    columns: dict[str, Any] = {name: [event[name] for event in events] for name in events[0]}
    as_columns = {**request, "sequences": {"history": columns}}
    assert bundle.rank(as_columns) == bundle.rank(request)
    arrays = {name: np.array(values) for name, values in columns.items()}
    assert bundle.rank({**request, "sequences": {"history": arrays}}) == bundle.rank(request)


def test_of_long_sequences_the_last_events_count(bundle: Bundle, requests: list[dict[str, Any]]) -> None:
    event = requests[0]["sequences"]["history"][0]
    longer = {**requests[1], "sequences": {"history": [{"video_id": "old"}] * 5 + [event] * 50}}
    last = {**requests[1], "sequences": {"history": [event] * 50}}
    assert bundle.rank(longer) == bundle.rank(last)


def test_a_request_without_time_is_one_of_now(bundle: Bundle, requests: list[dict[str, Any]]) -> None:
    user = {"user": requests[0]["user"]}
    before = bundle.encode([{**user, "time": dt.datetime.now(dt.UTC)}]).arrays
    now = bundle.encode([user]).arrays
    after = bundle.encode([{**user, "time": dt.datetime.now(dt.UTC)}]).arrays
    assert now["context.minute"][0] in (before["context.minute"][0], after["context.minute"][0])
    given = bundle.encode([{**user, "time": "2024-01-15T02:00:00+00:00"}]).arrays
    assert given["context.hour"][0] == 10 + 2  # the log's zone is Shanghai
    with pytest.raises(RequestError, match="derived from `time`"):
        bundle.encode([{**user, "context": {"hour": {"id": 7}}}])


@pytest.mark.parametrize("hour", [3, 99, "2024-01-15T10:00:00+08:00"])
def test_what_follows_from_the_time_is_not_given(bundle: Bundle, hour: object) -> None:
    """Whoever gives the hour itself must not have it taken for milliseconds since 1970."""
    with pytest.raises(
        ValueError, match=r"request\.context\.hour: found .*, expected nothing, because it is derived from `time`"
    ):
        bundle.rank({"context": {"hour": hour}})


# --- candidates and exclusions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 30, 300, "all but 7", "all"])
def test_what_is_excluded_is_never_answered(
    bundle: Bundle, cascade: Cascade, impressions: Impressions, requests: list[dict[str, Any]], count: int | str
) -> None:
    ids, scores = item_ids(), scores_of_all(cascade, impressions)[:4]
    number = {"all but 7": len(ids) - 7, "all": len(ids)}.get(str(count), count)
    best_first = np.argsort(-scores, axis=1)
    excluded = [[ids[row] for row in order[:number]] for order in best_first]
    found = bundle.rank(requests[:4], exclude=[[*one, 10**9] for one in excluded], explain=True)
    for place, ranking in enumerate(found):
        assert ranking.stages is not None
        left = [ids[row] for row in best_first[place][number:]]
        assert ranking.stages[0].ids == left[:25]
        assert len(ranking.ids) == min(10, len(left))


def test_candidates_count_once_and_those_not_known_are_named(bundle: Bundle, requests: list[dict[str, Any]]) -> None:
    ids = item_ids()
    twice = bundle.rank(requests[0], candidates=[ids[3], ids[5], ids[3], 10**12, -4, ids[8]], exclude=[ids[8]])
    assert twice.ids == bundle.rank(requests[0], candidates=[ids[3], ids[5]]).ids
    assert sorted(twice.ids) == sorted([ids[3], ids[5]])
    assert twice.unknown == [10**12, -4]
    nothing = bundle.rank(requests[0], candidates=[10**12], explain=True)
    assert (nothing.ids, nothing.scores, nothing.unknown) == ([], [], [10**12])
    assert nothing.stages is not None
    assert nothing.stages[0].threshold is None
    scores = bundle.score(requests[0], [ids[3], 10**12])
    assert not math.isnan(scores["ranking"][0])
    assert math.isnan(scores["ranking"][1])


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> tuple[Index, NDArray[np.float32], NDArray[np.float32]]:
    """An index in lists that looks at few of them."""
    random = np.random.default_rng(0)
    vectors, queries = (random.normal(size=(n, 6)).astype(np.float32) for n in (3000, 20))
    path: Path = tmp_path_factory.mktemp("index")
    about = write_index(vectors, queries, path, quota=5, recall=0.5, exact_below=0)
    assert about["nprobe"] < about["lists"] / 4
    return Index(read_file(path / "items.faiss"), about, 1), vectors, queries


def test_an_index_in_lists_looks_further_until_there_is_enough(
    lists: tuple[Index, NDArray[np.float32], NDArray[np.float32]],
) -> None:
    index, vectors, queries = lists
    np.testing.assert_array_equal(index.vectors(np.array([[5, 7]])), vectors[[[5, 7]]])
    order = exact_search(vectors, queries, 3000)
    nothing = np.empty(0, np.int64)
    for count in (1, 200, 2990, 3000):
        for depth in (0, 5, 100):
            excluded = [np.sort(row[:depth]) if place % 2 else nothing for place, row in enumerate(order)]
            rows = index.search(queries, count, excluded)
            for place, row in enumerate(rows):
                real = row[row >= 0]
                assert len(set(real)) == len(real) == min(count, 3000 - len(excluded[place]))
                assert not np.isin(real, excluded[place]).any()


class Forgetful:
    """Parameters of a search that keep nothing alive, as those of older releases of faiss."""

    def __init__(self, **given: Any) -> None:
        pass

    def __setattr__(self, name: str, value: Any) -> None:
        pass


@pytest.mark.parametrize("kind", ["SearchParameters", "SearchParametersIVF"])
def test_what_is_excluded_lives_until_the_search_is_over(
    lists: tuple[Index, NDArray[np.float32], NDArray[np.float32]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, _, queries = lists
    made: list[weakref.ref[Any]] = []

    def noting(make: Callable[[Any], Any], of: Any) -> Any:
        selector = make(of)
        made.append(weakref.ref(selector))
        return selector

    class Searched:
        d, ntotal, searches = 7, 3000, 0

        def search(self, queries: Any, count: int, params: Any) -> tuple[None, NDArray[np.int64]]:
            Searched.searches += 1
            assert len(made) == 2
            assert all(selector() is not None for selector in made)
            return None, np.arange(10, 10 + count)[None]

    for name in ("IDSelectorBatch", "IDSelectorNot"):
        monkeypatch.setattr(faiss, name, partial(noting, getattr(faiss, name)))
    monkeypatch.setattr(faiss, kind, Forgetful)
    monkeypatch.setattr(index, "_lists", 1 if kind == "SearchParameters" else index._lists)
    monkeypatch.setattr(index, "_index", Searched())
    index.search(queries[:1], 5, [np.arange(10)])
    assert Searched.searches == 1


def test_an_index_uses_the_threads_that_it_may(
    lists: tuple[Index, NDArray[np.float32], NDArray[np.float32]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both calls of faiss take as many as there are unless they are told; what others use stays as it was."""
    index, vectors, queries = lists
    inner: Any = index._index
    seen: dict[str, int] = {}

    class Noting:
        d, ntotal = inner.d, inner.ntotal

        def __getattr__(self, name: str) -> Any:
            seen[name] = faiss.omp_get_max_threads()
            return getattr(inner, name)

    monkeypatch.setattr(index, "_index", Noting())
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        np.testing.assert_array_equal(index.vectors(np.arange(2000)), vectors[:2000])
        index.search(queries, 5, [np.arange(10)] * len(queries))
        assert seen == {"reconstruct_batch": 1, "search": 1}
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)


def test_the_best_of_what_is_left_are_found_whatever_is_excluded(tmp_path: Path) -> None:
    """A search in the lists that hold the excluded items would find half of them."""
    random = np.random.default_rng(1)
    vectors, queries = (random.normal(size=(n, 6)).astype(np.float32) for n in (8000, 80))
    nothing = np.empty(0, np.int64)
    for recall in (0.95, 1.0):
        about = write_index(vectors, queries, tmp_path, quota=20, recall=recall, exact_below=0)
        index = Index(read_file(tmp_path / "items.faiss"), about, 1)
        for depth in (0, 10, 100, 500):
            order = np.argsort(-(queries @ vectors.T), axis=1)
            excluded = [np.sort(row[:depth]) if depth else nothing for row in order]
            left = order[:, depth : depth + 20]
            found = index.search(queries, 20, excluded)
            share = np.mean([len(set(rows) & set(best)) / 20 for rows, best in zip(found, left, strict=True)])
            assert share >= (1 if recall == 1 else 0.92)
        # what one request excludes is nothing to the others
        mixed = [excluded[0], nothing, *[nothing] * 78]
        np.testing.assert_array_equal(index.search(queries, 20, mixed)[0], found[0])
        alone = index.search(queries, 20, [nothing] * 80)
        np.testing.assert_array_equal(index.search(queries, 20, mixed)[1:], alone[1:])


# --- what is wrong with requests ----------------------------------------------------------------------------------

EVENT = {"video_id": 1}
WRONG: list[tuple[Any, str]] = [
    (7, r"requests\[1\]: found 7, expected parts of a request by name"),
    ({"usr": {}}, r"requests\[1\].usr: found 'usr', did you mean 'user'; allowed are time, user, context, sequences"),
    ({"user": []}, r"requests\[1\].user: found \[\], expected features by name"),
    ({"user": {"agee": 3}}, r"requests\[1\].user.agee: found 'agee', did you mean 'age'"),
    ({"user": {"age": "old"}}, r"requests\[1\].user.age: found 'old', expected a whole number from 0 on"),
    ({"user": {"age": -1}}, r"requests\[1\].user.age: found -1"),
    ({"user": {"age": math.nan}}, r"requests\[1\].user.age: found nan"),
    ({"time": "soon"}, r"requests\[1\].time: found 'soon', expected a time such as"),
    ({"context": {"hour": "soon"}}, r"requests\[1\].context.hour: found 'soon', expected nothing, because"),
    ({"sequences": 0}, r"requests\[1\].sequences: found 0, expected sequences by name"),
    ({"sequences": {"past": []}}, r"requests\[1\].sequences.past: found 'past'"),
    ({"sequences": {"history": 0}}, r"requests\[1\].sequences.history: found 0, expected a list of events"),
    ({"sequences": {"history": "abc"}}, r"requests\[1\].sequences.history: found 'abc', expected a list of events"),
    ({"sequences": {"history": [EVENT, 3]}}, r"sequences.history\[1\]: found 3, expected an event with features"),
    ({"sequences": {"history": [{"video": 3}]}}, r"sequences.history.video: found 'video', did you mean 'video_id'"),
    ({"sequences": {"history": [EVENT] * 60 + [{"video_id": "x"}]}}, r"history\[60\].video_id: found 'x'"),
    ({"sequences": {"history": {"video_id": 3}}}, r"history.video_id: found 3, expected a list with a value for each"),
    ({"sequences": {"history": {"video_id": [3], "author_id": []}}}, r"found columns of \[0, 1\] events"),
]


@pytest.mark.parametrize(("bad", "message"), WRONG)
def test_a_bad_request_is_named(bundle: Bundle, requests: list[dict[str, Any]], bad: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        bundle.rank([requests[0], bad, requests[1]])
    assert error.value.request == 1
    if isinstance(bad, dict):
        with pytest.raises(RequestError, match=message.replace(r"requests\[1\]", "request")):
            bundle.rank(bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, r"requests\[0\].k: found 0, expected a whole number from 1 to 10, which is what ranking keeps"),
        ({"k": [3, 11]}, r"requests\[1\].k: found 11"),
        ({"k": [3, True]}, r"requests\[1\].k: found True"),
        ({"k": [3]}, r"k: found 1 of them, expected a list with one entry for each of 2 requests"),
        ({"candidates": [1, 2]}, r"requests\[0\].candidates: found 1, expected a list of ids of items"),
        ({"candidates": [[1, "x"], None]}, r"requests\[0\].candidates\[1\]: found 'x', expected an id of an item"),
        ({"exclude": [None, [1.5]]}, r"requests\[1\].exclude\[0\]: found 1.5"),
        (
            {"candidates": [None, [1] * 100_001]},
            r"requests\[1\].candidates: found 100,001 ids, expected at most 100,000",
        ),
        ({"exclude": [[1] * 100_001, None]}, r"requests\[0\].exclude: found 100,001 ids, expected at most 100,000"),
        ({"exclude": [None, [10**5000]]}, r"requests\[1\].exclude\[0\]: found int that is too long to write out"),
        ({"exclude": "7"}, "exclude: found '7', expected a list with one entry for each of 2 requests"),
    ],
)
def test_bad_options_are_named(bundle: Bundle, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bundle.rank([{}, {}], **options)


JSON = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats()
    | strategies.text(max_size=5),
    lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(
            strategies.sampled_from(["id", "age", "video_id", "history", "hour"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
PARTS = strategies.fixed_dictionaries(
    {},
    optional={
        "time": JSON,
        "user": strategies.fixed_dictionaries({}, optional={"age": JSON, "user_id": JSON}) | JSON,
        "context": strategies.fixed_dictionaries({}, optional={"hour": JSON}) | JSON,
        "sequences": strategies.fixed_dictionaries({}, optional={"history": strategies.lists(JSON) | JSON}) | JSON,
    },
)


@given(request=PARTS | JSON, candidates=JSON, excluded=JSON, k=JSON)
@settings(max_examples=150)
def test_arbitrary_request_is_answered_or_refused(
    bundle: Bundle, request: Any, candidates: Any, excluded: Any, k: Any
) -> None:
    each: list[dict[str, Any]] = [{}, {"candidates": [candidates]}, {"exclude": [excluded], "k": [k]}]
    for options in each:
        refused, rankings = "", []
        try:
            rankings = bundle.rank([request], **options)
        except RequestError as error:
            refused = str(error)
        assert refused.startswith("requests[0]") or len(rankings) == 1


def test_numbers_that_are_too_large_for_a_model_are_named(
    bundle: Bundle, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    retrieval: Any = bundle.stages[0]
    tower = retrieval._tower

    def overflowing(arrays: dict[str, NDArray[Any]], shape: tuple[int, int]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = tower(arrays, shape)
        return np.where(arrays["user.age"][:, None] == 0, np.float32(1e30), vectors)

    monkeypatch.setattr(retrieval, "_tower", overflowing)
    without_age = {**requests[1], "user": {}}
    with pytest.raises(RequestError, match=r"requests\[2\]: found numbers so large") as error:
        bundle.rank([requests[0], requests[1], without_age], candidates=[None, item_ids()[:3], None])
    assert error.value.request == 2
    with pytest.raises(RequestError, match=r"^request: found numbers so large"):
        bundle.rank(without_age)
    with pytest.raises(RequestError, match=r"^request: found numbers so large"):
        bundle.score(without_age, item_ids()[:3])


def test_what_pads_lists_is_never_too_large(
    bundle: Bundle, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorter lists are padded with the first item, whose scores nobody asked for."""
    ids = item_ids()
    lists = [ids[1:9], ids[1:2]]
    expected = bundle.rank(requests[:2], candidates=lists)
    ranking: Any = bundle.stages[1]
    gather, graph = ranking._items.gather, ranking._graph
    seen: list[NDArray[np.bool_]] = []

    def noting(name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        seen[:] = [rows == 0]
        values: NDArray[Any] = gather(name, rows)
        return values

    def overflowing(arrays: dict[str, NDArray[Any]], shape: tuple[int, int]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = graph(arrays, shape)
        return np.where(seen[0], np.float32(np.inf), scores)

    monkeypatch.setattr(ranking._items, "gather", noting)
    monkeypatch.setattr(ranking, "_graph", overflowing)
    assert bundle.rank(requests[:2], candidates=lists) == expected
    with pytest.raises(RequestError, match=r"requests\[1\]: found numbers so large"):
        bundle.rank(requests[:2], candidates=[ids[1:9], ids[:1]])


def test_many_candidates_are_ranked_in_parts(
    bundle: Bundle, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = item_ids()
    lists = [ids[:90], None, ids[5:6], ids[40:100], [], ids[7:30]]
    options: dict[str, Any] = {"candidates": lists, "exclude": [None, ids[:5], None, ids[50:], None, None]}
    expected = bundle.rank(requests[:6], **options)
    given = [one or [] for one in lists]
    scores = bundle.score(requests[:6], given)
    monkeypatch.setattr("rankfall.serving.request_encoder._MOST_PADDED", 100)
    for one, other in zip(bundle.rank(requests[:6], **options), expected, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    for found, wanted in zip(bundle.score(requests[:6], given), scores, strict=True):
        for stage in bundle.names:
            np.testing.assert_allclose(found[stage], wanted[stage], atol=1e-5)


def test_nothing_at_all_is_a_request(bundle: Bundle) -> None:
    assert len(bundle.rank({}).ids) == 10
    assert len(bundle.rank({"user": None, "sequences": {"history": None}}).ids) == 10
    assert bundle.rank([]) == []
    with pytest.raises(ValueError, match="requests: found 'x', expected a request or a list of them"):
        bundle.rank("x")  # type: ignore[arg-type]


# --- files --------------------------------------------------------------------------------------------------------


def test_serving_needs_neither_torch_nor_polars() -> None:
    program = (
        "import sys\n"
        "from rankfall.serving import Bundle\n"
        "bundle = Bundle.load(sys.argv[1])\n"
        "bundle.check()\n"
        "print([name for name in ('torch', 'polars', 'pydantic', 'onnx', 'pickle') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(platform_bundle())], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.replace("'", '"')) in ([], ["pickle"])  # numpy itself knows pickle


def test_examples_are_answered_as_at_export(bundle: Bundle) -> None:
    bundle.check()
    for example in bundle.examples():
        assert bundle.rank(example["request"]).ids == example["ids"]
    stages = [replace_quota(bundle.stages[0], 12), bundle.stages[1]]
    other = Bundle(bundle.path, bundle.manifest, bundle.items, {}, stages, bundle.examples())
    with pytest.raises(ValueError, match="answers its example 0 differently"):
        other.check()


def test_other_items_with_the_same_scores_are_noticed(bundle: Bundle) -> None:
    examples = bundle.examples()
    swapped = [{**example, "ids": [example["ids"][1], example["ids"][0], *example["ids"][2:]]} for example in examples]
    with pytest.raises(ValueError, match="answers its example 0 differently"):
        Bundle(bundle.path, bundle.manifest, bundle.items, {}, bundle.stages, swapped).check()
    strangers = [{**example, "ids": [10**9, *example["ids"][1:]]} for example in examples]
    with pytest.raises(ValueError, match="answers its example 0 differently"):
        Bundle(bundle.path, bundle.manifest, bundle.items, {}, bundle.stages, strangers).check()
    # but of equal ones either may come first, and either may be the last
    tied = [{**example, "ids": [*example["ids"][:-1], 10**9]} for example in examples]
    Bundle(bundle.path, bundle.manifest, bundle.items, {}, bundle.stages, tied).check()


def replace_quota(stage: Any, quota: int) -> Any:
    copy = object.__new__(type(stage))
    copy.__dict__.update(stage.__dict__, quota=quota)
    return copy


def test_requests_follow_the_schema(bundle: Bundle) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = bundle.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    for example in bundle.examples():
        check.validate(example["request"])
    as_json = [bad for bad, _ in WRONG if not isinstance(bad, dict) or "nan" not in repr(bad)]
    # that times can be read, and that columns have one length, no schema says
    beyond = [{"time": "soon"}, WRONG[-1][0]]
    for bad in as_json:
        assert check.is_valid(bad) == (bad in beyond)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    path: Path = shutil.copytree(platform_bundle(), tmp_path / "bundle")
    return path


def change_manifest(path: Path, **changes: Any) -> None:
    """Change a manifest as somebody would who knows how it is sealed."""
    manifest = json.loads((path / "manifest.json").read_text()) | changes
    (path / "manifest.json").write_text(json.dumps(manifest | {"sha256": seal(manifest)}))


def test_damage_is_noticed(copied: Path) -> None:
    for file in sorted(path for path in copied.rglob("*") if path.is_file() and path.name != "manifest.json"):
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        with pytest.raises(ValueError, match=f"{file} has .* bytes, its manifest says"):
            Bundle.load(copied)
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(ValueError, match=f"{file} has changed since it was written"):
            Bundle.load(copied)
        file.unlink()
        with pytest.raises(ValueError, match=f"{file} is missing"):
            Bundle.load(copied)
        file.write_bytes(content)
    Bundle.load(copied)


def test_a_manifest_that_was_changed_is_noticed(copied: Path) -> None:
    file = copied / "manifest.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps(written, indent=3))  # which says the same
    assert Bundle.load(copied).quotas == [25, 10]
    written["stages"][0]["quota"] = 24
    file.write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"manifest\.json has changed since it was written"):
        Bundle.load(copied)


def test_examples_are_those_that_were_verified(copied: Path) -> None:
    bundle = Bundle.load(copied)
    (copied / "examples.json").write_text("[]")
    assert len(bundle.examples()) == 16


@pytest.mark.parametrize("name", ["/elsewhere", "..", ".", "", "a/b", "../other"])
def test_names_that_lead_elsewhere_are_refused(copied: Path, tmp_path: Path, name: str) -> None:
    """A file outside of the bundle would be opened without its checksum."""
    name = str(tmp_path / "elsewhere") if name == "/elsewhere" else name
    shutil.copytree(copied / "stages/retrieval", tmp_path / "elsewhere")
    manifest = json.loads((copied / "manifest.json").read_text())
    retrieval, ranking = manifest["stages"]
    # as if it were a file of the bundle with a good checksum
    files = manifest["files"] | {
        f"stages/{name}/{file}": manifest["files"][f"stages/retrieval/{file}"] for file in ("user.onnx", "items.faiss")
    }
    change_manifest(copied, stages=[retrieval | {"name": name}, ranking], files=files)
    with pytest.raises(ValueError, match="is damaged, it names a table or a stage"):
        Bundle.load(copied)
    change_manifest(copied, stages=[retrieval, ranking], vocabularies=[name], files=manifest["files"])
    with pytest.raises(ValueError, match="is damaged, it names a table or a stage"):
        Bundle.load(copied)


def test_what_is_no_bundle_of_this_release_is_refused(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a bundle"):
        Bundle.load(tmp_path)
    files = json.loads((copied / "manifest.json").read_text())["files"]
    change_manifest(copied, files=files | {"../../etc/passwd": {"bytes": 1, "sha256": ""}})
    with pytest.raises(ValueError, match="damaged, it names the file"):
        Bundle.load(copied)
    change_manifest(copied, files={})
    with pytest.raises(ValueError, match=r"damaged, it has no checksum of items\.arrow"):
        Bundle.load(copied)
    change_manifest(copied, version=99)
    with pytest.raises(ValueError, match="format version 99, this release reads version 1"):
        Bundle.load(copied)
    change_manifest(copied, version=1, files=files)
    manifest = json.loads((copied / "manifest.json").read_text())
    change_manifest(copied, stages=[{"name": "retrieval", "kind": "index"}])
    with pytest.raises(ValueError, match="is damaged, or was not written by"):
        Bundle.load(copied)
    del manifest["stages"]
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="it has no 'stages'"):
        Bundle.load(copied)
