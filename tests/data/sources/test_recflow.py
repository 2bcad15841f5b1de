"""RecFlow's layout, held against loops over a small log that is written the way RecFlow is."""

from __future__ import annotations

import io
import json
import pickle
import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

from rankfall.data.sources.recflow import append_recflow, check_recflow, prepare_recflow
from rankfall.simulation.simulate import Simulation, simulate_log, simulate_recflow
from support.command_line import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog

SHANGHAI = ZoneInfo("Asia/Shanghai")
DAYS = ["2024-01-13", "2024-01-14", "2024-01-15"]
FLAGS = ["rerank_pos", "rerank_neg", "rank_pos", "rank_neg", "coarse_neg", "prerank_neg"]
FEEDBACK = ["realshow", "effective_view", "long_view", "like", "follow", "forward", "comment", "playing_time"]
USER = ["user_id", "device_id", "age", "gender", "province"]
EVENT = ["video_id", "author_id", "category_level_two", "category_level_one", "upload_type"]
CASCADE: dict[int, list[str]] = {
    2: ["prerank_neg", "coarse_neg", "rank_neg", "rank_pos"],
    3: ["prerank_neg", "coarse_neg", "rank_neg", "rerank_neg", "rerank_pos"],
}
VIDEOS, USERS = 300, 12
COUNTS = {
    "user_id": USERS,
    "device_id": 40,
    "age": 8,
    " gender": 3,  # one release has this space
    "province": 34,
    "video_id": VIDEOS,
    "author_id": 60,
    "category_level_one": 9,
    "category_level_two": 30,
    "upload_type": 5,
    "something_else": 7,
}

Row = dict[str, int]


class Layout(NamedTuple):
    folder: Path
    rows: dict[str, list[Row]]
    sequences: dict[str, dict[int, np.ndarray[Any, Any]]]


def make_layout(folder: Path) -> Layout:
    draw = random.Random(0)
    videos = [
        {
            "video_id": video,
            "author_id": draw.randrange(60),
            "category_level_one": draw.randrange(9),
            "category_level_two": draw.randrange(30),
            "upload_type": draw.randrange(5),
            "upload_timestamp": 1_700_000_000 + draw.randrange(4_000_000),
            "duration": draw.randrange(1000, 90_000),
        }
        for video in range(VIDEOS)
    ]
    users = [
        {name: draw.randrange(COUNTS.get(name, COUNTS.get(f" {name}", 1))) for name in USER[1:]} for _ in range(USERS)
    ]
    rows: dict[str, list[Row]] = {}
    sequences: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
    request = 1000
    for day in DAYS:
        midnight = int(datetime.fromisoformat(day).replace(tzinfo=SHANGHAI).timestamp() * 1000)
        rows[day], sequences[day] = [], {}
        for _ in range(20):
            request += draw.randint(1, 5)
            user, time = draw.randrange(USERS), midnight + draw.randrange(86_400_000)
            for video in draw.sample(videos, draw.randint(40, 80)):
                rows[day].append({
                    "request_id": request, "request_timestamp": time, "user_id": user, **users[user], **video,
                    **flags_and_feedback(draw),
                })  # fmt: skip
            sequences[day][request] = make_events(draw, videos, time)
        draw.shuffle(rows[day])
    write_layout(folder, rows, sequences)
    return Layout(folder, rows, sequences)


def flags_and_feedback(draw: random.Random) -> Row:
    """Where an item ended. What reaches rerank went through rank; few are in no stage that was logged."""
    flags = dict.fromkeys(FLAGS, 0)
    indices = {"rank_index": -1, "rerank_index": -1}
    kind = draw.choice(["prerank", "coarse", "rank", "rank", "rerank", "rerank", "shown only"])
    if kind in ("rank", "rerank"):
        indices["rank_index"] = draw.randrange(100)
        flags["rank_pos" if indices["rank_index"] < 40 else "rank_neg"] = 1
    if kind == "rerank":
        indices["rerank_index"] = draw.randrange(60)
        flags["rerank_pos" if indices["rerank_index"] < 30 else "rerank_neg"] = 1
        if draw.random() < 0.3:
            flags["rank_pos"] = flags["rank_neg"] = 0
    if kind in ("prerank", "coarse"):
        flags[f"{kind}_neg"] = 1
    shown = kind in ("rerank", "shown only")
    feedback = {name: int(shown and draw.random() < 0.4) for name in FEEDBACK}
    feedback["playing_time"] *= draw.randrange(1, 60_000)
    return {**flags, **indices, **feedback}


