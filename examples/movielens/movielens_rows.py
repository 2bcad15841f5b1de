"""Rows of MovieLens-1M, for the spec ``spec.yaml``. The ratings are real, the funnel is constructed from them.

MovieLens contains ratings, but not the items that users were shown. Requests and stages are therefore constructed:

- A **request** is a block of at least 20 consecutive ratings of a user and has the time of the first one. All requests
  in the order of time are divided into **days** of equal size, ``day-01``, ``day-02``, ...
- Its candidates are, from the deepest stage to the first: `liked`, films of the block with 4 or 5 stars; `low`, its
  other films; `popular`, a sample of the 100 films with the most ratings before the request among those that the user
  never rated; `random`, a sample of all other films that the user never rated.
- The **rank** in `liked` and `low` follows the stars. The other stages have none.

All features are from before the request. That a user never rates a film, in all of the data, is a label.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl

POPULAR = 100  # films from which the stage `popular` is sampled
GENRES = [
    "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
]  # fmt: skip


def read(directory: str, days: int = 10, block: int = 20, sample: int = 10, seed: int = 0) -> Iterator[pl.DataFrame]:
    """Yield the rows of one day after another.

    Args:
        directory: Directory of ``ratings.dat``, ``users.dat`` and ``movies.dat``.
        days: Number of days.
        block: Smallest number of ratings of a request.
        sample: Number of popular and of random films of a request.
        seed: Seed of this sample.
    """
    source = Path(os.path.expandvars(directory))
    users, films = read_users(source / "users.dat"), read_films(source / "movies.dat")
    ratings = into_requests(read_ratings(source / "ratings.dat", users, films), block)
    requests = into_days(ratings, days)
    candidates = pl.concat([rated(ratings), never_rated(ratings, requests, films, sample, seed)])
    for of_day in requests.partition_by("day", maintain_order=True):
        rows = of_day.join(candidates, on="request_id")
        yield rows.join(users, on="user_id").join(films, on="movie_id")


# --- requests and their candidates ------------------------------------------------------------------------------


def into_requests(ratings: pl.DataFrame, block: int) -> pl.DataFrame:
    """Add the number of their request to ratings; requests are numbered in the order of time.

    The ratings of a user are divided into as many parts as blocks fit, of nearly equal size, so that no part is short.
    """
    ratings = ratings.sort("user_id", "time", "movie_id")
    place, count = pl.int_range(pl.len()).over("user_id"), pl.len().over("user_id")
    ratings = ratings.with_columns(block=place * pl.max_horizontal(1, count // block) // count)
    first = ratings.group_by("user_id", "block").agg(begin=pl.min("time")).sort("begin", "user_id", "block")
    numbers = first.select("user_id", "block", request_id=pl.int_range(pl.len()))
    return ratings.join(numbers, on=["user_id", "block"], maintain_order="left").drop("block")


def into_days(ratings: pl.DataFrame, days: int) -> pl.DataFrame:
    """Return the requests in the order of time, with the name of their day."""
    requests = ratings.group_by("request_id").agg(pl.first("user_id"), pl.min("time")).sort("request_id")
    if days > len(requests):
        raise ValueError(f"days: found {days}, expected at most {len(requests)}, the number of requests")
    number = pl.int_range(pl.len()) * days // pl.len() + 1
    return requests.with_columns(day=pl.format("day-{}", number.cast(pl.String).str.zfill(max(2, len(str(days))))))


def rated(ratings: pl.DataFrame) -> pl.DataFrame:
    """Return the films that users rated, as candidates of their requests."""
    liked, stars = pl.col("rating") >= 4, pl.col("rating")
    return ratings.select(
        "request_id",
        "movie_id",
        "rating",
        liked=liked.cast(pl.Int64),
        stage=pl.when(liked).then(pl.lit("liked")).otherwise(pl.lit("low")),
        rank=pl.when(liked).then(5 - stars).otherwise(3 - stars),
    )


def never_rated(
    ratings: pl.DataFrame, requests: pl.DataFrame, films: pl.DataFrame, sample: int, seed: int
) -> pl.DataFrame:
    """Return samples of popular and of other films that users never rated, as candidates of their requests."""
    ids = np.sort(films["movie_id"].to_numpy())
    film = np.searchsorted(ids, ratings["movie_id"].to_numpy())  # of each rating
    has_rated = np.zeros((int(ratings["user_id"].to_numpy().max()) + 1, len(ids)), np.bool_)
    has_rated[ratings["user_id"].to_numpy(), film] = True
    by_time = np.argsort(ratings["time"].to_numpy(), kind="stable")
    times, film = ratings["time"].to_numpy()[by_time], film[by_time]
    counts, counted = np.zeros(len(ids), np.int64), 0
    drawn = []
    for request, user, time, _ in requests.iter_rows():
        before = int(np.searchsorted(times, time))  # number of ratings before the request
        counts += np.bincount(film[counted:before], minlength=len(ids))
        counted = before
        free = np.flatnonzero(~has_rated[user])
        # most ratings first; of films with equally many ratings, the smaller id
        order = np.argsort(free - counts[free] * len(ids))
        is_popular = np.zeros(len(free), np.bool_)
        is_popular[order[:POPULAR]] = True
        is_popular &= counts[free] > 0
        generator = np.random.default_rng([seed, request])
        for stage, pool in (("popular", free[is_popular]), ("random", free[~is_popular])):
            chosen = generator.choice(pool, min(sample, len(pool)), replace=False)
            drawn.append((request, stage, ids[chosen].tolist()))
    columns = {"request_id": pl.Int64(), "stage": pl.String(), "movie_id": pl.List(pl.Int64)}
    rows = pl.DataFrame(drawn, columns, orient="row").explode("movie_id").drop_nulls()
    zero, none = pl.lit(0, pl.Int64), pl.lit(None, pl.Int64)
    return rows.select("request_id", "movie_id", rating=zero, liked=zero, stage="stage", rank=none)


# --- files --------------------------------------------------------------------------------------------------------


def read_users(path: Path) -> pl.DataFrame:
    """Read ``UserID::Gender::Age::Occupation::Zip-code``; only the first three characters of the zip code, a region."""
    users = read_fields(
        path, {"user_id": pl.Int64, "gender": pl.String, "age": pl.Int64, "occupation": pl.Int64, "zip": pl.String}
    )
    check(path, users, pl.col("user_id").is_first_distinct(), "found the user a second time")
    return users.select("user_id", "gender", "age", "occupation", pl.col("zip").str.head(3))


def read_films(path: Path) -> pl.DataFrame:
    """Read ``MovieID::Title::Genre|Genre|...``, with the year in brackets at the end of the title."""
    films = read_fields(path, {"movie_id": pl.Int64, "title": pl.String, "genres": pl.String})
    named = pl.col("genres").str.split("|")
    check(path, films, named.list.eval(pl.element().is_in(GENRES)).list.all(), "found an unknown genre")
    check(path, films, pl.col("movie_id").is_first_distinct(), "found the film a second time")
    return films.select(
        "movie_id",
        year=pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Int64),
        genre=named.list.first(),
        genres=pl.concat_list([named.list.contains(genre).cast(pl.Float32) for genre in GENRES]).list.to_array(18),
    )


def read_ratings(path: Path, users: pl.DataFrame, films: pl.DataFrame) -> pl.DataFrame:
    """Read ``UserID::MovieID::Rating::Timestamp``, the time in seconds since 1970."""
    columns = ["user_id", "movie_id", "rating", "time"]
    ratings = read_fields(path, dict.fromkeys(columns, pl.Int64))
    check(path, ratings, pl.col("user_id").is_in(users["user_id"].implode()), "found a user that users.dat lacks")
    check(path, ratings, pl.col("movie_id").is_in(films["movie_id"].implode()), "found a film that movies.dat lacks")
    check(path, ratings, pl.col("rating").is_between(1, 5), "expected 1 to 5 stars")
    check(
        path, ratings, pl.struct("user_id", "movie_id").is_first_distinct(), "found the film of the user a second time"
    )
    return ratings.select(columns)


def read_fields(path: Path, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """Read the lines of a file, whose fields are separated by ``::``, with their numbers."""
    text = pl.Series("text", path.read_text("latin-1").splitlines(), pl.String)
    rows = text.to_frame().with_row_index("line", offset=1).filter(text != "")
    if len(rows) == 0:
        raise ValueError(f"{path}: found no lines")
    rows = rows.with_columns(fields=pl.col("text").str.split("::"))
    check(path, rows, pl.col("fields").list.len() == len(types), f"expected {len(types)} fields between '::'")
    for place, (name, kind) in enumerate(types.items()):
        rows = rows.with_columns(pl.col("fields").list.get(place).cast(kind, strict=False).alias(name))
        check(path, rows, pl.col(name).is_not_null(), f"expected a whole number as {name}")
    return rows


def check(path: Path, lines: pl.DataFrame, right: pl.Expr, message: str) -> None:
    """Raise an error that names the first line for which an expression is not true."""
    wrong = lines.filter(~right.fill_null(False))
    if len(wrong):
        raise ValueError(f"{path}:{wrong['line'][0]}: {message}")
