"""The spec of a full-stage log: every key, and what is said about every mistake."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from rankfall._config import ConfigError
from rankfall.data.impressions import spec as spec_module
from rankfall.data.impressions.spec import (
    Categorical,
    Dense,
    Feature,
    Features,
    Sequence,
    Spec,
    Time,
    features_of,
    is_dense,
    load_spec,
    table_of,
    validate_spec,
)

if TYPE_CHECKING:
    from pathlib import Path

FULL: dict[str, Any] = {
    "request": "request_id",
    "item": "video_id",
    "user": "user_id",
    "time": {"column": "request_timestamp", "unit": "ms", "zone": "Asia/Shanghai"},
    "day": "date",
    "stage": "stage",
    "rank": "rank",
    "stages": [
        {"name": "prerank_neg", "sample": 10},
        {"name": "rank_neg"},
        {"name": "rank_pos", "sample": 5},
    ],
    "relevant": "rank_pos",
    "feedback": ["effective_view", "long_view"],
    "negatives": 3,
    "features": {
        "user": {
            "user_id": {"kind": "categorical", "num_buckets": 40000},
            "age": {"kind": "dense", "column": "years", "standardise": True, "missing": 0},
            "vector": {"kind": "dense", "size": 4},
        },
        "context": {
            "hour": {"kind": "time", "part": "hour"},
            "weekday": {"kind": "time", "part": "weekday", "embedding": "weekday"},
        },
        "item": {
            "video_id": {"kind": "categorical", "vocabulary": {"min_count": 2, "max_size": 1000}, "embedding": "video"},
            "author_id": {"kind": "categorical", "hash_bucket_size": 100000, "column": "author"},
            "duration": {"kind": "dense", "log1p": True, "bucketize": 10},
            "price": {"kind": "dense", "bucketize": [1, 2.5, 1e3]},
            "uploaded": {"kind": "time", "part": "weekday", "column": "upload", "unit": "s", "embedding": "weekday"},
        },
    },
    "sequences": {
        "history": {"max_length": 20, "features": ["video_id", "author_id"], "feedback": "effective_view"},
        "searches": {"features": ["video_id"], "columns": {"video_id": "searched"}},
    },
}
LEAST: dict[str, Any] = {"time": "when", "stages": [{"name": "all"}], "relevant": {"column": "click"}}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The full spec with another value at a dotted path; `...` removes the key."""
    content = copy.deepcopy(FULL)
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    part: Any = content
    for key in parents:
        part = part[key]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return content


# --- what is allowed ----------------------------------------------------------------------------------------------


def test_every_key_is_kept() -> None:
    spec = validate_spec(FULL)
    assert (spec.request, spec.item, spec.user, spec.day) == ("request_id", "video_id", "user_id", "date")
    assert (spec.stage, spec.rank, spec.negatives) == ("stage", "rank", 3)
    assert spec.time is not None
    assert (spec.time.column, spec.time.unit, spec.zone) == ("request_timestamp", "ms", "Asia/Shanghai")
    assert spec.stage_names == ["prerank_neg", "rank_neg", "rank_pos"]
    assert [stage.sample for stage in spec.stages] == [10, None, 5]
    assert (spec.relevant.stage, spec.relevant.column) == ("rank_pos", None)
    assert spec.feedback == ["effective_view", "long_view"]
    user, context, item = spec.features.user, spec.features.context, spec.features.item
    assert user["user_id"] == Categorical(num_buckets=40000)
    assert user["age"] == Dense(column="years", standardise=True, missing=0.0)
    assert user["vector"] == Dense(size=4)
    assert context["hour"] == Time(part="hour")
    assert item["author_id"] == Categorical(hash_bucket_size=100000, column="author")
    assert item["price"] == Dense(bucketize=[1.0, 2.5, 1000.0])
    assert item["uploaded"] == Time(part="weekday", column="upload", unit="s", embedding="weekday")
    video = item["video_id"]
    assert isinstance(video, Categorical)
    assert video.vocabulary is not None
    assert (video.vocabulary.min_count, video.vocabulary.max_size, video.embedding) == (2, 1000, "video")
    history, searches = spec.sequences["history"], spec.sequences["searches"]
    assert (history.max_length, history.features, history.feedback) == (20, ["video_id", "author_id"], "effective_view")
    assert (searches.max_length, searches.columns) == (50, {"video_id": "searched"})