def make_events(draw: random.Random, videos: list[Row], time: int) -> np.ndarray[Any, Any]:
    """Events as RecFlow stores them, after rows of padding, some of it not 0."""
    events = np.zeros((50, 10), np.int64)
    events[:, 3] = 2
    real = draw.choice([0, 1, 7, 49, 50])
    for place in range(50 - real, 50):
        video = draw.choice(videos)
        events[place] = [
            *(video[name] for name in EVENT), video["upload_timestamp"], video["duration"], time - 10_000 + place,
            draw.randrange(9_999), draw.randrange(999),
        ]  # fmt: skip
    return events


def write_layout(folder: Path, rows: dict[str, list[Row]], sequences: dict[str, dict[int, Any]]) -> None:
    for name in ("all_stage", "seq_effective_50_dict", "others"):
        (folder / name).mkdir(parents=True)
    for day in rows:
        pl.DataFrame(rows[day]).write_ipc(folder / "all_stage" / f"{day}.feather", compression="lz4")
        (folder / "seq_effective_50_dict" / f"{day}.pkl").write_bytes(pickle.dumps(sequences[day]))
    (folder / "others" / "id_cnt.pkl").write_bytes(pickle.dumps(COUNTS))


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return make_layout(tmp_path_factory.mktemp("recflow"))


@pytest.fixture
def copy(layout: Layout, tmp_path: Path) -> Layout:
    """The same files to be changed."""
    write_layout(tmp_path / "copy", layout.rows, layout.sequences)
    return layout._replace(folder=tmp_path / "copy")


def by_request(rows: list[Row]) -> dict[int, list[Row]]:
    requests: dict[int, list[Row]] = {}
    for row in rows:
        requests.setdefault(row["request_id"], []).append(row)
    return requests


def depth_of(row: Row, stages: int) -> int:
    """The deepest stage of the cascade that a row has the flag of, -1 if none."""
    return max((depth for depth, flag in enumerate(CASCADE[stages]) if row[flag]), default=-1)


def rank_of(row: Row, stages: int) -> int:
    if stages == 3 and (row["rerank_pos"] or row["rerank_neg"]):
        return row["rerank_index"]
    return row["rank_index"] if row["rank_pos"] or row["rank_neg"] else -1


def parts(seconds: float) -> tuple[int, int, int]:
    when = datetime.fromtimestamp(seconds, SHANGHAI)
    return when.weekday(), when.hour, when.minute


def check_impression(impression: dict[str, Any], rows: list[Row], stages: int) -> None:
    known = {row["video_id"]: row for row in rows}
    chosen = [known[item] for item in impression["item"]]
    assert len({*impression["item"]}) == len(chosen)
    depths = [depth_of(row, stages) for row in chosen]
    assert impression["depth"] == depths
    for depth in range(len(CASCADE[stages])):
        assert depths.count(depth) == min(10, sum(depth_of(row, stages) == depth for row in rows))
    ranks = [rank_of(row, stages) for row in chosen]
    assert impression["rank"] == ranks
    shown_at = [row["rerank_index"] if row["realshow"] and row["rerank_index"] >= 0 else -1 for row in chosen]
    assert impression["position"] == shown_at
    goodness = [(depth, rank >= 0, -rank) for depth, rank in zip(depths, ranks, strict=True)]
    order = sorted(set(goodness))
    assert impression["grade"] == [order.index(value) for value in goodness]
    assert impression["relevance"] == [float(depth == len(CASCADE[stages]) - 1) for depth in depths]
    for name in FEEDBACK:
        assert impression[f"feedback.{name}"] == [float(row[name]) for row in chosen]
    for name in EVENT:
        assert impression[f"item.{name}"] == [row[name] + 2 for row in chosen]
    for name in USER:
        assert impression[f"user.{name}"] == rows[0][name] + 2
    times = [impression[f"context.{part}"] - 2 for part in ("weekday", "hour", "minute")]
    assert tuple(times) == parts(rows[0]["request_timestamp"] / 1000)
    for place, row in enumerate(chosen):
        uploaded = [impression[f"item.upload_{part}"][place] - 2 for part in ("weekday", "hour", "minute")]
        assert tuple(uploaded) == parts(row["upload_timestamp"])


