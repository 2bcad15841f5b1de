"""The loader gives what a loop over the rows of the file would, whatever the order, the shares and the stops."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.data import ImpressionLoader, Impressions
from rankfall.data.impressions.assemble import assemble
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.items import impression_schema, item_schema, item_table
from rankfall.data.impressions.loader.impression_loader import block_shuffled
from rankfall.data.impressions.loader.negatives import TargetLists, draw
from rankfall.data.impressions.loader.window import Prefetcher
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.spec import features_of, validate_spec
from support.sealing import seal_again

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

ITEMS = 60  # of the log, with ids 0, 3, 6, ...
LONGEST = 7
DAYS = {"2024-01-13": 23, "2024-01-14": 1, "2024-01-15": 40, "empty": 0, "2024-01-16": 17}
SIZES = {"history": 4, "likes": 3}
SPEC: dict[str, Any] = {
    "time": {"column": "time", "unit": "ms"},
    "stage": "stage",
    "stages": [{"name": "dropped"}, {"name": "ranked"}, {"name": "shown"}],
    "relevant": "shown",
    "feedback": ["click", "like"],
    "features": {
        "user": {"id": {"kind": "categorical", "num_buckets": 98}, "taste": {"kind": "dense", "size": 3}},
        "context": {"load": {"kind": "dense"}},
        "item": {
            "video": {"kind": "categorical", "num_buckets": 998},
            "price": {"kind": "dense"},
            "image": {"kind": "dense", "size": 2},
        },
    },
    "sequences": {
        "history": {"max_length": 4, "features": ["video"], "columns": {"video": "history"}},
        "likes": {"max_length": 3, "features": ["video"], "columns": {"video": "likes"}},
    },
}


def item_features(item: int) -> dict[str, Any]:
    """Features follow from the item, as in a real log."""
    return {"item.video": item + 2, "item.price": item / 4, "item.image": [item / 2, -1.0 - item]}


def random_impression(
    rng: np.random.Generator, request: str, shortest: int, left_out: int, longest: int = LONGEST
) -> dict[str, Any]:
    count = int(rng.integers(min(shortest, longest), longest + 1))
    everything = [3 * int(item) for item in rng.permutation(ITEMS)]
    items = everything[:count]
    more = max(0, int(rng.integers(-left_out, left_out + 1)))  # none in half of the impressions
    one: dict[str, Any] = {
        "request": request,
        "time": int(rng.integers(10**12)),
        "user.id": int(rng.integers(2, 100)),
        "user.taste": rng.random(3, np.float32).tolist(),
        "context.load": float(rng.random(dtype=np.float32)),
        "item": items,
        "left_out": sorted(everything[count : count + more]),
        "depth": rng.integers(-1, 3, count).tolist(),
        "rank": rng.integers(-1, 9, count).tolist(),
        "grade": rng.integers(0, 9, count).tolist(),
    }
    for name in ("relevance", "feedback.click", "feedback.like", "truth"):
        one[name] = rng.random(count, np.float32).tolist()
    one["position"] = [place if place < 4 else -1 for place in one["rank"]]
    for name, longest in SIZES.items():
        one[f"sequence.{name}.video"] = rng.integers(1, 1000, rng.integers(0, longest + 1)).tolist()
    features = [item_features(item) for item in items]
    return one | {name: [of[name] for of in features] for name in ("item.video", "item.price", "item.image")}


def write_log(
    path: Path,
    *,
    block: int = 5,
    days: dict[str, int] = DAYS,
    shortest: int = 1,
    items: int = ITEMS,
    left_out: int = 0,
    bare: str = "",
    about: dict[str, Any] | None = None,
) -> ImpressionLog:
    """A log with lists and sequences of all lengths; on the day `bare` all lists are empty."""
    rng, spec = np.random.default_rng(0), validate_spec(SPEC | {"truth": "truth", "position": "position"})
    schema = impression_schema(spec, request=pa.string())
    writer = LogWriter(path, spec, features_of(spec, {"user.id": 100, "item.video": 1000}), schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankfall.data.impressions.log_writer.BLOCK", block)
        for day, count in days.items():
            longest = 0 if day == bare else LONGEST
            rows = [random_impression(rng, f"{day}/{i}", shortest, left_out, longest) for i in range(count)]
            writer.write(day, pa.Table.from_pylist(rows, schema))
        known = [{"item": 3 * i} | item_features(3 * i) for i in range(items)]
        writer.finish(pa.Table.from_pylist(known, item_schema(spec)), {}, about or {})
    return ImpressionLog.load(path)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    return write_log(tmp_path_factory.mktemp("loader") / "log")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ImpressionLog]:
    """Logs of the same impressions in blocks of several sizes."""
    directory = tmp_path_factory.mktemp("loader")
    return {block: write_log(directory / str(block), block=block) for block in (1, 3, 8, 100)}


def known_items(log: ImpressionLog, day: str) -> set[int]:
    """What the impressions of that day and of those before have, and what they leave out."""
    known: set[int] = set()
    for name in list(log.days)[: list(log.days).index(day) + 1]:
        for row in log.days[name].table().to_pylist():
            known |= {*row["item"], *row["left_out"]}
    return known


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    if loader_threads():
        gc.collect()  # of an iterator that an error or a test still held; to look through all objects takes long
    assert not loader_threads()


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rankfall-loader"]


def tensors(batch: Impressions) -> dict[str, Tensor]:
    """Everything in a batch, by name."""
    found: dict[str, Tensor] = {}

    def note(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, part in value.items():
                note(f"{path}.{name}", part)
        elif isinstance(value, torch.Tensor):
            found[path] = value

    for name in Impressions.__slots__:
        note(name, getattr(batch, name))
    return found


def assert_same(left: list[Impressions], right: list[Impressions]) -> None:
    assert [batch.day for batch in left] == [batch.day for batch in right]
    for one, other in zip(left, right, strict=True):
        ours, theirs = tensors(one), tensors(other)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert tensor.dtype == theirs[name].dtype, name
            assert np.array_equal(tensor.numpy(), theirs[name].numpy(), equal_nan=tensor.is_floating_point()), name


def joined(shares: list[Impressions]) -> Impressions:
    """The batch whose shares several ranks have."""
    parts = [tensors(one) for one in shares]
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def rebuilt(path: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rebuilt(f"{path}.{name}", part) for name, part in value.items()}
        return whole[path] if isinstance(value, torch.Tensor) else value

    return Impressions(**{name: rebuilt(name, getattr(shares[0], name)) for name in Impressions.__slots__})


def rows_of(batches: list[Impressions]) -> list[tuple[str, int]]:
    return [(batch.day, row) for batch in batches for row in batch.rows.tolist()]


def passed(loader: ImpressionLoader, epoch: int = 0) -> list[Impressions]:
    loader.set_epoch(epoch)
    return list(loader)


# --- what is in a batch -----------------------------------------------------------------------------------------


def padded(values: list[Any], width: int, padding: Any) -> list[Any]:
    return values + [padding] * (width - len(values))


def expected_row(impression: dict[str, Any], width: int) -> dict[str, Any]:
    """What a batch should say about an impression, from a loop over its values."""
    count = len(impression["item"])
    row: dict[str, Any] = {
        "time": int(impression["time"].timestamp() * 1000 + 0.5),
        "mask": padded([True] * count, width, False),
    }
    for name in ("item", "depth", "rank", "position"):
        row[name] = padded(impression[name], width, -1)
    for name in ("relevance", "grade", "truth", "feedback.click", "feedback.like"):
        row[name] = padded(impression[name], width, 0)
    for name in ("user.id", "user.taste", "context.load"):
        row[name] = impression[name]
    for name, padding in (("video", 0), ("price", 0), ("image", [0, 0])):
        row[f"items.{name}"] = padded(impression[f"item.{name}"], width, padding)
    for name, length in SIZES.items():
        events = impression[f"sequence.{name}.video"]
        row[f"sequences.{name}.video"] = padded(events, length, 0)
        row[f"sequence_mask.{name}"] = padded([True] * len(events), length, False)
    return row


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_impression_comes_once_with_its_values(log: ImpressionLog, shuffle: bool, prefetch: int) -> None:
    batches = list(ImpressionLoader(log, "..", batch=6, window=13, shuffle=shuffle, prefetch=prefetch))
    impressions = {day: log.days[day].table().to_pylist() for day in DAYS}
    assert Counter(rows_of(batches)) == {(day, row): 1 for day, count in DAYS.items() for row in range(count)}
    for batch in batches:
        found = {name: tensor.tolist() for name, tensor in tensors(batch).items()}
        for place, row in enumerate(found.pop("rows")):
            expected = expected_row(impressions[batch.day][row], LONGEST)
            assert {name: values[place] for name, values in found.items()} == expected


def test_tensors_have_their_types(log: ImpressionLog) -> None:
    batch = next(iter(ImpressionLoader(log, "2024-01-15", batch=6, prefetch=0)))
    types = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors(batch).items()}
    ids, number, yes, long = torch.int32, torch.float32, torch.bool, torch.int64
    assert types == {
        "rows": (long, (6,)),
        "time": (long, (6,)),
        "user.id": (ids, (6,)),
        "user.taste": (number, (6, 3)),
        "context.load": (number, (6,)),
        "sequences.history.video": (ids, (6, 4)),
        "sequences.likes.video": (ids, (6, 3)),
        "sequence_mask.history": (yes, (6, 4)),
        "sequence_mask.likes": (yes, (6, 3)),
        "item": (ids, (6, 7)),
        "items.video": (ids, (6, 7)),
        "items.price": (number, (6, 7)),
        "items.image": (number, (6, 7, 2)),
        "depth": (ids, (6, 7)),
        "rank": (ids, (6, 7)),
        "position": (ids, (6, 7)),
        "relevance": (number, (6, 7)),
        "grade": (ids, (6, 7)),
        "feedback.click": (number, (6, 7)),
        "feedback.like": (number, (6, 7)),
        "mask": (yes, (6, 7)),
        "truth": (number, (6, 7)),
    }
    assert len(batch) == 6
    assert batch.nbytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors(batch).values())
    assert all(tensor.is_contiguous() for tensor in tensors(batch).values())


def test_lists_of_one_length_need_no_padding(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", days={"a": 20}, shortest=LONGEST)
    (batch,) = ImpressionLoader(log, "a", batch=20, shuffle=False, prefetch=0)
    assert batch.mask.all()
    assert batch.item.tolist() == log.days["a"].table()["item"].to_pylist()


def test_batches_are_their_owners(log: ImpressionLog) -> None:
    loader = ImpressionLoader(log, "2024-01-15", batch=8, window=16, prefetch=0)
    expected = list(loader)
    for batch in loader:
        for tensor in tensors(batch).values():
            tensor.zero_()
    assert_same(list(loader), expected)


def test_requests_of_a_batch(log: ImpressionLog) -> None:
    loader = ImpressionLoader(log, "..", batch=7, window=14)
    for batch in loader:
        assert loader.requests(batch).to_pylist() == [f"{batch.day}/{row}" for row in batch.rows.tolist()]


def test_a_batch_moves_as_a_whole(log: ImpressionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = next(iter(ImpressionLoader(log, "2024-01-15", batch=6, prefetch=0)))
    moved = batch.to("meta")
    assert moved.day == batch.day
    assert tensors(moved).keys() == tensors(batch).keys()
    assert all(tensor.device.type == "meta" for tensor in tensors(moved).values())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.to("meta"))  # there may be no GPU
    assert all(tensor.device.type == "meta" for tensor in tensors(batch.pin_memory()).values())


# --- order ------------------------------------------------------------------------------------------------------


def test_without_shuffling_the_order_is_that_of_the_file(log: ImpressionLog) -> None:
    batches = list(ImpressionLoader(log, ["2024-01-15", "2024-01-13"], batch=6, window=12, shuffle=False))
    expected = [("2024-01-15", row) for row in range(40)] + [("2024-01-13", row) for row in range(23)]
    assert rows_of(batches) == expected
    assert [len(batch) for batch in batches] == [6] * 6 + [4] + [6] * 3 + [5]


def test_the_order_follows_from_seed_epoch_and_day(log: ImpressionLog) -> None:
    def order(days: str = "..", seed: int = 0, epoch: int = 0, world: int = 1) -> list[tuple[str, int]]:
        return rows_of(passed(ImpressionLoader(log, days, batch=6, window=12, seed=seed, world=world), epoch))

    orders = [order(), order(seed=1), order(epoch=1), order(seed=1, epoch=1)]
    assert order() == orders[0]
    assert all(left != right for i, left in enumerate(orders) for right in orders[:i])
    assert all(sorted(one) == sorted(orders[0]) for one in orders)
    day = "2024-01-15"
    assert order(day) == [place for place in order() if place[0] == day]


def test_days_of_one_size_have_different_orders(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", days={"a": 30, "b": 30})
    left, right = ImpressionLoader(log, ["a", "b"], batch=30)
    assert left.rows.tolist() != right.rows.tolist()


def chi_square(counts: NDArray[np.int64]) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.slow
@pytest.mark.parametrize("window", [12, 4])
def test_every_row_is_as_likely_at_every_place(window: int) -> None:
    # Rows x places; the table's chi square has 11 x 11 degrees of freedom, so its mean is 121, its deviation 16.
    starts, counts = np.array([0, 5, 10, 12]), np.zeros((12, 12), np.int64)
    for epoch in range(6000):
        order = [
            row
            for first in range(0, 12, window)
            for row in block_shuffled(starts, first, first + window, seed=0, epoch=epoch, day="a").tolist()
        ]
        assert sorted(order) == list(range(12))
        counts[order, np.arange(12)] += 1
    assert chi_square(counts) < 121 + 4 * 16


def test_a_day_within_a_window_has_every_order() -> None:
    orders = Counter(
        tuple(block_shuffled(np.array([0, 2, 4]), 0, 4, seed=0, epoch=epoch, day="a").tolist()) for epoch in range(4800)
    )
    assert len(orders) == 24
    assert chi_square(np.array(list(orders.values()))) < 23 + 4 * 46**0.5


def test_a_window_has_few_blocks() -> None:
    starts = np.arange(0, 1001, 10)
    for first in range(0, 1000, 50):
        rows = block_shuffled(starts, first, first + 50, seed=3, epoch=1, day="a")
        assert len(set((rows // 10).tolist())) <= 6
        assert rows.tolist() != sorted(rows.tolist())


@pytest.mark.slow
@settings(max_examples=40)
@given(
    block=st.sampled_from([1, 3, 8, 100]),
    batch=st.integers(1, 45),
    windows=st.integers(1, 4),
    world=st.integers(1, 4),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    negatives=st.sampled_from([{}, {"negatives": 3}, {"length": 9}, {"negatives": 2, "negatives_from": "batch"}]),
)
def test_ranks_together_are_one_process(
    logs: dict[int, ImpressionLog],
    block: int,
    batch: int,
    windows: int,
    world: int,
    shuffle: bool,
    drop_last: bool,
    negatives: dict[str, Any],
) -> None:
    if batch == 1 and "negatives_from" in negatives:
        batch = 2
    options: dict[str, Any] = {"batch": batch, "window": windows * batch + 1, "shuffle": shuffle, "seed": 5}
    options |= negatives | {"prefetch": 0}
    if drop_last and batch <= max(DAYS.values()):
        options["drop_last"] = True
    loader = ImpressionLoader(logs[block], "..", **options)
    single = list(loader)
    assert len(single) == len(loader)
    ranks = [list(ImpressionLoader(logs[block], "..", rank=rank, world=world, **options)) for rank in range(world)]
    assert_same([joined(list(shares)) for shares in zip(*ranks, strict=True)], single)
    for shares in zip(*ranks, strict=True):
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for day, count in DAYS.items():
        sizes = [len(one) for one in single if one.day == day]
        whole, rest = divmod(count, batch)
        assert sizes == [batch] * whole + ([rest] if rest and "drop_last" not in options else [])
    seen = Counter(rows_of(single))
    assert set(seen.values()) <= {1}
    assert all(row < DAYS[day] for day, row in seen)


# --- stopping and continuing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": False}, {"negatives": 2}, {"negatives": 2, "negatives_from": "batch"}]
)
def test_a_pass_continues_at_every_position(log: ImpressionLog, options: dict[str, Any]) -> None:
    def loader(prefetch: int = 3) -> ImpressionLoader:
        return ImpressionLoader(log, "..", batch=6, window=12, prefetch=prefetch, **options)

    whole = passed(loader(), epoch=4)
    first = loader()
    first.set_epoch(4)
    states = [first.state_dict(), *(json.loads(json.dumps(first.state_dict())) for _ in first)]
    assert len(states) == len(whole) + 1
    for number, state in enumerate(states):
        second = loader(prefetch=number % 3)
        second.load_state_dict(state)
        assert second.state_dict() == state
        second.set_epoch(4)  # as a loop over epochs does: it is where it was
        assert_same(list(second), whole[number:])
        assert second.state_dict() == states[-1]


def test_the_state_is_that_of_the_consumer(log: ImpressionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ImpressionLoader(log, "..", batch=6, prefetch=8)
    made, make = threading.Semaphore(0), loader._tensors

    def count(day: str, arrays: Any) -> Impressions:
        made.release()
        return make(day, arrays)

    monkeypatch.setattr(loader, "_tensors", count)
    iterator = iter(loader)
    next(iterator)
    for _ in range(9):  # of 8 more batches that wait and of the one that was received
        assert made.acquire(timeout=30)
    state = loader.state_dict()
    assert (state["day"], state["batch"]) == ("2024-01-13", 1)


def test_continuing_with_other_ranks(log: ImpressionLog) -> None:
    whole = list(ImpressionLoader(log, "..", batch=6, window=12))
    first = ImpressionLoader(log, "..", batch=6, window=12, rank=1, world=2)
    assert len(list(islice(first, 3))) == 3
    ranks = [ImpressionLoader(log, "..", batch=6, window=12, rank=rank, world=3) for rank in range(3)]
    for loader in ranks:
        loader.load_state_dict(first.state_dict())
    assert_same([joined(list(shares)) for shares in zip(*ranks, strict=True)], whole[3:])


def test_iteration_starts_at_first_batch_by_default(log: ImpressionLog) -> None:
    loader = ImpressionLoader(log, "..", batch=6)
    whole = list(loader)
    assert len(list(islice(loader, 2))) == 2
    assert_same(list(loader), whole)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert list(loader) == []  # it was at the end
    assert_same(list(loader), whole)
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert len(list(loader)) == len(whole)
    assert loader.epoch == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 7}, "state: was saved with batch = 6, this loader has 7"),
        ({"seed": 1}, "state: was saved with seed = 0, this loader has 1"),
        ({"shuffle": False}, "state: was saved with shuffle = True"),
        ({"negatives": 1}, "state: was saved with negatives = 0"),
        ({"days": "2024-01-13"}, "state: was saved with days = "),
    ],
)
def test_a_state_of_other_batches_is_refused(log: ImpressionLog, change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"days": "..", "batch": 6}
    state = ImpressionLoader(log, **options).state_dict()
    with pytest.raises(ValueError, match=message):
        ImpressionLoader(log, **(options | change)).load_state_dict(state)


@pytest.mark.parametrize("change", [{"batch": 5}, {"day": "2024"}, {"batch": -1}, {"epoch": None}, {"settings": 3}])
def test_invalid_state_is_refused(log: ImpressionLog, change: dict[str, Any]) -> None:
    loader = ImpressionLoader(log, "2024-01-13", batch=6)  # 4 batches
    with pytest.raises(ValueError, match="state"):
        loader.load_state_dict(loader.state_dict() | change)
    with pytest.raises(ValueError, match="state"):
        loader.load_state_dict({})


# --- negatives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["items", "batch"])
@pytest.mark.parametrize("negatives", [1, 5, ITEMS])
def test_negatives_are_items_that_an_impression_has_not(log: ImpressionLog, source: Any, negatives: int) -> None:
    plain = list(ImpressionLoader(log, "..", batch=9, window=18))
    loader = ImpressionLoader(log, "..", batch=9, window=18, negatives=negatives, negatives_from=source)
    assert loader.width == LONGEST + negatives
    for batch, before in zip(loader, plain, strict=True):
        pool = {item for row in before.item.tolist() for item in row if item >= 0}
        if source == "items":
            pool = known_items(log, batch.day)
        for name, tensor in tensors(before).items():
            same = tensors(batch)[name]
            torch.testing.assert_close(same if same.shape == tensor.shape else same[:, :LONGEST], tensor)
        for row in range(len(batch)):
            own = set(before.item[row][before.mask[row]].tolist())
            mask = batch.mask[row, LONGEST:]
            added = batch.item[row, LONGEST:][mask].tolist()
            assert len(added) == len(set(added)) == min(negatives, len(pool - own))
            assert set(added) <= pool - own
            features = [item_features(item) for item in added]
            for name in ("video", "price", "image"):
                values = batch.items[name][row, LONGEST:]
                assert values[mask].tolist() == [of[f"item.{name}"] for of in features]
                assert not values[~mask].any()
            assert set(batch.item[row, LONGEST:][~mask].tolist()) <= {-1}
            for tensor, value in ((batch.depth, -1), (batch.rank, -1), (batch.relevance, 0), (batch.grade, 0)):
                assert (tensor[row, LONGEST:] == value).all()
            assert not any(tensor[row, LONGEST:].any() for tensor in batch.feedback.values())
            assert batch.position is not None
            assert (batch.position[row, LONGEST:] == -1).all()
            assert batch.truth is not None
            assert batch.truth[row, LONGEST:][mask].isnan().all()
            assert not batch.truth[row, LONGEST:][~mask].any()


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ImpressionLog]:
    """Logs that leave out few relevant items, for which the pool is roomy, and many."""
    directory = tmp_path_factory.mktemp("sampled")
    return {most: write_log(directory / str(most), left_out=most) for most in (2, 45)}


@pytest.mark.parametrize("most", [2, 45])
@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize(
    "options",
    [{"negatives": 4}, {"negatives": ITEMS}, {"length": 30}, {"negatives": 3, "negatives_from": "batch"}],
)
def test_relevant_items_left_out_are_never_drawn(
    sampled: dict[int, ImpressionLog], most: int, world: int, options: dict[str, Any]
) -> None:
    log = sampled[most]
    impressions = {day: log.days[day].table().to_pylist() for day in DAYS}
    loaders = [
        ImpressionLoader(log, "..", batch=9, window=18, rank=rank, world=world, **options) for rank in range(world)
    ]
    single = ImpressionLoader(log, "..", batch=9, window=18, prefetch=0, **options)
    known = {day: known_items(log, day) for day in DAYS}
    met = 0  # draws that the items left out had to be kept from
    for epoch in range(2):
        whole = [joined(list(shares)) for shares in zip(*(passed(one, epoch) for one in loaders), strict=True)]
        assert_same(whole, passed(single, epoch))
        for batch in whole:
            rows = [impressions[batch.day][row] for row in batch.rows.tolist()]
            pool = known[batch.day]
            if "negatives_from" in options:
                pool = {item for row in rows for item in row["item"]}
            for place, row in enumerate(rows):
                own = set(row["item"])
                found = batch.item[place][batch.mask[place]].tolist()
                wanted = options.get("negatives", options.get("length", 0) - len(own))
                allowed = pool - own - set(row["left_out"])
                assert found[: len(own)] == row["item"]
                added = found[len(own) :]
                assert len(added) == len(set(added)) == min(wanted, len(allowed))
                assert set(added) <= allowed
                met += len(pool & set(row["left_out"]))
    assert met > 20


def test_left_out_items_affect_only_their_list() -> None:
    own, items = np.tile(np.array([0, 2, 4, -1], np.int32), (50, 1)), np.arange(0, 400, 2, dtype=np.int32)
    others = np.array([3 << 32 | item for item in range(6, 80, 2)])  # of the fourth list
    plain = draw(TargetLists(own, 50, slice(None)), items, 5, np.random.default_rng(0))
    targets = TargetLists(own, 50, slice(None), left_out=others, most_left_out=37)
    drawn = draw(targets, items, 5, np.random.default_rng(0))
    assert not set(items[drawn[3]]) & set(range(6, 80, 2))
    assert np.array_equal(np.delete(drawn, 3, axis=0), np.delete(plain, 3, axis=0))


def test_clicks_beyond_the_sample_are_never_negatives(tmp_path: Path) -> None:
    """From rows to batches: each request has 12 relevant items of 40, of which at most four are kept."""
    rng = np.random.default_rng(0)
    shown = {request: rng.permutation(40)[:20].tolist() for request in range(30)}
    rows = pl.DataFrame(
        [
            {"request_id": request, "item_id": item, "stage": "shown", "at": request, "click": int(place < 12)}
            for request, items in shown.items()
            for place, item in enumerate(items)
        ]
    )
    spec = validate_spec(
        {
            "time": {"column": "at", "unit": "ms"},
            "stage": "stage",
            "stages": [{"name": "shown", "sample": 4}],
            "relevant": {"column": "click"},
            "features": {"item": {"item_id": {"kind": "categorical", "num_buckets": 40}}},
        }
    )
    encoding = Encoding(spec)
    ((day, table),), _ = assemble(rows, encoding)
    writer = LogWriter(tmp_path / "log", spec, encoding.features, table.schema)
    writer.write(day, table)
    writer.finish(item_table(rows.unique("item_id"), encoding), {}, {})
    for source in ("items", "batch"):
        loader = ImpressionLoader(tmp_path / "log", "..", batch=10, negatives=15, negatives_from=source)
        for epoch in range(3):
            for batch in passed(loader, epoch):
                for place, request in enumerate(loader.requests(batch).to_pylist()):
                    added = batch.item[place, 4:][batch.mask[place, 4:]].tolist()
                    assert added
                    assert not set(added) & set(shown[request][:12])


@pytest.mark.parametrize("days", [["2024-01-14"], ["2024-01-15", "2024-01-13"], ["..2024-01-14"]])
@pytest.mark.parametrize("options", [{"negatives": 4}, {"length": 9}])
def test_negatives_are_drawn_only_after_first_occurrence(
    tmp_path: Path, days: list[str], options: dict[str, Any]
) -> None:
    log = write_log(tmp_path / "log", left_out=2, days={"2024-01-13": 3, "2024-01-14": 4, "2024-01-15": 9})
    loader = ImpressionLoader(log, days, batch=4, window=4, **options)
    drawn: dict[str, set[int]] = {}
    for epoch in range(60):
        for batch in passed(loader, epoch):
            real = [log.days[batch.day].table()["item"][row].as_py() for row in batch.rows.tolist()]
            for items, mask, own in zip(batch.item, batch.mask, real, strict=True):
                drawn.setdefault(batch.day, set()).update(set(items[mask].tolist()) - set(own))
    assert drawn == {day: known_items(log, day) for day in loader.days}
    assert len(known_items(log, "2024-01-13")) < len(known_items(log, "2024-01-14")) < ITEMS


def test_where_no_item_is_known_none_is_drawn(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", shortest=0, days={"a": 3, "b": 9}, bare="a")
    first, *others = ImpressionLoader(log, "..", batch=3, window=3, negatives=4)
    assert not first.mask.any()
    assert set(first.item.flatten().tolist()) == {-1}
    assert all(batch.mask[:, LONGEST:].all() for batch in others)


@pytest.mark.parametrize("length", [LONGEST, 20, ITEMS, ITEMS + 5])
def test_lists_of_any_length(log: ImpressionLog, length: int) -> None:
    plain = list(ImpressionLoader(log, "..", batch=9))
    loader = ImpressionLoader(log, "..", batch=9, length=length)
    for batch, before in zip(loader, plain, strict=True):
        assert tuple(batch.item.shape) == (len(before), length) == tuple(batch.items["image"].shape[:2])
        assert batch.mask.sum(1).tolist() == [min(length, len(known_items(log, batch.day)))] * len(before)
        for row, count in enumerate(before.mask.sum(1).tolist()):
            items = batch.item[row][batch.mask[row]].tolist()
            assert items[:count] == before.item[row, :count].tolist()
            assert len(set(items)) == len(items)
            assert batch.depth[row, :count].tolist() == before.depth[row, :count].tolist()
            assert (batch.depth[row, count:] == -1).all()
            assert batch.items["price"][row][batch.mask[row]].tolist() == [item / 4 for item in items]


def test_a_list_that_is_long_enough_needs_no_items(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", days={"a": 5}, shortest=LONGEST, items=0)
    (batch,) = ImpressionLoader(log, "a", batch=5, length=LONGEST)
    assert batch.mask.all()


@pytest.mark.parametrize("pool", [9, 60])  # nearly used up, and roomy
def test_every_negative_is_equally_likely(pool: int) -> None:
    own = np.tile(np.array([0, 2, 4, -1], np.int32), (400, 1))
    items, rng = np.arange(0, 2 * pool, 2, dtype=np.int32), np.random.default_rng(0)
    drawn = np.concatenate([draw(TargetLists(own, 400, slice(None)), items, 3, rng) for _ in range(20)])
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    for place in drawn.T:
        counts = np.bincount(place, minlength=pool)
        assert not counts[:3].any()
        assert chi_square(counts[3:]) < pool - 4 + 4 * (2 * (pool - 4)) ** 0.5


def test_negatives_change_with_epoch_and_seed(log: ImpressionLog) -> None:
    def negatives(seed: int, epoch: int) -> list[list[int]]:
        loader = ImpressionLoader(log, "2024-01-15", batch=40, shuffle=False, negatives=4, seed=seed)
        (batch,) = passed(loader, epoch)
        found: list[list[int]] = batch.item[:, LONGEST:].tolist()
        return found

    assert negatives(0, 0) == negatives(0, 0)
    assert negatives(0, 0) != negatives(1, 0)
    assert negatives(0, 0) != negatives(0, 1)


def test_a_log_without_items_has_no_negatives(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", days={"a": 5}, items=0)
    with pytest.raises(ValueError, match=r"^negatives: the item table .* is empty"):
        ImpressionLoader(log, "a", batch=5, negatives=1)


@pytest.mark.parametrize("options", [{"negatives": 1}, {"negatives": 1, "negatives_from": "batch"}, {"length": 30}])
def test_features_of_the_request_have_no_negatives(tmp_path: Path, options: dict[str, Any]) -> None:
    log = write_log(tmp_path / "log", days={"a": 5}, about={"item_features": "per request"})
    with pytest.raises(ValueError, match=f"^{next(iter(options))}: item.video, item.price, item.image depend on the"):
        ImpressionLoader(log, "a", batch=5, **options)
    assert len(list(ImpressionLoader(log, "a", batch=5))) == 1


# --- the thread -------------------------------------------------------------------------------------------------


def test_the_thread_ends_when_the_pass_does(log: ImpressionLog) -> None:
    loader = ImpressionLoader(log, "..", batch=2, prefetch=1)
    for _ in range(20):
        for _ in loader:
            break
        assert not loader_threads()
    iterator = iter(loader)
    next(iterator)
    assert len(loader_threads()) == 1
    iterator.close()
    assert not loader_threads()
    others = [iter(loader) for _ in range(3)]
    assert [len(next(other)) for other in others] == [2, 2, 2]
    assert len(loader_threads()) == 3
    del others
    gc.collect()
    assert not loader_threads()
    list(loader)
    assert not loader_threads()


def test_an_error_of_the_consumer_ends_the_thread(log: ImpressionLog) -> None:
    def use() -> None:
        for _ in ImpressionLoader(log, "..", batch=2):
            raise KeyError("the consumer's")

    with pytest.raises(KeyError, match="the consumer's"):
        use()
    gc.collect()  # the traceback held the iterator
    assert not loader_threads()


def test_the_thread_is_ahead_by_what_was_asked_for() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    ahead = Prefetcher(source(), 3)
    assert next(ahead) == 0
    for _ in range(1000):
        if len(made) == 5:
            break
        time.sleep(0.002)
    time.sleep(0.01)
    assert len(made) == 5  # received 1, waiting 3, in the thread's hands 1
    assert list(ahead) == list(range(1, 100))


def test_an_error_in_the_thread_comes_after_what_was_right() -> None:
    def source() -> Iterator[int]:
        yield from (1, 2)
        raise OSError("the disk is gone")

    received: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"):
        received.extend(Prefetcher(source(), 1))
    assert received == [1, 2]


@pytest.mark.slow
def test_a_program_ends_with_a_pass_under_way(log: ImpressionLog) -> None:
    code = (
        "import sys\n"
        "from rankfall.data import ImpressionLoader\n"
        "loader = ImpressionLoader(sys.argv[1], '..', batch=2, prefetch=1)\n"
        "iterator = iter(loader)\n"
        "print(len(next(iterator)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(log.path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


# --- what is wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch: found 0, expected a whole number of at least 1"),
        ({"batch": 2.0}, "batch: found 2.0"),
        ({"batch": True}, "batch: found True"),
        ({"seed": -1}, "seed: found -1"),
        ({"batch": 10, "window": 9}, "window: found 9, expected a whole number of at least 10"),
        ({"negatives": -1}, "negatives: found -1"),
        ({"negatives_from": "bach"}, "negatives_from: found 'bach', did you mean 'batch'"),
        ({"batch": 1, "negatives": 1, "negatives_from": "batch"}, "negatives_from: a batch of 1"),
        ({"length": 0}, "length: found 0"),
        ({"length": 6}, "length: found 6, but the longest list of these days has 7 items"),
        ({"length": 9, "negatives": 2}, "length: .* give one of them"),
        ({"rank": 2, "world": 2}, "rank: found 2, expected a number below world, which is 2"),
        ({"world": 0}, "world: found 0"),
        ({"prefetch": -1}, "prefetch: found -1"),
        ({"shuffle": "yes"}, "shuffle: found 'yes', expected True or False"),
        ({"drop_last": 1}, "drop_last: found 1, expected True or False"),
        ({"batch": 41, "drop_last": True}, "drop_last: no day has 41 impressions"),
        ({"days": []}, "days: found none, expected"),
        ({"days": "empty"}, "days: found empty, expected days with impressions"),
        ({"days": "2024-01-31"}, r"days: .* has no day '2024-01-31'; it has 2024-01-13"),
        ({"days": "2024-01-15..2024-01-13"}, "days: .* ends before it begins"),
        ({"days": ["2024-01-13..2024-01-15", "2024-01-15"]}, "days: '2024-01-15' is chosen twice"),
    ],
)
def test_wrong_arguments_are_named(log: ImpressionLog, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ImpressionLoader(log, **({"days": ".."} | options))
    with pytest.raises(ValueError, match=r"^epoch: found -1"):
        ImpressionLoader(log, "..").set_epoch(-1)


def test_a_path_that_is_no_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not an impression log"):
        ImpressionLoader(tmp_path, "..")


def overwrite(path: Path, old: bytes, new: bytes, occurrence: int) -> None:
    """Damage a file: put other bytes in the place of some."""
    content = path.read_bytes()
    place = -1
    for _ in range(occurrence + 1):
        place = content.index(old, place + 1)
    path.write_bytes(content[:place] + new + content[place + len(old) :])


@pytest.fixture
def damaged(tmp_path: Path) -> ImpressionLog:
    """A log of two blocks, to be damaged: columns share their offsets, 0, 7, 14, ... 56."""
    return write_log(tmp_path / "log", block=8, days={"a": 16}, shortest=LONGEST)


OFFSETS = np.arange(0, 57, LONGEST, dtype=np.int32)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    ("column", "offsets", "message"),
    [
        (0, OFFSETS[[0, 2, 1, *range(3, 9)]], "column 'item': "),
        (0, OFFSETS[::-1], "column 'item': "),
        (0, OFFSETS + 9999 * (OFFSETS == 56), "column 'item': "),
        (5, OFFSETS + (OFFSETS == 7), "column 'rank': its lists differ in length from those of the other columns"),
        (6, OFFSETS - 9999 * (OFFSETS == 0), "column 'relevance': "),
    ],
)
def test_damaged_lists_are_named(
    damaged: ImpressionLog, column: int, offsets: NDArray[np.int32], message: str, prefetch: int
) -> None:
    columns = 12  # of items
    path = damaged.days["a"].path / "impressions.arrow"
    overwrite(path, OFFSETS.tobytes(), offsets.astype(np.int32).tobytes(), columns + column)  # of the second block
    with pytest.raises(ValueError, match=f"^path: {path} has changed since it was written"):
        ImpressionLoader(damaged, "a")
    seal_again(damaged.path)
    with pytest.raises(ValueError, match=f"^path: {path} is damaged in block 1, {message}"):
        list(ImpressionLoader(damaged.path, "a", batch=4, shuffle=False, prefetch=prefetch))


def test_a_sequence_that_is_too_long_is_named(damaged: ImpressionLog) -> None:
    object.__setattr__(damaged.features.sequences[0], "max_length", 1)
    with pytest.raises(ValueError, match=r"column 'sequence.history.video': found a list of 4, expected at most 1"):
        list(ImpressionLoader(damaged, "a"))


def test_a_file_without_its_end_is_named(damaged: ImpressionLog) -> None:
    path = damaged.days["a"].path / "impressions.arrow"
    path.write_bytes(path.read_bytes()[:-100])
    seal_again(damaged.path)
    with pytest.raises(ValueError, match=f"path: {path} is missing, damaged or truncated"):
        ImpressionLoader(damaged.path, "a")


def test_a_file_of_another_log_is_named(damaged: ImpressionLog, log: ImpressionLog, tmp_path: Path) -> None:
    path = damaged.days["a"].path / "impressions.arrow"
    other = log.days["2024-01-13"].path / "impressions.arrow"
    path.write_bytes(other.read_bytes())
    seal_again(damaged.path)
    with pytest.raises(ValueError, match=f"path: {path} has 23 impressions, its manifest states 16"):
        ImpressionLoader(damaged.path, "a")
    table = log.days["2024-01-13"].table().drop_columns(["grade"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    seal_again(damaged.path)
    with pytest.raises(ValueError, match=f"path: {path}: the columns do not match .* missing: grade"):
        ImpressionLoader(damaged.path, "a")


def test_a_batch_is_shown_by_its_shapes(log: ImpressionLog) -> None:
    batch = next(iter(ImpressionLoader(log, "2024-01-13", batch=4, shuffle=False)))
    text = repr(batch)
    assert len(text) < 1000
    width = batch.mask.shape[1]
    assert f"mask=bool[4, {width}]" in text
    assert all(f"{name}:" in text or f"{name}," in text for name in (*batch.user, *batch.items, *batch.feedback))
    assert f"click, like: float32[4, {width}]" in text  # those alike stand together