def test_the_least_that_is_needed() -> None:
    spec = validate_spec(LEAST)
    assert (spec.request, spec.item, spec.user, spec.stage, spec.rank) == ("request_id", "item_id", None, None, None)
    assert spec.time is not None
    assert (spec.time.column, spec.time.unit, spec.zone) == ("when", None, "UTC")
    assert (spec.feedback, spec.negatives, list(spec.features), spec.sequences) == ([], 0, [], {})


def test_groups_come_in_order() -> None:
    names = [(group, name) for group, name, _ in validate_spec(FULL).features]
    expected = [(group, name) for group in ("user", "context", "item") for name in FULL["features"][group]]
    assert names == expected


@pytest.mark.parametrize("value", [True, {}, {"min_count": 1}])
def test_ways_to_ask_for_a_vocabulary(value: object) -> None:
    assert validate_spec(changed("features.user.user_id", {"kind": "categorical", "vocabulary": value}))


def test_a_vocabulary_that_is_not_wanted() -> None:
    content = changed("features.user.user_id", {"kind": "categorical", "vocabulary": False, "num_buckets": 3})
    assert validate_spec(content).features.user["user_id"] == Categorical(num_buckets=3)


@pytest.mark.parametrize("relevant", ["rank_neg", {"stage": "rank_neg"}])
def test_relevant_is_a_stage_by_its_name(relevant: object) -> None:
    assert validate_spec(changed("relevant", relevant)).relevant.stage == "rank_neg"


def test_stages_by_flags() -> None:
    content = changed("stage", ...) | {"stages": [{"name": "a", "flag": "is_a"}, {"name": "b", "flag": "is_b"}]}
    spec = validate_spec(content | {"relevant": "b"})
    assert [stage.flag for stage in spec.stages] == ["is_a", "is_b"]


def test_parts_named_by_a_column() -> None:
    spec = validate_spec({"day": "split", "stages": [{"name": "all"}], "relevant": "all"})
    assert (spec.time, spec.day, spec.zone) == (None, "split", "UTC")


def test_the_example_of_the_module_is_valid() -> None:
    document = spec_module.__doc__ or ""
    example = document.split(".. code-block:: yaml")[1].split("Every categorical")[0]
    spec = validate_spec(yaml.safe_load(example))
    assert spec.stage_names == ["prerank_neg", "rank_neg", "rank_pos"]


@pytest.mark.parametrize("content", [FULL, LEAST], ids=["full", "least"])
def test_a_description_survives_json(content: dict[str, Any]) -> None:
    """As manifests keep it: without the keys that have no value."""
    spec = validate_spec(content)
    stored = json.loads(json.dumps(spec.model_dump(mode="json", exclude_none=True)))
    assert validate_spec(stored) == spec


def test_a_description_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(FULL))
    assert load_spec(tmp_path / "spec.yaml") == validate_spec(FULL)


# --- what is not ----------------------------------------------------------------------------------------------------