@pytest.mark.parametrize("stages", [2, 3])
def test_impressions_are_what_the_rows_say(layout: Layout, tmp_path: Path, stages: Literal[2, 3]) -> None:
    log = prepare_recflow(layout.folder, tmp_path / "log", stages=stages)
    log.verify()
    assert list(log.days) == DAYS
    assert log.manifest["stages"] == CASCADE[stages]
    assert sorted(path.name for path in log.path.iterdir()) == ["days", "items.arrow", "manifest.json", "state"]
    for day in DAYS:
        requests = by_request(layout.rows[day])
        impressions = log.days[day].table().to_pylist()
        assert sorted(impression["request"] for impression in impressions) == sorted(requests)
        for impression in impressions:
            rows = requests[impression["request"]]
            assert int(impression["time"].timestamp() * 1000) == rows[0]["request_timestamp"]
            check_impression(impression, rows, stages)
            check_sequence(impression, layout.sequences[day][impression["request"]])
    without = sum(depth_of(row, stages) < 0 for rows in layout.rows.values() for row in rows)
    assert without > 0
    assert list(log.manifest["about"]["left_out"].values()) == [without]


def check_sequence(impression: dict[str, Any], events: np.ndarray[Any, Any]) -> None:
    real = [event for event in events.tolist() if event[7] > 0]
    for column, name in enumerate(EVENT):
        assert impression[f"sequence.history.{name}"] == [event[column] + 2 for event in real]


def views_by_hand(layout: Layout, user: int, time: int) -> list[Row]:
    rows = [row for day in DAYS for row in layout.rows[day]]
    return [row for row in rows if row["user_id"] == user and row["effective_view"] and row["request_timestamp"] < time]


def test_sequences_can_come_from_the_log(layout: Layout, tmp_path: Path) -> None:
    log = prepare_recflow(layout.folder, tmp_path / "log", sequences="log")
    longest = 0
    for day in DAYS:
        rows = by_request(layout.rows[day])
        for impression in log.days[day].table().to_pylist():
            row = rows[impression["request"]][0]
            views = views_by_hand(layout, row["user_id"], row["request_timestamp"])
            found = [video - 2 for video in impression["sequence.history.video_id"]]
            assert len(found) == min(50, len(views))
            # the views of one request have no order among them, those of different requests have
            times = {(view["request_timestamp"], view["video_id"]) for view in views}
            oldest_kept = sorted(view["request_timestamp"] for view in views)[-len(found) :] if found else []
            for place, video in enumerate(found):
                assert (oldest_kept[place], video) in times
            longest = max(longest, len(views))
    assert longest > 50
    assert log.manifest["about"]["sequences"] == "log"


def test_without_pickles_sequences_come_from_the_log(copy: Layout, tmp_path: Path) -> None:
    asked = prepare_recflow(copy.folder, tmp_path / "asked", sequences="log")
    for path in (copy.folder / "seq_effective_50_dict").iterdir():
        path.unlink()
    (copy.folder / "seq_effective_50_dict").rmdir()
    default = prepare_recflow(copy.folder, tmp_path / "default")
    assert checksums(default) == checksums(asked)


def test_without_ranks_of_mix_ranking_there_are_no_positions(copy: Layout, tmp_path: Path) -> None:
    whole = prepare_recflow(copy.folder, tmp_path / "whole", stages=2)
    for day, rows in copy.rows.items():
        pl.DataFrame(rows).drop("rerank_index").write_ipc(copy.folder / "all_stage" / f"{day}.feather")
    log = prepare_recflow(copy.folder, tmp_path / "log", stages=2)
    assert log.spec.position is None
    for day in log.days:
        assert log.days[day].table().equals(whole.days[day].table().drop_columns("position"))


def test_there_may_be_no_sequences(layout: Layout, tmp_path: Path) -> None:
    log = prepare_recflow(layout.folder, tmp_path / "log", sequences="none")
    assert log.features.sequences == ()
    assert not [name for name in log.days[DAYS[0]].table().column_names if name.startswith("sequence")]


