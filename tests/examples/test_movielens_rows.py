"""examples/movielens: the funnel made from MovieLens' ratings, held against loops over the files."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from rankfall.data.impressions.log import ImpressionLog
from support.command_line import run
from support.examples import prepare_example, spec_of
from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPEC = spec_of("movielens")
BLOCK, SAMPLE, DAYS, POPULAR = 8, 5, 3, 100
AGES = ["1", "18", "25", "35", "45", "50", "56"]
GENRES = [
    "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
]  # fmt: skip
START = 956_703_932


class Rating(NamedTuple):
    user: int
    film: int
    stars: int
    time: int


class Film(NamedTuple):
    title: str
    year: int | None
    genres: list[str]


class Files(NamedTuple):
    folder: Path
    ratings: list[Rating]
    films: dict[int, Film]
    users: dict[int, tuple[str, str, int, str]]


def prepare_movielens(
    folder: Path, out: Path, *, days: int = DAYS, block: int = BLOCK, sample: int = SAMPLE, seed: int = 0
) -> ImpressionLog:
    options = {"directory": str(folder), "days": days, "block": block, "sample": sample, "seed": seed}
    stages = [stage | {"sample": sample} for stage in SPEC["stages"]]
    return prepare_example(SPEC | {"stages": stages}, out, options, seed=seed)


def write(folder: Path, name: str, lines: list[str]) -> None:
    (folder / name).write_bytes("".join(line + "\n" for line in lines).encode("latin-1"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A small MovieLens: ids with gaps, Latin-1 titles, many ratings of one second, users with few and with many."""
    folder, draw = tmp_path_factory.mktemp("ml-1m"), random.Random(0)
    films = {}
    for film in sorted(draw.sample(range(1, 400), 170)):
        year = draw.randint(1919, 2000)
        films[film] = Film(f"Misérables {film}: Les ({year})", year, sorted(draw.sample(GENRES, draw.randint(1, 3))))
    first = min(films)
    films[first] = Film("Amélie without a year", None, ["Drama"])
    users = {
        user: (draw.choice("FM"), draw.choice(AGES), draw.randint(0, 20), f"{draw.randint(0, 99999):05}")
        for user in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
    }
    ratings = []
    for user in users:
        time = START + draw.randint(0, 40_000)
        for film in draw.sample(sorted(films), draw.choice([3, 8, 20, 45, 60, 160])):
            time += draw.choice([0, 0, 1, 30, 600])
            ratings.append(Rating(user, film, draw.randint(1, 5), time))
    draw.shuffle(ratings)
    write(folder, "ratings.dat", ["::".join(map(str, rating)) for rating in ratings])
    write(folder, "users.dat", [f"{user}::{'::'.join(map(str, about))}" for user, about in users.items()])
    write(folder, "movies.dat", [f"{i}::{film.title}::{'|'.join(film.genres)}" for i, film in films.items()])
    return Files(folder, ratings, films, users)