MISTAKES: list[tuple[str, object, str]] = [
    # keys
    (
        "relevent",
        [],
        "unknown key 'relevent', did you mean 'relevant'; allowed are request, item, user, time, day, stage,",
    ),
    ("features.users", {}, "features: unknown key 'users', did you mean 'user'; allowed are user, context, item"),
    (
        "features.user.user_id.num_bucket",
        3,
        "features.user.user_id: unknown key 'num_bucket', did you mean 'num_buckets'",
    ),
    ("features.user.age.standardize", True, "features.user.age: unknown key 'standardize', did you mean 'standardise'"),
    ("features.context.hour.parts", "x", "features.context.hour: unknown key 'parts', did you mean 'part'"),
    ("stages.1.samples", 3, "stages.1: unknown key 'samples', did you mean 'sample'; allowed are name, sample, flag"),
    ("time.zones", "UTC", "time: unknown key 'zones', did you mean 'zone'; allowed are column, unit, zone"),
    ("relevant", {"stages": "x"}, "relevant: unknown key 'stages', did you mean 'stage'; allowed are stage, column"),
    (
        "sequences.history.length",
        3,
        "sequences.history: unknown key 'length', did you mean 'max_length'; allowed are max_length, features,",
    ),
    (
        "features.item.video_id.vocabulary.minimum",
        3,
        "features.item.video_id.vocabulary: unknown key 'minimum'",
    ),
    # what is missing
    ("stages", ..., "stages: missing; expected the stages that the column 'stage' names"),
    ("relevant", ..., "relevant is missing"),
    ("stages.0.name", ..., "stages.0.name is missing"),
    ("time.column", ..., "time.column is missing"),
    ("features.context.hour.part", ..., "features.context.hour.part is missing"),
    ("sequences.history.features", ..., "sequences.history.features is missing"),
    ("stage", ..., "stage: missing; without this column every stage needs a flag"),
    ("time", ..., "sequences.history: sequences of feedback need both `user` and `time`"),
    ("user", ..., "sequences.history: sequences of feedback need both `user` and `time`"),
    # types
    ("request", 3, "request: found 3, expected a valid string"),
    ("negatives", "many", "negatives: found 'many', expected a valid integer"),
    ("negatives", 1.5, "negatives: found 1.5, expected a valid integer"),
    ("negatives", -1, "negatives: found -1, expected greater than or equal to 0"),
    ("stages", {}, "stages: found {}, expected a valid list"),
    ("stages", [], "stages: found [], expected"),
    ("stages.0", "first", "stages.0: found 'first', expected keys and values"),
    ("stages.0.sample", 0, "stages.0.sample: found 0, expected greater than or equal to 1"),
    ("feedback", "click", "feedback: found 'click', expected a valid list"),
    ("time", 3, "time: found 3, expected keys and values"),
    ("relevant", 3, "relevant: found 3, expected keys and values"),
    ("features", [], "features: found [], expected keys and values"),
    ("sequences.history.max_length", 0, "sequences.history.max_length: found 0, expected greater than or equal to 1"),
    ("sequences.history.features", [], "sequences.history.features: found [], expected"),
    ("features.user.age.missing", float("nan"), "features.user.age.missing: found nan, expected a finite number"),
    (
        "features.user.age.missing",
        "indicators",
        "age.missing: found 'indicators', did you mean 'indicator', expected a finite number, or indicator",
    ),
    ("features.user.age.standardise", 1, "features.user.age.standardise: found 1, expected a valid boolean"),
    ("features.user.user_id.num_buckets", 0, "num_buckets: found 0, expected greater than or equal to 1"),
    ("features.user.user_id.num_buckets", True, "num_buckets: found True, expected a valid integer"),
    ("features.user.user_id.num_buckets", 2**31 - 2, "num_buckets: found 2147483646, expected less than 2147483646"),
    ("features.item.author_id.hash_bucket_size", 2**40, "hash_bucket_size: found 1099511627776, expected less than"),
    ("features.item.video_id.vocabulary", "all", "features.item.video_id.vocabulary: found 'all', expected"),
    ("features.item.video_id.vocabulary.min_count", 0, "min_count: found 0, expected greater than or equal to 1"),
    ("features.user.vector.size", 0, "features.user.vector.size: found 0, expected greater than or equal to 1"),
    # words
    ("time.unit", "sec", "time.unit: found 'sec'; allowed are s, ms, us"),
    ("time.zone", "Asia/Shangai", "time.zone: found 'Asia/Shangai', expected the name of a time zone such as UTC"),
    ("time.zone", "", "time.zone: found '', expected the name of a time zone"),
    ("time.zone", "../../etc/passwd", "time.zone: found '../../etc/passwd', expected the name of a time zone"),
    ("features.context.hour.part", "hours", "features.context.hour.part: found 'hours', did you mean 'hour'; allowed"),
    ("features.user.age.kind", "dens", "features.user.age.kind: found 'dens', did you mean 'dense'; allowed are"),
    ("features.user.age", {}, "features.user.age.kind: found 'nothing'; allowed are categorical, dense, time"),
    ("features.user.age", "dense", "features.user.age.kind: found 'nothing'; allowed are categorical, dense, time"),
    # names
    ("stages.0.name", "pre rank", "stages.0.name: found 'pre rank', expected a name of letters, digits, '_' and '-'"),
    ("stages.0.name", "", "stages.0.name: found '', expected a name"),
    ("features.item.9th", {"kind": "dense"}, "found '9th', expected a name of letters, digits, '_' and '-'"),
    ("features.user.user_id.embedding", "a.b", "features.user.user_id.embedding: found 'a.b', expected a name"),
    ("features.user", {"user.age": {"kind": "dense"}}, "found 'user.age', expected a name"),
    ("sequences", {"a/b": FULL["sequences"]["history"]}, "found 'a/b', expected a name"),
    # ids
    (
        "features.user.user_id",
        {"kind": "categorical"},
        "features.user.user_id: found none of them, expected one of num_buckets, hash_bucket_size, vocabulary",
    ),
    (
        "features.user.user_id.vocabulary",
        True,
        "features.user.user_id: found num_buckets and vocabulary, expected one of num_buckets, hash_bucket_size, voc",
    ),
    (
        "features.item.author_id.num_buckets",
        3,
        "features.item.author_id: found num_buckets and hash_bucket_size, expected one of",
    ),
    (
        "features.user.user_id.embedding",
        "video",
        "features: item.video_id and user.user_id share the embedding 'video', but define its ids differently",
    ),
    (
        "features.item.uploaded.part",
        "month",
        "features: item.uploaded and context.weekday share the embedding 'weekday', but define its ids differently",
    ),
    (
        "features.item.author_id.embedding",
        "weekday",
        "features: item.author_id and context.weekday share the embedding 'weekday', but define its ids differently",
    ),
    # numbers
    ("features.item.duration.bucketize", 1, "features.item.duration.bucketize: found 1, expected 2 to 1000000 buckets"),
    (
        "features.item.price.bucketize",
        [],
        "features.item.price.bucketize: found [], expected numbers in increasing order",
    ),
    ("features.item.price.bucketize", [1, 1], "bucketize: found [1.0, 1.0], expected numbers in increasing order"),
    ("features.item.price.bucketize", [2, 1], "bucketize: found [2.0, 1.0], expected numbers in increasing order"),
    (
        "features.item.duration.standardise",
        True,
        "features.item.duration: bucketize: found with standardise or size > 1, expected",
    ),
    (
        "features.item.duration.size",
        2,
        "features.item.duration: bucketize: found with standardise or size > 1, expected",
    ),
    ("features.context.hour.unit", "s", "features.context.hour: unit: found without a column; the time of the request"),
    # what belongs together
    ("stages.1.name", "prerank_neg", "stages: 'prerank_neg' occurs twice"),
    ("feedback", ["like", "like"], "feedback: 'like' occurs twice"),
    (
        "sequences.history.features",
        ["video_id", "video_id"],
        "sequences.history.features: 'video_id' occurs twice",
    ),
    ("stages.1.flag", "is_rank", "stage: found this column and flags of stages, expected one of them"),
    ("relevant", "rank_po", "relevant: found 'rank_po', did you mean 'rank_pos'; allowed are prerank_neg, rank_neg, "),
    ("relevant", {"stage": "shown"}, "relevant: found 'shown'; allowed are prerank_neg, rank_neg, rank_pos"),
    ("relevant", {}, "expected either a stage or a column"),
    ("relevant", {"stage": "rank_pos", "column": "click"}, "expected either a stage or a column"),
    (
        "sequences.history.features",
        ["video"],
        "sequences.history.features: found 'video', did you mean 'video_id'; allowed are video_id, author_id,",
    ),
    ("sequences.history.features", ["vector"], "sequences.history.features: found 'vector'; allowed are video_id,"),
    ("sequences.history.feedback", ..., "sequences.history: found neither, expected either feedback or columns"),
    ("sequences.searches.feedback", "long_view", "sequences.searches: found both, expected either feedback or columns"),
    (
        "sequences.history.feedback",
        "long_views",
        "sequences.history.feedback: found 'long_views', did you mean 'long_view'; allowed are effective_view,",
    ),
    (
        "sequences.searches.columns",
        {"author_id": "searched"},
        "sequences.searches: columns: found author_id, expected one for each of",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), MISTAKES, ids=[f"{path}={value}" for path, value, _ in MISTAKES])