def test_bad_rows_are_found_and_skipped(copy: Layout, tmp_path: Path) -> None:
    """Two rows of the first day without a video, and a request of which a row is repeated with another author."""
    path = copy.folder / "all_stage" / f"{DAYS[0]}.feather"
    rows = pl.read_ipc(path.read_bytes())
    clean = prepare_recflow(copy.folder, tmp_path / "clean", sequences="none")
    kept = rows.filter(pl.any_horizontal(pl.col("rank_pos", "rank_neg", "coarse_neg", "prerank_neg") > 0))
    without = kept[:2].with_columns(video_id=pl.lit(None, rows["video_id"].dtype))
    again = kept[5:6].with_columns(author_id=(pl.col("author_id") + 1).cast(rows["author_id"].dtype))
    pl.concat([rows, without, again]).write_ipc(path)
    found = check_recflow(copy.folder, sequences="none")
    assert [(problem.column, problem.number) for problem in found.errors] == [
        ("video_id", "2 rows"),
        ("video_id", "1 request"),
    ]
    assert [place.row for place in found.errors[0].places] == [len(rows) + 1, len(rows) + 2]
    log = prepare_recflow(copy.folder, tmp_path / "out", sequences="none", skip_bad=200)
    assert log.manifest["about"]["skipped"]["requests"] == 1
    assert sum(map(len, log.days.values())) == sum(map(len, clean.days.values())) - 1


def checksums(log: ImpressionLog) -> dict[str, str]:
    return {day: of.manifest["sha256"] for day, of in log.days.items()}


@pytest.mark.parametrize(
    ("days", "expected"), [("2024-01-14", [1]), ("2024-01-14..", [1, 2]), ("..2024-01-14", [0, 1]), ("..", [0, 1, 2])]
)
def test_days_can_be_chosen(layout: Layout, tmp_path: Path, days: str, expected: list[int]) -> None:
    log = prepare_recflow(layout.folder, tmp_path / "log", days=days)
    assert list(log.days) == [DAYS[place] for place in expected]
    whole = prepare_recflow(layout.folder, tmp_path / "whole")
    assert checksums(log) == {day: checksums(whole)[day] for day in log.days}


def test_counts_of_ids_come_from_the_data_where_they_were_not_published(copy: Layout, tmp_path: Path) -> None:
    before = prepare_recflow(copy.folder, tmp_path / "before")
    (copy.folder / "others" / "id_cnt.pkl").unlink()
    after = prepare_recflow(copy.folder, tmp_path / "after")
    assert before.features.tables["user.province"] == COUNTS["province"] + 2
    assert before.features.tables["user.gender"] == COUNTS[" gender"] + 2
    for name in [*USER, *EVENT]:
        largest = max(row[name] for rows in copy.rows.values() for row in rows)
        assert after.features.tables[f"{'user' if name in USER else 'item'}.{name}"] == largest + 3
    assert checksums(before) == checksums(after)


def test_requests_without_a_sequence_are_counted(copy: Layout, tmp_path: Path) -> None:
    known = dict(list(copy.sequences[DAYS[1]].items())[3:])
    (copy.folder / "seq_effective_50_dict" / f"{DAYS[1]}.pkl").write_bytes(pickle.dumps(known, 2))
    log = prepare_recflow(copy.folder, tmp_path / "log")
    assert log.manifest["about"]["unknown"]["requests"] == 3
    for impression in log.days[DAYS[1]].table().to_pylist():
        check_sequence(impression, known.get(impression["request"], np.zeros((50, 10))))


class Payload:
    """Something that must not run."""

    def __reduce__(self) -> Any:
        return (timedelta, (1,))


