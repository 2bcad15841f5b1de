"""The full-stage sampler, stable hashes and histories against loops over rows."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.data.impressions.assemble import EventHistory
from rankfall.data.impressions.encoding import hash_values
from rankfall.data.impressions.requests import (
    check_seed,
    draw_negatives,
    full_stage_grades,
    full_stage_sample,
    order_keys,
    sample_keys,
)
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.recflow import prepare_recflow
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.encoding import combine
from support.command_line import run

if TYPE_CHECKING:
    from pathlib import Path

WORD = 2**64


# --- hashes -----------------------------------------------------------------------------------------------------


def mix(bits: int) -> int:
    bits = (bits + 0x9E3779B97F4A7C15) % WORD
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % WORD
    return bits ^ (bits >> 31)


def fold(text: str) -> int:
    base = 0xD6E8FEB86659FD93
    return sum((byte + 1) * pow(base, place + 1, WORD) for place, byte in enumerate(text.encode())) % WORD


def test_mix_is_splitmix64() -> None:
    # the first numbers that splitmix64 draws from the seed 1234567, as published with its reference implementation
    state, golden = 1234567, 0x9E3779B97F4A7C15
    drawn = [int(combine(np.uint64((state + i * golden) % WORD))) for i in range(5)]
    assert drawn == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(0, 2**63))
def test_hashes_of_numbers(values: list[int], seed: int) -> None:
    expected = [mix(mix(seed) ^ (value % WORD)) for value in values]
    assert hash_values(pl.Series(values, dtype=pl.Int64), seed).tolist() == expected


@given(st.lists(st.text(max_size=12)), st.integers(0, 5))
def test_hashes_of_strings(values: list[str], first: int) -> None:
    expected = [mix(mix(0) ^ fold(value)) for value in values]
    assert hash_values(pl.Series(values, dtype=pl.String)[first:]).tolist() == expected[first:]


def test_hashes_spread() -> None:
    for values in (pl.Series(range(20_000)), pl.Series([f"item-{i}" for i in range(20_000)])):
        hashes = hash_values(values)
        assert len(set(hashes.tolist())) == 20_000
        counts = np.bincount((hashes % np.uint64(100)).astype(int), minlength=100)
        # chi-squared with 99 degrees of freedom: mean 99, deviation 14
        assert ((counts - 200) ** 2 / 200).sum() < 180


def test_hashes_of_other_things_are_refused() -> None:
    with pytest.raises(ValueError, match=r"price: found Float64, expected whole numbers or strings"):
        hash_values(pl.Series("price", [1.5]))


# --- samples ----------------------------------------------------------------------------------------------------


@st.composite
def logged_rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    count = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    return (
        rng.integers(0, 6, count),
        rng.integers(0, 3, count),
        rng.integers(-1, 4, count),
        rng.permutation(count).astype(np.uint64),
    )


@given(logged_rows(), st.lists(st.one_of(st.none(), st.integers(1, 5)), min_size=3, max_size=3))
def test_the_smallest_keys_of_each_stage_are_kept(rows, sizes) -> None:  # type: ignore[no-untyped-def]
    requests, depth, _, keys = rows
    kept = full_stage_sample(requests, depth, keys, sizes)
    expected = []
    for request in range(6):
        for stage, size in enumerate(sizes):
            of_stage = [i for i in range(len(keys)) if requests[i] == request and depth[i] == stage]
            expected += sorted(of_stage, key=lambda i: int(keys[i]))[:size]
    assert kept.tolist() == expected


@given(logged_rows())
def test_grades_count_the_worse_places(rows) -> None:  # type: ignore[no-untyped-def]
    requests, depth, rank, _ = rows
    grades = full_stage_grades(requests, depth, rank)

    def goodness(i: int) -> tuple[int, float]:
        return int(depth[i]), -float(rank[i]) if rank[i] >= 0 else -np.inf

    for i in range(len(rank)):
        worse = {goodness(j) for j in range(len(rank)) if requests[j] == requests[i] and goodness(j) < goodness(i)}
        assert grades[i] == len(worse)


@given(logged_rows())
def test_grades_by_relevance_count_the_worse_places(rows) -> None:  # type: ignore[no-untyped-def]
    requests, depth, rank, keys = rows
    relevance = (keys % np.uint64(3)).astype(np.float32)
    grades = full_stage_grades(requests, np.minimum(depth, 0), rank, relevance)

    def goodness(i: int) -> tuple[int, float, float]:
        return min(int(depth[i]), 0), float(relevance[i]), -float(rank[i]) if rank[i] >= 0 else -np.inf

    for i in range(len(rank)):
        worse = {goodness(j) for j in range(len(rank)) if requests[j] == requests[i] and goodness(j) < goodness(i)}
        assert grades[i] == len(worse)


def test_grades_by_hand() -> None:
    # two requests; in the first a deeper item beats every rank above it, and no rank is the worst of its depth
    grades = full_stage_grades(
        np.array([0, 0, 0, 0, 1, 1]), np.array([0, 2, 2, 2, 1, 0]), np.array([1, 5, 0, -1, 7, 0])
    )
    assert grades.tolist() == [0, 2, 3, 1, 1, 0]


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 20))
@settings(max_examples=50)
def test_negatives_are_new_and_different(seed: int, items: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    requests = hash_values(pl.Series(range(8)))
    taken_request, taken_item = rng.integers(0, 8, 40), rng.integers(0, items, 40)
    taken = set(zip(taken_request.tolist(), taken_item.tolist(), strict=True))
    numbers, rows = draw_negatives(requests, taken_request, taken_item, items=items, count=count, seed=seed)
    drawn = defaultdict(list)
    for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
        assert (number, row) not in taken
        drawn[number].append(row)
    for number in range(8):
        free = items - len({item for request, item in taken if request == number})
        assert len(drawn[number]) == len(set(drawn[number])) == min(free, count)
        alone = draw_negatives(
            requests[number : number + 1],
            np.zeros(int((taken_request == number).sum()), np.int64),
            taken_item[taken_request == number],
            items=items,
            count=count,
            seed=seed,
        )
        assert alone[1].tolist() == drawn[number]  # whoever else is asked for changes nothing


def test_order_is_independent_of_sampling() -> None:
    # of a crowded stage the smallest keys are kept; were they the order, its items would come first
    requests = hash_values(pl.Series(np.repeat(np.arange(400), 100)))
    items = hash_values(pl.Series(np.tile(np.arange(100), 400)))
    sampled = np.argsort(sample_keys(0, requests, items).reshape(400, 100), axis=1)[:, :10]
    places = np.argsort(np.argsort(order_keys(0, requests, items).reshape(400, 100), axis=1), axis=1)
    mean = np.take_along_axis(places, sampled, axis=1).mean()
    assert abs(mean - 49.5) < 5 * 28.9 / np.sqrt(4000)  # five standard errors of a uniform place


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64])
def test_seeds_that_hashes_cannot_take(tmp_path: Path, seed: int) -> None:
    spec = validate_spec({"request": "r", "item": "i", "day": "d", "stages": [{"name": "all"}], "relevant": "all"})
    message = rf"seed: found {seed}, expected a whole number from 0 to 2\^63 - 1"
    with pytest.raises(ValueError, match=message):
        prepare_rows([tmp_path], tmp_path / "log", spec, seed=seed)
    with pytest.raises(ValueError, match=message):
        prepare_recflow(tmp_path, tmp_path / "log", seed=seed)
    check_seed(2**63 - 1)
    hashes = hash_values(pl.Series([1]))
    assert sample_keys(2**63 - 1, hashes, hashes) != sample_keys(0, hashes, hashes)


@pytest.mark.parametrize("command", ["rows", "recflow"])
def test_commands_say_which_seeds_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    needed = ["--spec", "spec.yaml"] if command == "rows" else []
    assert run("prepare", command, str(tmp_path), "--out", str(tmp_path / "log"), *needed, "--seed", str(2**63)) == 2
    said = capsys.readouterr().err
    assert "--seed" in said
    assert "9223372036854775807" in said


# --- histories --------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 8), st.lists(st.integers(0, 30), max_size=5))
@settings(max_examples=50)
def test_history_is_the_last_events_before(seed: int, max_length: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    events = pl.DataFrame(
        {
            "user": [f"u{i}" for i in rng.integers(0, 4, 80)],
            "time": np.sort(rng.integers(0, 30, 80)),
            "order": rng.permutation(80),
            "film": rng.integers(0, 100, 80),
            "kind": np.arange(80),
        }
    )
    asked = pl.DataFrame({"user": [f"u{i}" for i in rng.integers(0, 5, 60)], "time": np.sort(rng.integers(0, 30, 60))})
    history = EventHistory(max_length, ["film", "kind"])
    parts = []
    edges = [0, *sorted(cuts), 31]
    for low, high in itertools.pairwise(edges):
        portion = asked.filter(pl.col("time").is_between(low, high, closed="left"))
        new = events.filter(pl.col("time").is_between(low, high, closed="left"))
        parts.append(history.advance(portion["user"], portion["time"], new))
    found = pl.concat(parts)
    for (user, time), film, kind in zip(asked.iter_rows(), found["film"], found["kind"], strict=True):
        before = sorted((r for r in events.iter_rows() if r[0] == user and r[1] < time), key=lambda r: (r[1], r[2]))
        assert film.to_list() == [row[3] for row in before][-max_length:]
        assert kind.to_list() == [row[4] for row in before][-max_length:]


@pytest.mark.parametrize("names", [["a", None, "b", None, "a"], [7, None, 3, None, 7]])
def test_nobody_has_no_history(names: list[str | int | None]) -> None:
    events = pl.DataFrame({"user": names, "time": range(5), "order": range(5), "film": range(10, 15)})
    history = EventHistory(8, ["film"])
    users = pl.Series([names[0], None, names[2], None])
    first = history.advance(users, pl.Series([9, 9, 9, 0]), events)
    assert first["film"].to_list() == [[10, 14], [], [12], []]
    # portions of nobody, whose column has no type of its own
    nobody = pl.DataFrame({"user": [None], "time": [10], "order": [0], "film": [15]})
    assert history.advance(pl.Series([None]), pl.Series([11]), nobody)["film"].to_list() == [[]]
    assert history.advance(users, pl.Series([12] * 4), events[:0])["film"].to_list() == [[10, 14], [], [12], []]


def test_history_ignores_events_without_user() -> None:
    history = EventHistory(8, ["film"])
    nobody = pl.DataFrame({"user": [None], "time": [1], "order": [0], "film": [15]})
    assert history.advance(pl.Series([None]), pl.Series([2]), nobody)["film"].to_list() == [[]]
    known = nobody.with_columns(user=pl.lit("a"), time=pl.lit(3, pl.Int64))
    assert history.advance(pl.Series(["a", None]), pl.Series([4, 4]), known)["film"].to_list() == [[15], []]