def test_mistakes_are_named(path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate_spec(changed(path, value), where="log.yaml")
    assert message in str(error.value)
    assert all(line.startswith("log.yaml: ") for line in str(error.value).splitlines())
    assert "\n" not in str(error.value)


def test_a_number_in_a_sequence() -> None:
    content = changed("features.item.price", {"kind": "dense"})
    content["sequences"]["history"]["features"] = ["price"]
    with pytest.raises(
        ConfigError, match=r"sequences.history.features: found price, which is a number; sequences have ids only"
    ):
        validate_spec(content)


def test_a_number_in_buckets_may_be_in_a_sequence() -> None:
    assert validate_spec(changed("sequences.history.features", ["duration", "price", "uploaded"]))


def test_neither_time_nor_day() -> None:
    with pytest.raises(ConfigError, match="time: missing; without it the column `day` must name the days"):
        validate_spec({key: value for key, value in LEAST.items() if key != "time"})


def test_a_part_of_a_time_that_is_not_there() -> None:
    content = {"day": "split", "stages": [{"name": "all"}], "relevant": "all"}
    hour = {"kind": "time", "part": "hour"}
    with pytest.raises(
        ConfigError, match="features: a time feature without a column uses the time of the request, but `time`"
    ):
        validate_spec(content | {"features": {"context": {"hour": hour}}})
    assert validate_spec(content | {"features": {"context": {"hour": hour | {"column": "when"}}}})


def test_every_mistake_is_said() -> None:
    content = changed("negatives", -1) | {"request": 3, "time": {"column": "t", "zone": "Mars"}}
    with pytest.raises(ConfigError) as error:
        validate_spec(content)
    assert [line.split(":")[1].strip() for line in str(error.value).splitlines()] == [
        "request",
        "time.zone",
        "negatives",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages: [", "line 1"),
        ("- a\n- b\n", "expected keys and values"),
        ("item: a\nitem: b\n", "line 2, column 1: duplicate key 'item'"),
        ("stage: [1\n", "line 2"),
    ],
)
def test_files_that_are_no_description(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_spec(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spec.yaml does not exist"):
        load_spec(tmp_path / "spec.yaml")


# --- what a model sees ----------------------------------------------------------------------------------------------

ROWS = {
    "user.user_id": 40002,
    "context.hour": 26,
    "weekday": 9,
    "video": 1002,
    "item.author_id": 100002,
    "item.duration": 12,
    "item.price": 6,
}


def features() -> Features:
    return features_of(validate_spec(FULL), ROWS)


def test_tables_by_name() -> None:
    spec = validate_spec(FULL)
    tables = {f"{group}.{name}": table_of(group, name, feature) for group, name, feature in spec.features}
    assert tables["item.video_id"] == "video"
    assert tables["context.weekday"] == tables["item.uploaded"] == "weekday"
    assert tables["item.duration"] == "item.duration"


def test_which_features_are_numbers() -> None:
    numbers = {f"{group}.{name}" for group, name, feature in validate_spec(FULL).features if is_dense(feature)}
    assert numbers == {"user.age", "user.vector"}


def test_features_of_a_description() -> None:
    of = features()
    assert of.of("user") == (
        Feature("user_id", "user", "user.user_id", 40002),
        Feature("age", "user"),
        Feature("vector", "user", size=4),
    )
    assert of.item("uploaded") == Feature("uploaded", "item", "weekday", 9)
    assert [feature.name for feature in of.of("context")] == ["hour", "weekday"]
    assert of.tables == ROWS
    assert of.sequences == (Sequence("history", 20, ("video_id", "author_id")), Sequence("searches", 50, ("video_id",)))


def test_features_survive_json() -> None:
    assert Features.from_json(json.loads(json.dumps(features().to_json()))) == features()
    nothing = Features(())
    assert Features.from_json(json.loads(json.dumps(nothing.to_json()))) == nothing


def test_a_description_does_not_change() -> None:
    spec: Spec = validate_spec(FULL)
    with pytest.raises(ValueError, match="frozen"):
        spec.negatives = 4