def _pickle(name: str, content: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(pickle.dumps(content))

    return spoil


def _rows(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "all_stage" / "2024-01-14.feather"
        change(pl.read_ipc(io.BytesIO(path.read_bytes()))).write_ipc(path)

    return spoil


def _remove(*patterns: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink()

    return spoil


def _cut(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return spoil


def _only_request_dict(folder: Path) -> None:
    _remove("all_stage/*")(folder)
    (folder / "request_id_dict").mkdir()
    (folder / "request_id_dict" / "2024-01-13.pkl").write_bytes(pickle.dumps({1: {"rank_pos": np.zeros((1, 8))}}))


def _nested_count(folder: Path) -> None:
    # a list in a list in a list: too deep for `pickle` to write, and for `repr`
    value = b"]" * 100_000 + b"a" * 99_999
    (folder / "others" / "id_cnt.pkl").write_bytes(b"\x80\x02}X\x03\x00\x00\x00age" + value + b"s.")


SEQUENCES = "seq_effective_50_dict/2024-01-14.pkl"
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no rows": (_remove("all_stage/*"), r"all_stage: found no file DATE\.feather"),
    "no rows but request_id_dict": (_only_request_dict, "request_id_dict is not enough: it has no users and no times"),
    "no pickle": (_remove(SEQUENCES), r"2024-01-14\.pkl does not exist \(--sequences log"),
    "hostile pickle": (_pickle(SEQUENCES, {1: Payload()}), r"2024-01-14\.pkl: the pickle asks for datetime\.timedelta"),
    "hostile counts": (_pickle("others/id_cnt.pkl", {"a": Payload()}), r"id_cnt\.pkl: the pickle asks for datetime"),
    "cut pickle": (_cut(SEQUENCES), r"2024-01-14\.pkl: the pickle is damaged or cut off"),
    "cut feather": (_cut("all_stage/2024-01-14.feather"), r"2024-01-14\.feather cannot be read"),
    "width": (_pickle(SEQUENCES, {1: np.zeros((50, 9), int)}), r"of shape \(50, 9\) for the request 1, expected"),
    "floats": (_pickle(SEQUENCES, {1: np.zeros((50, 10))}), "float64 .* expected arrays of whole numbers"),
    "lists": (_pickle(SEQUENCES, {1: [1, 2]}), "found a list for the request 1"),
    "names": (_pickle(SEQUENCES, {"a": np.zeros((50, 10), int)}), "found the request 'a', expected whole numbers"),
    "large names": (
        _pickle(SEQUENCES, {2**63: np.zeros((50, 10), int)}),
        r"14\.pkl: found the request 9223372036854775808",
    ),
    "huge names": (_pickle(SEQUENCES, {10**5000: 1}), r"14\.pkl: found the request a number of more than 64 bits"),
    "counts": (_pickle("others/id_cnt.pkl", {"age": "many"}), r"id_cnt\.pkl: found 'age' with 'many'"),
    "long count": (_pickle("others/id_cnt.pkl", {"age": "9" * 10**6}), r"found 'age' with '9{56}\.\.\., expected"),
    "nested count": (_nested_count, r"id_cnt\.pkl: found 'age' with a list, expected"),
    "huge count": (_pickle("others/id_cnt.pkl", {"age": 10**5000}), "found 'age' with a number of more than 64 bits"),
    "text flag": (
        _rows(lambda rows: rows.cast({"rank_neg": pl.String})),
        r"14\.feather: column 'rank_neg': found String",
    ),
    "column": (_rows(lambda rows: rows.drop("rank_index")), "rank_index"),
    "flag": (_rows(lambda rows: rows.rename({"coarse_neg": "course_neg"})), "'coarse_neg'.*did you mean.*course_neg"),
    "negative id": (_rows(lambda rows: rows.with_columns(author_id=-1)), "column 'author_id': found -1"),
    "twice": (_rows(lambda rows: pl.concat([rows, rows[:1]])), "twice"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_wrong_files_are_clear_errors(copy: Layout, tmp_path: Path, name: str) -> None:
    spoil, message = BROKEN[name]
    spoil(copy.folder)
    with pytest.raises(ValueError, match=message):
        prepare_recflow(copy.folder, tmp_path / "log")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


LOG_ERRORS: dict[str, tuple[Callable[[Path], None], str]] = {
    **{
        f"text {name}": (
            _rows(lambda rows, name=name: rows.with_columns(pl.format("x{}", name).alias(name))),  # type: ignore[misc]
            f"column '{name}': found String, expected whole numbers",
        )
        for name in ("request_id", "user_id", "author_id")
    },
    **{
        f"null {name}": (
            _rows(lambda rows, name=name: rows.with_columns(pl.col(name).replace(rows[name][6], None))),  # type: ignore[misc]
            f"column '{name}': found no value in row",
        )
        for name in ("request_id", "request_timestamp")
    },
    "half an id": (_rows(lambda rows: rows.with_columns(author_id=0.5)), "column 'author_id': found 0.5, expected"),
    "text views": (_rows(lambda rows: rows.cast({"effective_view": pl.String})), "column 'effective_view': found"),
}  # fmt: skip


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("name", LOG_ERRORS)
def test_wrong_days_are_named_before_sequences_are_made_of_them(
    copy: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, published: bool
) -> None:
    spoil, message = LOG_ERRORS[name]
    spoil(copy.folder)
    if not published:
        _remove("others/id_cnt.pkl")(copy.folder)
    assert run("prepare", "recflow", str(copy.folder), "--out", str(tmp_path / "log"), "--sequences", "log") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"2024-01-14.feather: {message}" in said
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_days_may_store_ids_as_narrow_as_they_like(copy: Layout, tmp_path: Path) -> None:
    before = prepare_recflow(copy.folder, tmp_path / "before", sequences="log")
    _remove("others/id_cnt.pkl")(copy.folder)
    narrow = [pl.col(*EVENT).cast(pl.Int16), pl.col("user_id").cast(pl.UInt8), pl.col("request_id").cast(pl.Int32)]
    other = [pl.col("rank_neg").cast(pl.Boolean), pl.col("age", "effective_view").cast(pl.Float32)]
    _rows(lambda rows: rows.with_columns(*narrow, *other))(copy.folder)
    after = prepare_recflow(copy.folder, tmp_path / "after", sequences="log")
    assert checksums(before) == checksums(after)


@pytest.mark.parametrize("sequences", ["log", "pickle", "none"])
@pytest.mark.parametrize("published", [True, False])
def test_a_day_without_rows_is_a_warning(
    copy: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str], sequences: str, published: bool
) -> None:
    _rows(lambda rows: rows.clear())(copy.folder)
    _pickle(SEQUENCES, {})(copy.folder)
    if not published:
        _remove("others/id_cnt.pkl")(copy.folder)
    arguments = ("prepare", "recflow", str(copy.folder), "--out", str(tmp_path / "log"), "--sequences", sequences)
    assert run(*arguments, "--json") == 0
    printed = capsys.readouterr()
    assert list(json.loads(printed.out)["days"]) == [DAYS[0], DAYS[2]]
    assert "2024-01-14.feather has no rows" in " ".join(printed.err.split())


def test_users_without_an_id_have_no_history(copy: Layout, tmp_path: Path) -> None:
    for day in DAYS:
        path = copy.folder / "all_stage" / f"{day}.feather"
        rows = pl.read_ipc(io.BytesIO(path.read_bytes()))
        rows.with_columns(user_id=pl.when(pl.col("user_id") > 3).then("user_id")).write_ipc(path)
    log = prepare_recflow(copy.folder, tmp_path / "log", sequences="log")
    nobody = 0
    for day in DAYS:
        by_id = by_request(copy.rows[day])
        for impression in log.days[day].table().to_pylist():
            row = by_id[impression["request"]][0]
            views = views_by_hand(copy, row["user_id"], row["request_timestamp"]) if row["user_id"] > 3 else []
            assert len(impression["sequence.history.video_id"]) == min(50, len(views))
            nobody += row["user_id"] <= 3
    assert nobody > 5


@pytest.mark.parametrize("stages", [2, 3])
def test_nan_flag_counts_as_zero(copy: Layout, tmp_path: Path, stages: Literal[2, 3]) -> None:
    before = prepare_recflow(copy.folder, tmp_path / "before", stages=stages, sequences="log")
    marks = pl.col(*FLAGS, "effective_view").cast(pl.Float64)
    _rows(lambda rows: rows.with_columns(marks.replace(0.0, float("nan"))))(copy.folder)
    after = prepare_recflow(copy.folder, tmp_path / "after", stages=stages, sequences="log")
    left_out = [log.manifest["about"]["left_out"] for log in (before, after)]
    assert left_out[0] == left_out[1]
    for day in DAYS:
        for name in ("request", "item", "depth", "rank", "grade", "sequence.history.video_id"):
            assert before.days[day].table()[name] == after.days[day].table()[name]


def test_a_request_in_two_pickles(copy: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = min(copy.sequences[DAYS[1]])
    _pickle("seq_effective_50_dict/2024-01-15.pkl", copy.sequences[DAYS[2]] | {again: np.zeros((50, 10), int)})(
        copy.folder
    )
    assert run("prepare", "recflow", str(copy.folder), "--out", str(tmp_path / "log")) == 1
    folder = copy.folder / "seq_effective_50_dict"
    said = capsys.readouterr().err
    assert f"{folder / '2024-01-15.pkl'}: the request {again} occurs here and in {folder / '2024-01-14.pkl'}" in said


def test_a_request_in_two_days(copy: Layout, tmp_path: Path) -> None:
    other = pl.DataFrame(copy.rows[DAYS[0]])[:1]
    _rows(lambda rows: pl.concat([rows, other.select(rows.columns)]))(copy.folder)
    message = rf"2024-01-14\.feather: the request {other['request_id'][0]} occurs here and in .*2024-01-13\.feather"
    with pytest.raises(ValueError, match=message):
        prepare_recflow(copy.folder, tmp_path / "log", sequences="log")


def test_days_that_are_not_there(layout: Layout, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"days: found '2024-01-31'.*2024-01-13 to 2024-01-15"):
        prepare_recflow(layout.folder, tmp_path / "log", days="2024-01-13..2024-01-31")
    with pytest.raises(ValueError, match="ends before it begins"):
        prepare_recflow(layout.folder, tmp_path / "log", days="2024-01-15..2024-01-13")


def test_the_command_says_what_it_did(layout: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("prepare", "recflow", str(layout.folder), "--out", str(tmp_path / "log"))
    assert run(*arguments, "--stages", "3", "--days", "..2024-01-14", "--sequences", "none", "--json") == 0
    manifest = json.loads(capsys.readouterr().out)
    assert list(manifest["days"]) == DAYS[:2]
    assert manifest["stages"] == CASCADE[3]
    assert manifest["about"]["command"] == "prepare recflow"
    assert run(*arguments) == 1
    assert "--force" in capsys.readouterr().err
    assert run(*arguments, "--force") == 0
    out = capsys.readouterr().out
    assert "rows of no stage of the cascade" in out
    assert all(stage in out for stage in CASCADE[2])
    assert run(*arguments, "--stages", "4") == 2


@pytest.mark.parametrize(("sequences", "stages"), [("pickle", 2), ("log", 3), ("none", 2)])
def test_days_one_by_one_give_the_bytes_of_all_days_at_once(
    layout: Layout, tmp_path: Path, sequences: Any, stages: Literal[2, 3]
) -> None:
    options: Any = {"sequences": sequences, "stages": stages, "seed": 3}
    whole = prepare_recflow(layout.folder, tmp_path / "whole", **options)
    log = prepare_recflow(layout.folder, tmp_path / "log", days=DAYS[0], **options)
    append_recflow(layout.folder, log.path, days=DAYS[1])
    append_recflow(layout.folder, log.path)  # all days after the newest one
    ours, expected = (
        {path.relative_to(one.path): path.read_bytes() for path in one.path.rglob("*") if path.is_file()}
        for one in (log, whole)
    )
    assert ours == expected
    for days, message in ((DAYS[2], "already has the day 2024-01-15"), (None, "found no day after 2024-01-15")):
        with pytest.raises(ValueError, match=message):
            append_recflow(layout.folder, log.path, days=days)


def test_appending_needs_a_log_of_recflow_and_the_views_of_earlier_days(
    copy: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = prepare_recflow(copy.folder, tmp_path / "log", days=DAYS[0], sequences="log")
    words = ("prepare", "recflow", str(copy.folder), "--append", str(log.path))
    assert run(*words, "--stages", "2") == 2
    assert "has no effect with --append" in capsys.readouterr().err
    assert run(*words, "--days", DAYS[1], "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["days"]) == DAYS[:2]
    (copy.folder / f"all_stage/{DAYS[0]}.feather").unlink()
    with pytest.raises(ValueError, match=r"found no 2024-01-13\.feather, a day of .*; sequences of views need"):
        append_recflow(copy.folder, log.path)
    other = simulate_log(Simulation(preset="tiny", days=1, requests_per_day=4), tmp_path / "other")
    with pytest.raises(ValueError, match="was not written by 'rankfall prepare recflow'"):
        append_recflow(copy.folder, other.path)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "stages"), [("tiny", 2), ("recflow-like", 2), ("recflow-like-3", 3)])
def test_a_simulated_log_is_the_same_by_way_of_the_layout(tmp_path: Path, preset: str, stages: Literal[2, 3]) -> None:
    plan = Simulation(preset=preset, days=3, requests_per_day=60, seed=5)
    direct = simulate_log(plan, tmp_path / "direct")
    simulate_recflow(plan, tmp_path / "layout")
    prepared = prepare_recflow(tmp_path / "layout", tmp_path / "prepared", stages=stages, seed=5)
    assert len(direct.days) == 3
    files = sorted(path.relative_to(direct.path) for path in direct.path.rglob("*.arrow"))
    found = (path.relative_to(prepared.path) for path in prepared.path.rglob("*.arrow"))
    assert files == sorted(path for path in found if path.parts[0] != "state")
    for file in files:
        assert (direct.path / file).read_bytes() == (prepared.path / file).read_bytes(), file
    assert direct.spec == prepared.spec
    assert direct.features == prepared.features