@pytest.fixture(scope="module")
def log(files: Files, tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    out = tmp_path_factory.mktemp("out") / "log"
    return prepare_movielens(files.folder, out)


@pytest.fixture(scope="module")
def impressions(log: ImpressionLog) -> list[dict[str, Any]]:
    return [impression for day in log.days.values() for impression in day.table().to_pylist()]


def user_ids(files: Files, log: ImpressionLog, impression: dict[str, Any]) -> int:
    """The user of an impression: known ids are raw ids plus 2."""
    user = impression["user.user_id"] - 2
    assert user in files.users
    return int(user)


def blocks_by_hand(files: Files) -> dict[tuple[int, int], list[Rating]]:
    """The ratings of each user by time, cut into as many parts as blocks fit in, sizes differing by at most one."""
    by_user: dict[int, list[Rating]] = defaultdict(list)
    for rating in sorted(files.ratings, key=lambda rating: (rating.time, rating.film)):
        by_user[rating.user].append(rating)
    blocks = {}
    for user, ratings in by_user.items():
        parts = max(1, len(ratings) // BLOCK)
        for part in range(parts):
            begin, end = -(-part * len(ratings) // parts), -(-(part + 1) * len(ratings) // parts)
            blocks[user, ratings[begin].time] = ratings[begin:end]
    return blocks


def seconds(impression: dict[str, Any]) -> int:
    return int(impression["time"].timestamp())


def test_every_block_of_ratings_is_a_request(
    files: Files, log: ImpressionLog, impressions: list[dict[str, Any]]
) -> None:
    blocks = blocks_by_hand(files)
    assert len(blocks) == sum(max(1, n // BLOCK) for n in Counter(rating.user for rating in files.ratings).values())
    found = [(user_ids(files, log, impression), seconds(impression)) for impression in impressions]
    assert sorted(found) == sorted(blocks)
    assert {len(block) for block in blocks.values()} <= {3, *range(BLOCK, 2 * BLOCK)}


def test_days_are_parts_of_equal_size_in_the_order_of_time(log: ImpressionLog) -> None:
    assert list(log.days) == ["day-01", "day-02", "day-03"]
    sizes = [len(day) for day in log.days.values()]
    assert max(sizes) - min(sizes) <= 1
    days = list(log.days.values())
    for one, next_one in pairwise(days):
        assert one.manifest["last_time"] <= next_one.manifest["first_time"]


def test_candidates_are_what_the_stages_say(
    files: Files, log: ImpressionLog, impressions: list[dict[str, Any]]
) -> None:
    blocks = blocks_by_hand(files)
    stages = log.manifest["stages"]
    assert stages == ["random", "popular", "low", "liked"]
    rated: dict[int, set[int]] = defaultdict(set)
    for rating in files.ratings:
        rated[rating.user].add(rating.film)
    shortages = 0
    for impression in impressions:
        user, time = user_ids(files, log, impression), seconds(impression)
        stars = {rating.film: rating.stars for rating in blocks[user, time]}
        counts = Counter(rating.film for rating in files.ratings if rating.time < time)
        unseen = [film for film in files.films if film not in rated[user]]
        popular = set(sorted((film for film in unseen if counts[film]), key=lambda f: (-counts[f], f))[:POPULAR])
        pools = {
            "random": {film for film in unseen if film not in popular},
            "popular": popular,
            "low": {film for film, found in stars.items() if found <= 3},
            "liked": {film for film, found in stars.items() if found >= 4},
        }
        found: dict[str, list[int]] = {stage: [] for stage in stages}
        for film, depth in zip(impression["item"], impression["depth"], strict=True):
            found[stages[depth]].append(film)
        for stage, pool in pools.items():
            assert len(found[stage]) == len(set(found[stage])) == min(SAMPLE, len(pool))
            assert set(found[stage]) <= pool
            shortages += len(pool) < SAMPLE
        assert impression["relevance"] == [float(stars.get(film, 0) >= 4) for film in impression["item"]]
        assert impression["feedback.rating"] == [float(stars.get(film, 0)) for film in impression["item"]]
    assert shortages > 0
    assert log.manifest["about"]["counts"]["short"].keys() <= set(stages)
    assert sum(log.manifest["about"]["counts"]["short"].values()) == shortages


def test_grades_follow_stage_and_stars(impressions: list[dict[str, Any]]) -> None:
    for impression in impressions:
        goodness = list(zip(impression["depth"], impression["feedback.rating"], strict=True))
        order = sorted(set(goodness))
        assert impression["grade"] == [order.index(value) for value in goodness]


def test_sequences_hold_what_the_user_liked_before(
    files: Files, log: ImpressionLog, impressions: list[dict[str, Any]]
) -> None:
    years, genres = ids(log, "item.year"), ids(log, "item.genre")
    blocks = blocks_by_hand(files)
    lengths = set()
    for impression in impressions:
        user, time = user_ids(files, log, impression), seconds(impression)
        earlier = sorted((of[0].time, of) for (one, begin), of in blocks.items() if one == user and begin < time)
        liked = [sorted((r for r in of if r.stars >= 4), key=lambda r: (-r.stars, r.film)) for _, of in earlier]
        films = [rating.film for of in liked for rating in of][-50:]
        lengths.add(len(films))
        assert impression["sequence.liked.movie_id"] == [film + 2 for film in films]
        assert impression["sequence.liked.genre"] == [genres[files.films[film].genres[0]] for film in films]
        assert impression["sequence.liked.year"] == [
            0 if (year := files.films[film].year) is None else years.get(year, 1) for film in films
        ]
    assert 0 in lengths
    assert 50 in lengths


def ids(log: ImpressionLog, table: str) -> dict[Any, int]:
    """The ids of the values of a vocabulary."""
    return {value: 2 + place for place, value in enumerate(log.vocabulary(table).to_pylist())}


def test_features_are_those_of_the_files(files: Files, log: ImpressionLog, impressions: list[dict[str, Any]]) -> None:
    names = ("user.zip", "user.gender", "user.age", "item.genre")
    zips, genders, ages, first_genres = (ids(log, name) for name in names)
    for impression in impressions:
        gender, age, occupation, code = files.users[user_ids(files, log, impression)]
        assert impression["user.gender"] == genders[gender]
        assert impression["user.age"] == ages.get(int(age), 1)
        assert impression["user.occupation"] == 2 + occupation
        assert impression["user.zip"] == zips.get(code[:3], 1)
        when = datetime.fromtimestamp(seconds(impression), UTC)
        assert impression["context.weekday"] == 2 + when.weekday()
        assert impression["context.hour"] == 2 + when.hour
        for place, film in enumerate(impression["item"]):
            genres = files.films[film].genres
            assert impression["item.genre"][place] == first_genres[genres[0]]
            assert impression["item.genres"][place] == [float(genre in genres) for genre in GENRES]
    shown = {film for impression in impressions for film in impression["item"]}
    assert shown <= set(log.items()["item"].to_pylist()) <= set(files.films)


def test_what_comes_later_changes_nothing_but_labels(files: Files, tmp_path: Path) -> None:
    """Other stars in the future leave every earlier request as it is."""
    times = sorted(rating.time for rating in files.ratings)
    moment = times[len(times) * 2 // 3]
    changed = [r if r.time < moment else r._replace(stars=6 - r.stars) for r in files.ratings]
    other = tmp_path / "other"
    other.mkdir()
    for name in ("users.dat", "movies.dat"):
        (other / name).write_bytes((files.folder / name).read_bytes())
    write(other, "ratings.dat", ["::".join(map(str, rating)) for rating in changed])
    before = {}
    for folder in (files.folder, other):
        log = prepare_movielens(folder, tmp_path / f"log-{folder.name}", days=1)
        rows = log.days["day-01"].table().to_pylist()
        blocks = blocks_by_hand(files)
        over = {key for key, block in blocks.items() if block[-1].time < moment}
        before[folder] = [row for row in rows if (row["user.user_id"] - 2, seconds(row)) in over]
    assert len(before[other]) > 20
    assert before[files.folder] == before[other]


def test_one_seed_gives_one_log(files: Files, log: ImpressionLog, tmp_path: Path) -> None:
    same = prepare_movielens(files.folder, tmp_path / "same")
    other = prepare_movielens(files.folder, tmp_path / "other", seed=1)
    for day in log.days:
        assert log.days[day].manifest["sha256"] == same.days[day].manifest["sha256"]
        assert log.days[day].manifest["sha256"] != other.days[day].manifest["sha256"]
        requests = [of.days[day].table().select(["request", "time", "user.user_id"]) for of in (log, other)]
        assert requests[0].sort_by("request") == requests[1].sort_by("request")


def test_line_ends_of_windows_are_fine(files: Files, log: ImpressionLog, tmp_path: Path) -> None:
    source = tmp_path / "crlf"
    source.mkdir()
    for name in ("ratings.dat", "users.dat", "movies.dat"):
        (source / name).write_bytes((files.folder / name).read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    same = prepare_movielens(source, tmp_path / "log")
    assert [day.manifest["sha256"] for day in same.days.values()] == [
        day.manifest["sha256"] for day in log.days.values()
    ]


def _set(name: str, line: int, text: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        lines = (folder / name).read_bytes().decode("latin-1").split("\n")
        lines[line - 1] = text.format(known="::".join(lines[line - 1].split("::")[:2]))
        (folder / name).write_bytes("\n".join(lines).encode("latin-1"))

    return spoil


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda folder: (folder / "users.dat").unlink(), r"users\.dat"),
    "empty": (lambda folder: write(folder, "movies.dat", []), r"movies\.dat: found no lines"),
    "fields": (_set("ratings.dat", 3, "1::2::3"), r"ratings\.dat:3: expected 4 fields between '::'"),
    "commas": (_set("ratings.dat", 3, "1,2,3,4"), r"ratings\.dat:3: expected 4 fields"),
    "user": (_set("ratings.dat", 7, "9::1::3::956703932"), r"ratings\.dat:7: found a user that users.dat lacks"),
    "film": (_set("ratings.dat", 7, "1::999::3::956703932"), r"ratings\.dat:7: found a film that movies.dat lacks"),
    "no number": (_set("ratings.dat", 4, "x::1::3::956703932"), r"ratings\.dat:4: expected a whole number as user_id"),
    "negative": (_set("ratings.dat", 4, "1::-1::3::956703932"), r"ratings\.dat:4: found a film that movies.dat lacks"),
    "stars": (_set("ratings.dat", 4, "1::998::3.5::956703932"), r"ratings\.dat:4: expected a whole number as rating"),
    "too many": (_set("ratings.dat", 4, "{known}::6::956703932"), r"ratings\.dat:4: expected 1 to 5 stars"),
    "time": (_set("ratings.dat", 4, "1::998::3::yesterday"), r"ratings\.dat:4: expected a whole number as time"),
    "age": (_set("users.dat", 2, "2::F::young::3::12345"), r"users\.dat:2: expected a whole number as age"),
    "user twice": (_set("users.dat", 2, "1::F::18::3::12345"), r"users\.dat:2: found the user a second time"),
    "genre": (_set("movies.dat", 5, "5::Film (1999)::Drama|Noir"), r"movies\.dat:5: found an unknown genre"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_wrong_files_are_clear_errors(files: Files, tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in files.folder.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    spoil, message = BROKEN[name]
    spoil(source)
    with pytest.raises(ValueError, match=message):
        prepare_movielens(source, tmp_path / "log")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_rating_stands_once(files: Files, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in files.folder.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    lines = (source / "ratings.dat").read_text().splitlines()
    write(source, "ratings.dat", [*lines, lines[5]])
    with pytest.raises(ValueError, match=rf"ratings\.dat:{len(lines) + 1}: found the film of the user a second time"):
        prepare_movielens(source, tmp_path / "log")


def test_there_cannot_be_more_days_than_requests(files: Files, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="days: found 1000, expected at most"):
        prepare_movielens(files.folder, tmp_path / "log", days=1000)


def test_the_command_prepares_the_example(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the first lines of ``spec.yaml``: in the root of the repository, with the files in ``ml-1m``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "ml-1m").symlink_to(files.folder)
    assert run("prepare", "rows", "--spec", "examples/movielens/spec.yaml", "--out", "log") == 0
    out = capsys.readouterr().out
    assert all(stage in out for stage in ("random", "popular", "low", "liked"))
    log = ImpressionLog.load(tmp_path / "log")
    assert list(log.days) == [f"day-{day:02}" for day in range(1, 11)]
    assert max(log.manifest["about"]["counts"]["kept"].values()) <= 10 * log.manifest["impressions"]
