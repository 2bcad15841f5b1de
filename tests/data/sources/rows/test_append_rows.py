"""Days that are appended one by one give the bytes of a log that was prepared from all days at once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import rankfall as rf
from rankfall.cli import main
from rankfall.data.impressions.log import ImpressionLog, LogWatcher
from rankfall.data.impressions.spec import Categorical, FeatureGroups, table_of
from rankfall.data.sources.rows import prepare_rows as appending
from rankfall.data.sources.rows.prepare_rows import append_rows, prepare_rows
from rankfall.storage import disk as _disk
from support.fuzzing import cases
from support.row_logs import DAY, START, logs, spec_of, write_rows
from support.rows_witness import Row, Witness

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.spec import Spec, Vocabulary


def all_bytes(log: ImpressionLog) -> dict[str, bytes]:
    files = (path for path in log.path.rglob("*") if path.is_file())
    return {path.relative_to(log.path).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("append")


def in_files(folder: Path, rows: list[Row], parts: dict[str, list[Row]]) -> dict[str, Path]:
    """Write parts of a log to Parquet files in which every column has the type that it has in the whole log."""
    schema = pl.DataFrame(rows, infer_schema_length=None).schema
    paths = {name: folder / f"{name}.parquet" for name in parts}
    for name, part in parts.items():
        pl.DataFrame(part, schema=schema).write_parquet(paths[name])
    return paths


@cases(12)
@given(st.data())
def test_days_one_by_one_give_the_bytes_of_all_days_at_once(folder: Path, data: st.DataObject) -> None:
    rows, spec = data.draw(logs())
    spec = spec.model_copy(update={"negatives": data.draw(st.integers(0, 2))})
    witness = Witness(rows, spec)
    assume(len(witness.days) > 1)
    shutil.rmtree(folder)
    folder.mkdir()
    days = {day: [row for row in rows if witness.day(row) == day] for day in witness.days}
    fit = data.draw(st.integers(1, len(days) - 1))
    first = data.draw(st.integers(fit, len(days) - 1))
    newest = days[witness.days[-1]]
    late = data.draw(st.sets(st.sampled_from(sorted({row["request"] for row in newest}, key=str))))
    assume(len(late) < len({row["request"] for row in newest}))
    parts = {**days, witness.days[-1]: [row for row in newest if row["request"] not in late]}
    parts |= {"late": [row for row in newest if row["request"] in late]} if late else {}
    files = in_files(folder, rows, parts)
    portions = st.integers(1, 40)
    whole = prepare_rows([*files.values()], folder / "whole", spec, fit_days=fit, portion_rows=data.draw(portions))
    some = [*files.values()][:first]
    prepare_rows(some, folder / "log", spec, fit_days=fit)
    for day in witness.days[first:]:
        append_rows([files[day]], folder / "log", portion_rows=data.draw(portions))
    if late:
        append_rows([files["late"]], folder / "log", reopen=True, portion_rows=data.draw(portions))
    log = ImpressionLog.load(folder / "log", verify=True)
    assert all_bytes(log) == all_bytes(whole)


# --- one small log -----------------------------------------------------------------------------------------------


def rows_of(day: int, requests: range, *, hour: int = 1, item: Any = 3) -> list[Row]:
    return [
        {
            "request": number,
            "time": START + DAY * day + hour * DAY // 24 + number,
            "user": 7,
            "item": item if place == 0 else place,
            "stage": place % 3,
            "clicked": place == 0,
            "views": number,
        }
        for number in requests
        for place in range(3)
    ]


SPEC = spec_of(
    rank=None,
    feedback=["clicked"],
    features={"item": {"item": {"kind": "categorical", "vocabulary": True}, "views": {"kind": "dense"}}},
    sequences={"clicks": {"max_length": 3, "features": ["item"], "feedback": "clicked"}},
)


@pytest.fixture
def log(tmp_path: Path) -> ImpressionLog:
    rows = rows_of(0, range(3)) + rows_of(1, range(3, 6))
    return prepare_rows([write_rows(rows, tmp_path / "first.csv")], tmp_path / "log", SPEC, fit_days=1)


def test_a_new_day_continues_items_and_histories(log: ImpressionLog, tmp_path: Path) -> None:
    new = write_rows(rows_of(2, range(6, 8), item=99), tmp_path / "new.csv")
    appended = append_rows([new], log.path)
    assert list(appended.days) == ["2024-01-13", "2024-01-14", "2024-01-15"]
    assert appended.items()["item"].to_pylist() == [1, 2, 3, 99]
    table = appended.days["2024-01-15"].table()
    known = {value: place + 2 for place, value in enumerate(appended.vocabulary("item.item").to_pylist())}
    # three clicks of earlier days; the second request also saw the first, of an item that was never seen
    assert table["sequence.clicks.item"].to_pylist() == [[known[3]] * 3, [known[3], known[3], 1]]
    assert appended.manifest["about"]["counts"]["requests"] == 8
    assert [source["rows"] for source in appended.manifest["about"]["sources"]] == [18, 6]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (rows_of(1, range(8, 9)), {}, "already has the day 2024-01-14; --reopen adds late rows to the newest day"),
        (rows_of(0, range(8, 9)), {}, "already has the day 2024-01-13; nothing was changed"),
        (rows_of(0, range(8, 9)), {"reopen": True}, "already has the day 2024-01-13"),
        (rows_of(-1, range(8, 9)), {}, "2024-01-12 is earlier than 2024-01-14, the newest day"),
        (rows_of(2, range(5, 6)), {}, "request 5 is already in 2024-01-14"),
        (rows_of(2, range(8, 9), item=2**31), {}, r"column 'item': found 2147483648, expected whole numbers from 0"),
        (rows_of(2, range(8, 9), item="x"), {}, r"new\.csv: column 'item': found 'x', expected a whole number"),
        (rows_of(2, range(8, 9)), {"spec": spec_of()}, "spec: rank differs from the spec of"),
        (
            rows_of(2, range(8, 9)),
            {"items": "new.csv"},
            "column 'item': found in 'items', expected it in 'log' as before",
        ),
    ],
)
def test_rows_that_do_not_fit_change_nothing(
    log: ImpressionLog, tmp_path: Path, rows: list[Row], options: dict[str, Any], message: str
) -> None:
    before, path = all_bytes(log), write_rows(rows, tmp_path / "new.csv")
    options = {name: tmp_path / value if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        append_rows([path], log.path, **options)
    assert all_bytes(ImpressionLog.load(log.path, verify=True)) == before


def test_the_newest_day_is_reopened_unless_the_encoding_was_fitted_to_it(log: ImpressionLog, tmp_path: Path) -> None:
    late = write_rows(rows_of(1, range(6, 7), hour=0), tmp_path / "late.csv")
    reopened = append_rows([late], log.path, reopen=True)
    assert reopened.days["2024-01-14"].table()["request"].to_pylist() == [6, 3, 4, 5]
    single = prepare_rows([tmp_path / "first.csv"], tmp_path / "fitted", SPEC, fit_days=2)
    with pytest.raises(ValueError, match=r"reopen: the encoding of .* was fitted to 2024-01-14"):
        append_rows([late], single.path, reopen=True)


def test_logs_of_other_commands_and_damaged_states_are_refused(log: ImpressionLog, tmp_path: Path) -> None:
    new = write_rows(rows_of(2, range(6, 8)), tmp_path / "new.csv")
    simulated = rf.simulate(tmp_path / "simulated", preset="tiny", days=1, requests_per_day=4, progress=False)
    with pytest.raises(ValueError, match="simulated has no state to which days can be appended"):
        append_rows([new], simulated.directory)
    (events,) = log.path.glob("state/*/after/histories/clicks.parquet")
    events.write_bytes(events.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"clicks\.parquet is missing or has changed"):
        append_rows([new], log.path)


# --- growing vocabularies ----------------------------------------------------------------------------------------


def grown_by_hand(rows: list[Row], spec: Spec, days: dict[str, list[Row]], fit: int) -> list[dict[str, list[Any]]]:
    """Return the vocabularies after each day, with plain loops: those of the fitted days, then day by day."""
    vocabularies: dict[str, list[Any]] = {}
    after = []
    fitted = [row for of_day in [*days.values()][:fit] for row in of_day]
    for part in [fitted, *[*days.values()][fit:]]:
        counts: dict[str, Counter[Any]] = {}
        limits: dict[str, Vocabulary] = {}
        for group, name, feature in spec.features:
            if not isinstance(feature, Categorical) or feature.vocabulary is None:
                continue
            table = table_of(group, name, feature)
            limits[table], seen = feature.vocabulary, set()
            for row in part:
                value = row[feature.column or name]
                if value is not None and (group == "item" or row["request"] not in seen):
                    counts.setdefault(table, Counter())[value] += 1
                seen.add(row["request"])
        for table, limit in limits.items():
            known = vocabularies.setdefault(table, [])
            new = [(-count, value) for value, count in counts.get(table, Counter()).items() if value not in known]
            ordered = [value for count, value in sorted(new) if -count >= limit.min_count]
            known += ordered[: None if limit.max_size is None else max(0, limit.max_size - len(known))]
        after.append({table: list(values) for table, values in vocabularies.items()})
    return after


@cases(6)
@given(st.data())
def test_vocabularies_grow_day_by_day(folder: Path, data: st.DataObject) -> None:
    rows, spec = data.draw(logs())
    witness = Witness(rows, spec)
    assume(len(witness.days) > 1)
    shutil.rmtree(folder)
    folder.mkdir()
    days = {day: [row for row in rows if witness.day(row) == day] for day in witness.days}
    fit = data.draw(st.integers(1, len(days) - 1))
    files = [*in_files(folder, rows, days).values()]
    portions = st.integers(1, 40)
    whole = prepare_rows(files, folder / "whole", spec, fit_days=fit, grow=True, portion_rows=data.draw(portions))
    for name in ("log", "together"):
        prepare_rows(files[:fit], folder / name, spec, fit_days=fit, grow=data.draw(st.booleans()))
    expected = grown_by_hand(rows, spec, days, fit)
    for number, file in enumerate(files[fit:], 1):
        log = append_rows([file], folder / "log", grow=True, portion_rows=data.draw(portions))
        assert {table: log.vocabulary(table).to_pylist() for table in expected[number]} == expected[number]
    append_rows(files[fit:], folder / "together", grow=True)
    for name in ("log", "together"):
        assert all_bytes(ImpressionLog.load(folder / name, verify=True)) == all_bytes(whole)
    for day, known in zip(witness.days[fit - 1 :], expected, strict=True):
        before = whole.as_of(day)
        assert {table: before.vocabulary(table).to_pylist() for table in known} == known


def test_values_get_ids_behind_the_known_ones_and_keep_them(log: ImpressionLog, tmp_path: Path) -> None:
    def appended(day: int, requests: range, item: int, **options: Any) -> ImpressionLog:
        new = write_rows(rows_of(day, requests, item=item), tmp_path / f"{requests.start}.csv")
        return append_rows([new], log.path, **options)

    def ids(log: ImpressionLog, day: str) -> list[list[int]]:
        values = log.days[day].table()["item.item"].to_pylist()
        return [sorted(one) for one in values]

    known = log.vocabulary("item.item").to_pylist()
    assert sorted(known) == [1, 2, 3]
    assert appended(2, range(6, 7), 50).features.item("item").rows == 5  # without grow, 50 is never seen
    grown = appended(3, range(7, 8), 40, grow=True)
    assert grown.vocabulary("item.item").to_pylist() == [*known, 40]
    assert grown.features.item("item").rows == 6
    assert grown.manifest["growth"] == {"2024-01-16": {"item.item": 1}}
    one_two = sorted((known.index(1) + 2, known.index(2) + 2))
    assert ids(grown, "2024-01-15") == [[1, *one_two]]
    assert ids(grown, "2024-01-16") == [[*one_two, 5]]
    # 30 is as frequent as 40 and smaller, but 40 has its id already; without grow, ids are not taken away either
    late = appended(3, range(8, 9), 30, reopen=True, grow=True)
    assert late.vocabulary("item.item").to_pylist() == [*known, 40, 30]
    assert late.manifest["growth"] == {"2024-01-16": {"item.item": 2}}
    assert ids(late, "2024-01-16") == [[*one_two, 5], [*one_two, 6]]
    later = appended(3, range(9, 10), 20, reopen=True)
    assert later.vocabulary("item.item").to_pylist() == [*known, 40, 30]
    assert ids(later, "2024-01-16") == [[*one_two, 5], [*one_two, 6], [1, *one_two]]
    # a reader that opened the log before uses the ids that it knows
    assert log.vocabulary("item.item").to_pylist() == known


def test_min_count_holds_for_each_day_and_max_size_for_all(tmp_path: Path) -> None:
    vocabulary = {"kind": "categorical", "vocabulary": {"min_count": 2, "max_size": 5}}
    spec = SPEC.model_copy(update={"features": FeatureGroups.model_validate({"item": {"item": vocabulary}})})
    parts = [
        rows_of(0, range(3)),  # 1, 2 and 3 three times
        rows_of(1, range(3, 4), item=50),  # 50 once
        rows_of(2, range(4, 5), item=50),  # and again, once
        rows_of(3, range(5, 7), item=50) + rows_of(3, range(7, 10), item=60) + rows_of(3, range(10, 12), item=70),
    ]
    files = [write_rows(part, tmp_path / f"{number}.csv") for number, part in enumerate(parts)]
    log = prepare_rows(files[:1], tmp_path / "log", spec)
    for file in files[1:]:
        log = append_rows([file], log.path, grow=True)
    assert log.vocabulary("item.item").to_pylist() == [1, 2, 3, 60, 50]
    assert log.manifest["growth"] == {"2024-01-16": {"item.item": 2}}


QUIET: Any = {"progress": False, "on_notice": lambda message: None}


def check_ids(log: ImpressionLog) -> None:
    """Check that every id of every day has a row of its embedding table."""
    for day in log.days.values():
        for name in ("item.item", "sequence.clicks.item"):
            ids = pl.Series(pl.from_arrow(day.table()[name])).explode()
            assert (ids.drop_nulls() < log.features.item("item").rows).all()


class Killed(BaseException):
    """A process that ends here."""


@pytest.mark.parametrize(("reopen", "grow"), [(False, False), (True, True), (False, True)])
def test_killed_at_any_rename_and_run_again_gives_the_same_bytes(tmp_path: Path, reopen: bool, grow: bool) -> None:
    rows = rows_of(0, range(3)) + rows_of(1, range(3, 6))
    first = write_rows(rows, tmp_path / "first.csv")
    new = write_rows(rows_of(1 if reopen else 2, range(6, 8), item=99), tmp_path / "new.csv")
    whole = all_bytes(prepare_rows([first, new], tmp_path / "whole", SPEC, fit_days=1, grow=grow))
    origin = prepare_rows([first], tmp_path / "origin", SPEC, fit_days=1)
    for number in range(100):
        path = shutil.copytree(origin.path, tmp_path / f"log{number}")
        renames = iter(range(1000))

        def hook(operation: str, target: Path, renames: Any = renames, number: int = number) -> None:
            if operation == "renamed" and next(renames) == number:
                raise Killed

        try:
            with _disk.intercepted(hook):
                append_rows([new], path, reopen=reopen, grow=grow)
        except Killed:
            assert ImpressionLog.load(path, verify=True).days  # readers find a valid log in between
            check_ids(LogWatcher(path, lambda text: None).scan())
            if (path / "manifest.json").read_bytes() == whole["manifest.json"]:  # only an old state was left
                assert all_bytes(ImpressionLog.load(path, verify=True)).items() >= whole.items()
                continue
            with mock.patch.object(appending, "PORTION_ROWS", 1):
                append_rows([new], path, reopen=reopen, grow=grow)
        assert all_bytes(ImpressionLog.load(path, verify=True)) == whole
        if next(renames) <= number:
            break
    else:
        pytest.fail("the append never ended")
    assert number > 5


def test_command_and_function(log: ImpressionLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    third, fourth = (write_rows(rows_of(day, range(9 + day, 10 + day)), tmp_path / f"{day}.csv") for day in (2, 3))
    with pytest.raises(SystemExit) as ended:
        main(["prepare", "rows", str(third), "--append", str(log.path), "--json"])
    assert ended.value.code == 0
    assert list(json.loads(capsys.readouterr().out)["days"])[-1] == "2024-01-15"
    assert list(rf.prepare(fourth, append=log.path, **QUIET).manifest["days"])[-1] == "2024-01-16"
    for words, message in (
        (["--append", str(log.path), "--out", "other"], "--out"),
        (["--append", str(log.path), "--fit-days", "1"], "--fit-days"),
        (["--reopen", "--spec", "spec.yaml", "--out", "other"], "--reopen"),
        ([], "--spec"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["prepare", "rows", str(third), *words])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="out: has no effect with append"):
        rf.prepare(third, tmp_path / "out", append=log.path, **QUIET)
    with pytest.raises(ValueError, match="append: found with the layout letor"):
        rf.prepare({"a": third}, layout="letor", append=log.path, **QUIET)
