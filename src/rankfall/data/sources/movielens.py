"""MovieLens-1M as a funnel. The ratings are real, the funnel is constructed from them.

MovieLens contains ratings, but not the items that users were shown. Requests and stages are therefore constructed:

- A **request** is a block of at least 20 consecutive ratings of a user and has the time of the first one. All requests
  in the order of time are divided into **days** of equal size, ``day-01``, ``day-02``, ...
- Its candidates are, from the deepest stage to the first: `liked`, films of the block with 4 or 5 stars, which are the
  relevant ones; `low`, the other films of the block; `popular`, the 100 films with the most ratings before the request
  among those that the user never rated; `random`, all other films that the user never rated. Each stage is sampled.
- The **rank** in `liked` and `low` follows the stars. The other stages have none.
- The **behaviour sequence** contains the last films that the user liked before the request.

All features are from before the request. That a user never rates a film, in all of the data, is a label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._files import about_file, fresh_directory
from rankfall.data.impressions.assemble import assemble
from rankfall.data.impressions.column_hashing import hash_values
from rankfall.data.impressions.counts import Counts
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.history import EventHistory
from rankfall.data.impressions.items import item_table
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.sampler import check_seed, sample_keys
from rankfall.data.impressions.schema import impression_schema
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.indexing import spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec

    Integers = NDArray[np.int64]

FILES = ("ratings.dat", "users.dat", "movies.dat")
STAGES = ("random", "popular", "low", "liked")
POPULAR = 100  # films of the stage of that name
LEAST_LIKED = 4  # the smallest number of stars of a liked film
HISTORY_LENGTH = 50
GENDERS = ["F", "M"]
AGES = ["1", "18", "25", "35", "45", "50", "56"]  # the lowest age of each group
OCCUPATIONS = [str(number) for number in range(21)]
STARS = ["1", "2", "3", "4", "5"]
GENRES = [
    "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
]  # fmt: skip

_SEQUENCE = ["movie_id", "genre", "year"]
_CHUNK = 256  # requests processed together; each needs one number per film


def movielens_spec(users: int, films: int, *, sample: int = 10) -> Spec:
    """Return the description of the funnel.

    Args:
        users: The number of user ids.
        films: The number of film ids.
        sample: The number of items sampled per stage.
    """
    codes = {"gender": len(GENDERS), "age": len(AGES), "occupation": len(OCCUPATIONS)}
    return validate_spec(
        {
            "request": "request_id",
            "item": "movie_id",
            "user": "user_id",
            "time": {"column": "time", "unit": "s", "zone": "UTC"},
            "day": "day",
            "stage": "stage",
            "rank": "rank",
            "stages": [{"name": name, "sample": sample} for name in STAGES],
            "relevant": "liked",
            "feedback": ["rating"],
            "features": {
                "user": {
                    "user_id": {"kind": "categorical", "num_buckets": users},
                    **{name: {"kind": "categorical", "num_buckets": count} for name, count in codes.items()},
                    "zip": {"kind": "categorical", "vocabulary": True},
                },
                "context": {part: {"kind": "time", "part": part} for part in ("weekday", "hour")},
                "item": {
                    "movie_id": {"kind": "categorical", "num_buckets": films},
                    "genre": {"kind": "categorical", "num_buckets": len(GENRES)},
                    "year": {"kind": "categorical", "vocabulary": True},
                    "genres": {"kind": "dense", "size": len(GENRES)},
                },
            },
            "sequences": {
                "liked": {
                    "max_length": HISTORY_LENGTH,
                    "features": _SEQUENCE,
                    "columns": {name: f"sequence.liked.{name}" for name in _SEQUENCE},
                }
            },
        }
    )


def prepare_movielens(
    source: Path,
    out: Path,
    *,
    days: int = 10,
    block: int = 20,
    sample: int = 10,
    seed: int = 0,
    force: bool = False,
    on_requests: Callable[[int, int], None] = lambda done, total: None,
) -> ImpressionLog:
    """Construct a funnel from the files of MovieLens-1M and write it as an impression log.

    Args:
        source: The directory of the files.
        out: The directory to write.
        days: The number of days.
        block: The smallest number of ratings of a request.
        sample: The number of items sampled per stage.
        seed: Seed of the sample.
        force: Replace an existing impression log.
        on_requests: Receives the number of finished requests and the number of all requests.

    Raises:
        ValueError: If a file is missing or has an invalid line; the message names the line.
    """
    check_seed(seed)
    with fresh_directory(out, is_log, force=force) as directory:
        _check_files(source)
        films, users = read_movies(source / "movies.dat"), read_users(source / "users.dat")
        ratings = into_blocks(read_ratings(source / "ratings.dat", users, films), block)
        requests = into_days(ratings, days)
        spec = movielens_spec(_above(users["user_id"]), _above(films["movie_id"]), sample=sample)
        encoding = Encoding(spec, {"user.zip": _values(users["zip"]), "item.year": _values(films["year"])})
        writer = LogWriter(directory, spec, encoding.features, impression_schema(spec, request=pa.int64()))
        counts, done = Counts(), 0
        for day, of_day, rows in _rows_by_day(ratings, users, films, requests, sample=sample, seed=seed):
            assembled = assemble(rows, encoding, seed=seed, requests=of_day)
            for _, impressions in assembled.days:
                writer.write(day, impressions)
            counts += assembled.counts
            on_requests(done := done + len(of_day), len(requests))
        lengths = {"ratings.dat": len(ratings), "users.dat": len(users), "movies.dat": len(films)}
        about = {
            "command": "prepare movielens",
            "sources": [about_file(source / name) | {"rows": length} for name, length in lengths.items()],
            "block": block,
            "seed": seed,
            "counts": counts.to_json(),
        }
        writer.finish(item_table(films, encoding), encoding.arrays, about)
    return ImpressionLog.load(out)


def _check_files(source: Path) -> None:
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        raise ValueError(f"{source}: {', '.join(missing)} missing; MovieLens-1M has {', '.join(FILES)}")


def _rows_by_day(
    ratings: pl.DataFrame, users: pl.DataFrame, films: pl.DataFrame, requests: pl.DataFrame, *, sample: int, seed: int
) -> Iterator[tuple[str, pl.DataFrame, pl.DataFrame]]:
    """Iterate over the days: name, sequences of its requests, and their candidates with all features."""
    funnel = _Funnel(ratings, films, sample=sample, seed=seed)
    sequences = liked_before(requests, ratings, films)
    for (day,), of_day in requests.group_by("day", maintain_order=True):
        candidates = pl.concat([funnel.seen(of_day), *funnel.unseen(of_day)])
        rows = candidates.join(of_day, on="request_id", maintain_order="left")
        for table, key in ((users, "user_id"), (films, "movie_id")):
            rows = rows.join(table, on=key, maintain_order="left")
        yield str(day), sequences.join(of_day, on="request_id", how="semi"), rows


def _above(ids: pl.Series) -> int:
    return int(ids.to_numpy().max()) + 1


def _values(raw: pl.Series) -> pl.Series:
    """Return the values that get ids, the most frequent first."""
    counts = raw.drop_nulls().value_counts(name="count")
    return counts.sort("count", raw.name, descending=[True, False])[raw.name]


# --- reading ----------------------------------------------------------------------------------------------------


def read_users(path: Path) -> pl.DataFrame:
    """Read ``UserID::Gender::Age::Occupation::Zip-code``; only the first three characters of the zip code, a region."""
    rows = _Rows(path, ["user_id", "gender", "age", "occupation", "zip"])
    return _once(rows, ["user_id"]).select(
        rows.whole("user_id"),
        rows.one_of("gender", GENDERS),
        rows.one_of("age", AGES),
        rows.one_of("occupation", OCCUPATIONS),
        rows.frame["zip"].str.head(3),
    )


def read_movies(path: Path) -> pl.DataFrame:
    """Read ``MovieID::Title::Genre|Genre|...``, with the year in brackets at the end of the title."""
    rows = _Rows(path, ["movie_id", "title", "genres"])
    named = rows.frame["genres"].str.split("|")
    wrong = rows.frame.filter(named.list.eval(~pl.element().is_in(GENRES)).list.any())
    if len(wrong):
        rows.refuse(wrong["line"][0], f"found the genres {wrong['genres'][0]!r}, allowed are {', '.join(GENRES)}")
    numbers = named.list.eval(pl.element().replace_strict(GENRES, range(len(GENRES)), return_dtype=pl.Int64))
    marks = np.zeros((len(named), len(GENRES)), np.float32)
    marks[np.repeat(np.arange(len(named)), named.list.len().to_numpy()), numbers.explode().to_numpy()] = 1
    year = rows.frame["title"].str.extract(r"\((\d{4})\)\s*$").cast(pl.Int64)
    return _once(rows, ["movie_id"]).select(
        rows.whole("movie_id"), year.alias("year"), numbers.list.first().alias("genre"), pl.Series("genres", marks)
    )


def read_ratings(path: Path, users: pl.DataFrame, films: pl.DataFrame) -> pl.DataFrame:
    """Read ``UserID::MovieID::Rating::Timestamp``, the time in seconds since 1970."""
    rows = _Rows(path, ["user_id", "movie_id", "rating", "time"])
    ratings = _once(rows, ["user_id", "movie_id"]).select(
        rows.whole("user_id"), rows.whole("movie_id"), rows.one_of("rating", STARS) + 1, rows.whole("time")
    )
    for column, known in (("user_id", users), ("movie_id", films)):
        unknown = ~ratings[column].is_in(known[column].implode())
        if unknown.any():
            at = int(unknown.arg_max() or 0)
            rows.refuse(rows.frame["line"][at], f"found the {column} {ratings[column][at]}, which no other file has")
    return ratings


class _Rows:
    """The fields of a MovieLens file, separated by ``::``, as text."""

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        text = pl.Series("text", path.read_bytes().decode("latin-1").split("\n")).str.strip_chars_end("\r")
        lines = pl.DataFrame({"text": text}).with_row_index("line", offset=1).filter(pl.col("text") != "")
        if len(lines) == 0:
            raise ValueError(f"{path}: found no lines")
        fields = lines["text"].str.split("::")
        if (wrong := fields.list.len() != len(columns)).any():
            at = int(wrong.arg_max() or 0)
            self.refuse(lines["line"][at], f"found {len(fields[at])} fields between '::', expected {len(columns)}")
        self.frame = pl.DataFrame(
            {"line": lines["line"], **{name: fields.list.get(place) for place, name in enumerate(columns)}}
        )

    def refuse(self, line: int, why: str) -> None:
        raise ValueError(f"{self.path}:{line}: {why}")

    def whole(self, column: str) -> pl.Series:
        """Parse a column of whole numbers from 0 on."""
        raw = self.frame[column]
        numbers = raw.cast(pl.Int64, strict=False)
        if (wrong := numbers.is_null() | ~numbers.is_between(0, 2**31 - 1)).any():
            at = int(wrong.arg_max() or 0)
            self.refuse(self.frame["line"][at], f"found the {column} {raw[at]!r}, expected a whole number from 0")
        return numbers

    def one_of(self, column: str, allowed: Sequence[str]) -> pl.Series:
        """Return the index of each value of a column in the list of allowed values."""
        raw = self.frame[column]
        places = raw.replace_strict(allowed, range(len(allowed)), default=None, return_dtype=pl.Int64)
        if places.has_nulls():
            at = int(places.is_null().arg_max() or 0)
            self.refuse(self.frame["line"][at], f"found the {column} {raw[at]!r}, allowed are {', '.join(allowed)}")
        return places


def _once(rows: _Rows, key: list[str]) -> pl.DataFrame:
    again = rows.frame.filter(~pl.struct(key).is_first_distinct())
    if len(again):
        which = ", ".join(f"{column} {again[column][0]}" for column in key)
        rows.refuse(again["line"][0], f"found {which} a second time")
    return rows.frame


# --- requests ---------------------------------------------------------------------------------------------------


def into_blocks(ratings: pl.DataFrame, block: int) -> pl.DataFrame:
    """Add the number of their request to ratings, sorted by user and time; requests are numbered in the order of time.

    The ratings of a user are divided into as many parts as blocks fit, of nearly equal size, so that no part is short.
    """
    ratings = ratings.sort("user_id", "time", "movie_id")
    place, count = pl.int_range(pl.len()).over("user_id"), pl.len().over("user_id")
    blocks = pl.max_horizontal(1, count // block)
    ratings = ratings.with_columns(block=place * blocks // count)
    first = ratings.group_by("user_id", "block").agg(begin=pl.min("time")).sort("begin", "user_id", "block")
    numbers = first.with_row_index("request_id").cast({"request_id": pl.Int64}).drop("begin")
    return ratings.join(numbers, on=["user_id", "block"], maintain_order="left").drop("block")


def into_days(ratings: pl.DataFrame, days: int) -> pl.DataFrame:
    """Return the requests in the order of time, with the name of their day."""
    requests = ratings.group_by("request_id").agg(pl.first("user_id"), pl.min("time")).sort("request_id")
    if days > len(requests):
        raise ValueError(f"days: found {days}, expected at most {len(requests)}, the number of requests")
    number = pl.int_range(pl.len()) * days // pl.len() + 1
    width = max(2, len(str(days)))
    return requests.with_columns(day=pl.format("day-{}", number.cast(pl.String).str.zfill(width)))


def liked_before(requests: pl.DataFrame, ratings: pl.DataFrame, films: pl.DataFrame) -> pl.DataFrame:
    """Return the last films that the user of each request liked before it, as columns of lists."""
    liked = ratings.filter(pl.col("rating") >= LEAST_LIKED).join(films, on="movie_id", maintain_order="left")
    events = liked.select("time", *_SEQUENCE, user="user_id", order="movie_id")
    found = EventHistory(HISTORY_LENGTH, _SEQUENCE).advance(requests["user_id"], requests["time"], events)
    found = found.rename(lambda name: f"sequence.liked.{name}")
    return pl.concat([requests.select("request_id"), found], how="horizontal")


# --- candidates -------------------------------------------------------------------------------------------------


class _Funnel:
    """The candidates of requests: what users rated, and what they did not."""

    def __init__(self, ratings: pl.DataFrame, films: pl.DataFrame, *, sample: int, seed: int) -> None:
        self._films = np.sort(films["movie_id"].to_numpy())
        self._film_hash = hash_values(pl.Series("movie_id", self._films))
        self._ratings = ratings
        self._film = np.searchsorted(self._films, ratings["movie_id"].to_numpy())  # of each rating
        self._user = ratings["user_id"].to_numpy()  # sorted
        order = np.argsort(ratings["time"].to_numpy(), kind="stable")
        self._times, self._film_by_time = ratings["time"].to_numpy()[order], self._film[order]
        self._sample, self._seed = sample, seed

    def seen(self, requests: pl.DataFrame) -> pl.DataFrame:
        """Return the rated films of the requests."""
        liked, stars = pl.col("rating") >= LEAST_LIKED, pl.col("rating")
        return self._ratings.join(requests, on="request_id", how="semi", maintain_order="left").select(
            "request_id",
            "movie_id",
            pl.col("rating").cast(pl.Int64),
            stage=pl.when(liked).then(pl.lit("liked")).otherwise(pl.lit("low")),
            rank=pl.when(liked).then(5 - stars).otherwise(LEAST_LIKED - 1 - stars),
        )

    def unseen(self, requests: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Iterate over the popular films and a sample of the other films that the users of the requests never rated."""
        for start in range(0, len(requests), _CHUNK):
            chunk = requests.slice(start, _CHUNK)
            free = self._never_rated(chunk["user_id"].to_numpy())
            popular = _largest(np.where(free, self._popularity(chunk["time"].to_numpy()), 0), POPULAR)
            free[popular] = False
            # the sampler would keep the same films if it received all of them
            keys = sample_keys(self._seed, hash_values(chunk["request_id"])[:, None], self._film_hash)
            chosen = _largest(np.where(free, ~keys, 0), self._sample)
            for name, (row, film) in (("popular", popular), ("random", chosen)):
                yield pl.DataFrame(
                    {
                        "request_id": chunk["request_id"].to_numpy()[row],
                        "movie_id": self._films[film],
                        "rating": np.zeros(len(row), np.int64),
                        "stage": pl.repeat(name, len(row), eager=True),
                        "rank": pl.repeat(None, len(row), dtype=pl.Int64, eager=True),
                    }
                )

    def _never_rated(self, users: Integers) -> NDArray[np.bool_]:
        """Return which films each user never rated: (users, films)."""
        starts, stops = (np.searchsorted(self._user, users, side=side) for side in ("left", "right"))
        lengths = stops - starts
        ratings = spans(starts, lengths)
        free = np.ones((len(users), len(self._films)), np.bool_)
        free[np.repeat(np.arange(len(users)), lengths), self._film[ratings]] = False
        return free

    def _popularity(self, times: Integers) -> NDArray[np.uint64]:
        """Return a number per film (times, films) that grows with its ratings before each of the increasing times.

        It is 0 for films without ratings and different for all others: with equal ratings the smaller id is higher.
        """
        films = len(self._films)
        known, last = np.searchsorted(self._times, [times[0], times[-1]], side="left")
        counts = np.zeros((len(times), films), np.int64)
        counts[0] = np.bincount(self._film_by_time[:known], minlength=films)
        # a rating counts from the first later request on
        rows = np.searchsorted(times, self._times[known:last], side="right")
        np.add.at(counts, (rows, self._film_by_time[known:last]), 1)
        np.cumsum(counts, axis=0, out=counts)
        return np.where(counts > 0, counts * films + np.arange(films)[::-1], 0).astype(np.uint64)


def _largest(values: NDArray[np.uint64], count: int) -> tuple[Integers, Integers]:
    """Return the rows and columns of the largest numbers of each row, without zeros."""
    count = min(count, values.shape[1])
    columns = np.argpartition(values, values.shape[1] - count, axis=1)[:, values.shape[1] - count :]
    columns = np.sort(columns, axis=1)
    rows: NDArray[Any] = np.broadcast_to(np.arange(len(values))[:, None], columns.shape)
    positive = np.take_along_axis(values, columns, axis=1) > 0
    return rows[positive], columns[positive]
