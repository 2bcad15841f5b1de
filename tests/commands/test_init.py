"""`rankfall init`: roles of columns, and drafts that the next commands accept."""

from __future__ import annotations

import csv
import json
import random
import runpy
import shlex
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import yaml

from rankfall.data.impressions.spec import load_spec
from rankfall.data.sources.draft.draft_files import draft_files
from rankfall.data.sources.draft.draft_spec import LogShape, draft_cascade_config
from rankfall.data.sources.recflow import recflow_spec
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.training.config.load_config import load_config
from support.command_line import run
from support.paths import ROOT
from support.planted import planted_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rankfall.data.impressions.spec import Spec

QUICK = ("training.epochs=1", "training.batch=64")

random_values = random.Random(0)
PRODUCTS = {
    1000 + number: (random_values.choice(["Möbel", "Küche", "Garten"]), round(random_values.expovariate(0.02), 2))
    for number in range(60)
}


@pytest.fixture(autouse=True)
def same_values() -> None:
    """Every test has the same random values, whichever tests ran before."""
    random_values.seed(1)


def shop(requests: int = 90, days: int = 3) -> Iterator[tuple[int, datetime, int]]:
    """Return number, time and user of the requests of a made-up shop."""
    for number in range(requests):
        time = datetime(2024, 3, 1) + timedelta(days=days * number / requests, seconds=number % 60)
        yield number, time, random_values.randrange(25)


def roles(path: Path, *given: str) -> dict[str, str]:
    guesses = draft_files([path], path.parent, roles=given).guesses
    assert guesses is not None
    return {column: guess.role for column, guess in guesses.of.items()}


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def follow(capsys: pytest.CaptureFixture[str]) -> None:
    """Run the commands that `rankfall init` printed, with little training."""
    printed = capsys.readouterr().out.partition("next:\n")[2].splitlines()
    assert printed
    for command in printed:
        words = shlex.split(command)[1:]
        assert run(*words, *(QUICK if words[0] == "train" else ())) == 0, command


def named_columns(spec: Spec) -> dict[str, Any]:
    """The columns of the roles of a spec."""
    return {
        "request": spec.request,
        "item": spec.item,
        "user": spec.user,
        "time": spec.time and spec.time.column,
        "stage": spec.stage,
        "rank": spec.rank,
        "relevant": spec.relevant.column,
        "stages": [(stage.name, stage.flag) for stage in spec.stages],
        "features": {(group, name, feature.kind) for group, name, feature in spec.features},
    }


# --- drafts that run ------------------------------------------------------------------------------------------------


def test_the_draft_for_the_log_of_the_tutorial_is_the_description_of_the_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(ROOT / "docs" / "tutorials" / "own-log" / "make_log.py"))["main"]
    main.__globals__["REQUESTS_PER_DAY"] = 25
    main("shop.csv")
    assert run("init", "shop.csv") == 0
    draft, by_hand = load_spec(tmp_path / "spec.yaml"), load_spec(ROOT / "docs/tutorials/own-log/spec.yaml")
    expected = named_columns(by_hand)
    expected["features"] |= {("context", "weekday", "time")}
    assert named_columns(draft) == expected
    assert draft.sequences["history"].features == ["item", "category", "brand"]
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["data"] == {
        "path": "log",
        "train": "2024-01-01..2024-01-05",
        "valid": "2024-01-06",
        "test": "2024-01-07",
        "labels": "relevance",  # clicks are evaluated; the order of stages and ranks is production's
        "negatives": 120,  # twice the items of a list
        "length": "all",
    }
    assert [stage["quota"] for stage in config["stages"]] == [
        30,
        10,
        5,
    ]  # what reaches the next stage, half of the last
    follow(capsys)
    # the prepared log itself
    assert run("init", "log", "--out", "again") == 0
    again = yaml.safe_load((tmp_path / "again" / "config.yaml").read_text())
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["config.yaml"]
    assert (again["data"], again["stages"]) == (config["data"], config["stages"])
    assert run("config", "show", "config.yaml") == 0
    fitted = json.loads((tmp_path / "log" / "manifest.json").read_text())["about"]["fit_days"]
    assert fitted == [f"2024-01-0{day}" for day in range(1, 6)]  # the days that the draft trains on


def test_days_that_are_measured_and_fitted_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows, _ = catalogue_log(40)
    write_csv(tmp_path / "log.csv", rows)
    assert run("init", "log.csv") == 0
    for name, days, expected in (("log", (), ""), ("all", ("--fit-days", "3"), "2024-03-02, 2024-03-03")):
        assert run("prepare", "rows", "log.csv", "--spec", "spec.yaml", *days, "--out", name) == 0
        assert run("train", "config.yaml", "--out", f"run-{name}", f"data.path={name}", *QUICK) == 0
        printed = " ".join(capsys.readouterr().err.split())
        assert (f"the log was fitted to days that are measured ({expected})" in printed) == bool(expected)
        assert ("--fit-days 1 of 'rankfall prepare rows' leaves" in printed) == bool(expected)
        assert run("evaluate", f"run-{name}", "--json") == 0
        warnings = json.loads(capsys.readouterr().out)["warnings"]
        assert any("days that are measured (2024-03-03)" in text for text in warnings) == bool(expected)


def test_a_simulated_log_with_flags_of_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("simulate", "RecFlow", "--layout", "recflow", "--days", "3", "--requests-per-day", "25") == 0
    (tmp_path / "rows").mkdir()
    for file in sorted((tmp_path / "RecFlow" / "all_stage").iterdir()):
        pl.read_ipc(file).write_csv(tmp_path / "rows" / f"{file.stem}.csv")
    capsys.readouterr()
    assert run("init", "rows") == 0
    draft = load_spec(tmp_path / "spec.yaml")
    ids = ("user_id", "device_id", "age", "gender", "province", "video_id", "author_id", "category_level_two")
    known = recflow_spec(dict.fromkeys((*ids, "category_level_one", "upload_type"), 9), stages=3)
    assert (draft.request, draft.item, draft.user) == (known.request, known.item, known.user)
    assert draft.time is not None
    assert (draft.time.column, draft.time.unit) == ("request_timestamp", "ms")
    assert draft.stage_names[: len(known.stages)] == known.stage_names
    assert set(draft.feedback) <= set(known.feedback)
    assert "playing_time" in draft.feedback  # a model that saw it would know what the user did
    assert {name for name, _ in draft.features.item.items()} >= {"video_id", "author_id", "category_level_two"}
    follow(capsys)


def test_a_flat_click_log_with_german_names_and_an_index_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = []
    for number, time, user in shop():
        for place, product in enumerate(random_values.sample(list(PRODUCTS), 8), 1):
            clicked = random_values.random() < 0.3
            rows.append(
                {
                    "": len(rows),
                    "Anfragenummer": f"AN{number}",
                    "Zeitstempel": f"{time:%Y-%m-%d %H:%M:%S}",
                    "KundenNr": user,
                    "Ort": ["Köln", "Bern"][user % 2],
                    "Artikelnummer": f"0{product}",
                    "Warengruppe": PRODUCTS[product][0],
                    "Preis (EUR)": PRODUCTS[product][1] if number % 9 else "",
                    "Platz": place,
                    "angeklickt": int(clicked),
                    "gekauft": int(clicked and product % 4 == 0),
                }
            )
    write_csv(tmp_path / "klicks.csv", rows)
    assert run("init", "klicks.csv") == 0
    found = roles(tmp_path / "klicks.csv")
    assert found.pop("Unnamed: 0", "ignore") == "ignore"
    assert found == {
        "Anfragenummer": "request",
        "Zeitstempel": "time",
        "KundenNr": "user",
        "Ort": "user_feature",
        "Artikelnummer": "item",
        "Warengruppe": "item_feature",
        "Preis (EUR)": "item_feature",
        "Platz": "rank",
        "angeklickt": "label",
        "gekauft": "feedback",
    }
    feature = load_spec(tmp_path / "spec.yaml").features.item["preis_eur"]
    assert (feature.column, feature.kind) == ("Preis (EUR)", "dense")
    assert getattr(feature, "missing", None) == 0
    follow(capsys)


def test_a_few_wrong_rows_do_not_change_the_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One request with two times and users, a word among the prices, a day beside the time."""
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = []
    for number, time, user in shop():
        for place, product in enumerate(random_values.sample(list(PRODUCTS), 8), 1):
            is_wrong = (number, place) == (50, 3)
            rows.append(
                {
                    "Anfrage": number,
                    "Tag": f"{time:%Y%m%d}",
                    "Zeitpunkt": f"{time + timedelta(seconds=is_wrong):%Y-%m-%dT%H:%M:%S}",
                    "Kunde": user + is_wrong,
                    "Artikel": product,
                    "Preis": "k.A." if (number, place) == (20, 1) else PRODUCTS[product][1],
                    "Platz": place,
                    "Klick": int(random_values.random() < 0.3),
                }
            )
    write_csv(tmp_path / "log.csv", rows)
    assert run("init", "log.csv") == 0
    checks = " ".join(capsys.readouterr().err.split())
    assert "Zeitpunkt has several values in 1.11% of the requests" in checks  # 1 of 90
    assert "Kunde has several values in 1.11% of the requests" in checks
    assert "Preis has texts among its numbers ('k.A.')" in checks
    found = roles(tmp_path / "log.csv")
    assert (found["Zeitpunkt"], found["Kunde"], found["Tag"]) == ("time", "user", "ignore")
    assert load_spec(tmp_path / "spec.yaml").features.item["Preis"].kind == "dense"
    assert run("prepare", "rows", "log.csv", "--spec", "spec.yaml", "--check") == 1
    assert "--skip-bad 9 drops 9 bad rows" in capsys.readouterr().err  # a row, and the 8 rows of a request
    assert run("prepare", "rows", "log.csv", "--spec", "spec.yaml", "--skip-bad", "9", "--out", "log") == 0


def test_a_table_with_lists_vectors_and_numbered_days_and_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = []
    for number, time, user in shop():
        history = random_values.sample(list(PRODUCTS), 1 + number % 5)
        for place, product in enumerate(random_values.sample(list(PRODUCTS), 12)):
            depth = (place > 5) + (place > 9)
            rows.append(
                {
                    "qid": number,
                    "dt": int(f"{time:%Y%m%d}"),
                    "uid": user,
                    "hist_items": history,
                    "cand": product,
                    "embedding": [product % 3 / 2, product % 5 / 4],
                    "depth": depth,
                    "pctr": random_values.random(),
                    "label": int(depth == 2 and product % 2),
                }
            )
    pl.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")
    assert run("init", "rows.parquet") == 0
    assert roles(tmp_path / "rows.parquet") == {
        "qid": "request",
        "dt": "day",
        "uid": "user",
        "hist_items": "sequence",
        "cand": "item",
        "embedding": "item_feature",
        "depth": "stage",
        "pctr": "ignore",
        "label": "label",
    }
    config = load_config(tmp_path / "config.yaml")
    assert (config.data.train, config.data.valid, config.data.test) == (["20240301"], ["20240302"], ["20240303"])
    follow(capsys)
    frame = pl.read_parquet(tmp_path / "rows.parquet")
    frame.write_ndjson(tmp_path / "rows.jsonl")
    assert roles(tmp_path / "rows.jsonl") == roles(tmp_path / "rows.parquet")


def catalogue_log(requests: int = 90) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of a log without features of items, and a catalogue with them."""
    rows = [
        {
            "request": number,
            "time": f"{time:%Y-%m-%dT%H:%M:%S}",
            "user": user,
            "item": product,
            "clicked": place % 3 // 2,
        }
        for number, time, user in shop(requests)
        for place, product in enumerate(random_values.sample(list(PRODUCTS), 8))
    ]
    tags = ["red", "green", "blue", "small"]
    catalogue = [
        {
            "item": product,
            "group": group,
            "price": price,
            "tags": "|".join(random_values.sample(tags, 1 + product % 3)),
        }
        for product, (group, price) in PRODUCTS.items()
    ]
    return rows, catalogue


def test_a_catalogue_beside_the_log_is_used_as_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One directory has CSV, JSON lines and the catalogue; the log has a row that was cut off."""
    monkeypatch.chdir(tmp_path)
    rows, catalogue = catalogue_log()
    (tmp_path / "shop").mkdir()
    write_csv(tmp_path / "shop" / "catalogue.csv", catalogue)
    log = write_csv(tmp_path / "shop" / "first.csv", rows[:400])
    log.write_text(log.read_text() + "7,2024-03")
    (tmp_path / "shop" / "second.jsonl").write_text("\n".join(map(json.dumps, rows[400:])))
    assert run("init", "shop") == 0
    printed = capsys.readouterr()
    checks = " ".join(printed.err.split())
    assert "shop/catalogue.csv has other columns than the log and one row per item, and is used with --items" in checks
    assert "1 rows cannot be read (the first is row 401 of shop/first.csv: 2 of 5 columns)" in checks
    assert "tags has several values in one text, separated by '|', and is not used" in checks
    prepare = printed.out.partition("next:\n")[2].splitlines()[0].split()[1:]
    assert prepare[2:6] == ["shop/first.csv", "shop/second.jsonl", "--items", "shop/catalogue.csv"]
    spec = load_spec(tmp_path / "spec.yaml")
    assert {name: feature.kind for name, feature in spec.features.item.items()} == {
        "item": "categorical",
        "group": "categorical",
        "price": "dense",
    }
    config = load_config(tmp_path / "config.yaml")
    assert config.data.train == ["2024-03-01"]  # JSON lines have the third day
    assert run(*prepare) == 1
    assert "--check" in capsys.readouterr().err
    assert run(*prepare, "--skip-bad", "1") == 0
    # the same with the table named, and without the directory
    words = ("init", "shop/first.csv", "shop/second.jsonl", "--items", "shop/catalogue.csv", "--out", "again")
    assert run(*words) == 0
    assert load_spec(tmp_path / "again" / "spec.yaml") == spec
    # a catalogue may have more bytes than the log
    write_csv(tmp_path / "shop" / "catalogue.csv", [{**row, "about": "text " * 1000} for row in catalogue])
    assert run("init", "shop", "--out", "large") == 0
    assert load_spec(tmp_path / "large" / "spec.yaml").features.item.keys() >= spec.features.item.keys()
    capsys.readouterr()
    assert run("init", "shop/catalogue.csv", "--items", "shop/catalogue.csv", "--out", "wrong") == 1
    assert "shop/catalogue.csv: found tables only, expected files of the log besides them" in capsys.readouterr().err
    assert run("init", "shop/first.csv", "--users", "shop/catalogue.csv", "--out", "wrong") == 1
    assert "catalogue.csv: found no column 'user', as in the log" in " ".join(capsys.readouterr().err.split())


def test_the_log_says_which_tables_it_was_prepared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows, catalogue = catalogue_log(30)
    write_csv(tmp_path / "log.csv", rows[:160])
    write_csv(tmp_path / "new.csv", rows[160:])
    write_csv(tmp_path / "items.csv", catalogue)
    assert run("init", "log.csv", "--items", "items.csv") == 0
    words = ("prepare", "rows", "log.csv", "--items", "items.csv", "--spec", "spec.yaml", "--out", "log")
    assert run(*words) == 0
    capsys.readouterr()
    before = (tmp_path / "log" / "manifest.json").read_bytes()
    assert run("prepare", "rows", "new.csv", "--append", "log") == 1
    assert "this log was prepared with --items; pass the table again" in " ".join(capsys.readouterr().err.split())
    assert run("prepare", "rows", "new.csv", "--append", "log", "--check") == 1
    assert "this log was prepared with --items; pass the table again" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "log" / "manifest.json").read_bytes() == before
    assert run("prepare", "rows", "new.csv", "--append", "log", "--items", "items.csv") == 0


def test_times_may_have_a_few_words_among_them(tmp_path: Path) -> None:
    rows, _ = catalogue_log()
    rows[17]["time"] = "unknown"
    path = write_csv(tmp_path / "log.csv", rows)
    assert roles(path)["time"] == "time"
    draft = draft_files([path], tmp_path)
    assert any("time has texts among its times ('unknown'), which prepare refuses" in check for check in draft.checks)


def test_times_in_several_zones_are_instants(tmp_path: Path) -> None:
    """Rows of a request have the same time in three zones; one request has two times."""
    rows, _ = catalogue_log()
    for place, row in enumerate(rows):
        time = datetime.fromisoformat(row["time"] + "+00:00") + timedelta(seconds=place == 83)
        row["time"] = time.astimezone(timezone(timedelta(hours=(0, 1, -5)[place % 3]))).isoformat()
    draft = draft_files([write_csv(tmp_path / "log.csv", rows)], tmp_path)
    assert draft.guesses is not None
    assert draft.guesses.one("time") == "time"
    assert [check for check in draft.checks if "several values" in check] == [
        "time has several values in 1.11% of the requests, which prepare refuses: "  # 1 of 90
        "prepare --check lists them, and --skip-bad drops them"
    ]


def test_a_log_with_a_counter_of_clicks_in_a_directory_named_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A counter is a feature of the item, whatever its name is; the log is no place for its output."""
    monkeypatch.chdir(tmp_path)
    rows, _ = catalogue_log()
    seen: Counter[Any] = Counter()
    for row in rows:
        row["clicks"] = 1 + seen[row["item"]]
        seen[row["item"]] += row["clicked"]
        row["spent"] = row["clicked"] * random_values.randrange(1, 9)
    (tmp_path / "log").mkdir()
    path = write_csv(tmp_path / "log" / "rows.csv", rows)
    found = roles(path)
    assert (found["clicked"], found["clicks"], found["spent"]) == ("label", "item_feature", "feedback")
    assert run("init", "log") == 0
    assert run(*capsys.readouterr().out.partition("next:\n")[2].splitlines()[0].split()[1:]) == 0
    assert load_config(tmp_path / "config.yaml").data.path == "prepared"


@pytest.mark.parametrize("zoned", [False, True])
def test_counters_are_features_of_the_item_and_a_flag_is_the_label(tmp_path: Path, zoned: bool) -> None:
    """Counters of all days, and of each day in UTC or elsewhere; one includes the click of its own row."""
    rows: list[dict[str, Any]] = []
    counts: dict[str, Counter[Any]] = {name: Counter() for name in ("ever", "utc", "tokyo")}
    for number, time, user in shop(300, 6):
        days = {"ever": "", "utc": f"{time:%d}", "tokyo": f"{time + timedelta(hours=9):%d}"}
        for place, product in enumerate(random_values.sample(list(PRODUCTS), 10)):
            keys = {name: (product, day) for name, day in days.items()}
            clicked = int(place < 5 and random_values.random() < 0.5)
            zone = timezone(timedelta(hours=(0, 1, -5)[place % 3] if zoned else 0))
            rows.append(
                {
                    "request": number,
                    "ts": time.replace(tzinfo=UTC).astimezone(zone).isoformat(),
                    "user": user,
                    "item": product,
                    "views_so_far": 3 * counts["ever"][keys["ever"]],
                    "clicks": counts["ever"][keys["ever"]],
                    "clicks_today": counts["utc"][keys["utc"]],
                    "klicks_rank": counts["tokyo"][keys["tokyo"]],
                    "with_own": counts["ever"][keys["ever"]] + clicked,
                    "clicked": clicked,
                    "bought_units": clicked * random_values.randrange(4),
                }
            )
            for name, key in keys.items():
                counts[name][key] += clicked
    found = roles(write_csv(tmp_path / "log.csv", rows))
    counters = ("views_so_far", "clicks", "clicks_today", "klicks_rank")
    assert {name: found[name] for name in counters} == dict.fromkeys(counters, "item_feature")
    assert (found["clicked"], found["bought_units"], found["with_own"]) == ("label", "feedback", "ignore")


def test_features_of_items_that_depend_on_the_request_get_no_random_items(tmp_path: Path) -> None:
    rows, _ = catalogue_log()
    seen: Counter[Any] = Counter()
    for number, row in enumerate(rows):
        row["stock"] = int(row["item"]) % 7 + int(str(row["time"])[8:10])  # changes from day to day only
        row["views"] = seen[row["item"]]  # changes with every request, but is that of the item
        seen[row["item"]] += 1
        row["distance"] = number % 5 * 1.5
        row["match"] = random_values.choice(["yes", "no"])
    path = write_csv(tmp_path / "log.csv", rows)
    files = draft_files([path], tmp_path).files
    text = files["config.yaml"]
    assert "features of items depend on the request: distance, match\n" in text
    data = yaml.safe_load(text)["data"]
    assert not {"negatives", "length"} & {*data}
    (tmp_path / "spec.yaml").write_text(files["spec.yaml"])
    prepare_rows([path], tmp_path / "log", load_spec(tmp_path / "spec.yaml"))
    assert "depend on the request: distance, match\n" in draft_files([tmp_path / "log"], tmp_path).files["config.yaml"]
    for row in rows:
        del row["distance"], row["match"]
    data = yaml.safe_load(draft_files([write_csv(path, rows)], tmp_path).files["config.yaml"])["data"]
    assert (data["negatives"], data["length"]) == (20, "all")


def test_numbers_of_rows_are_not_used(tmp_path: Path) -> None:
    """They begin at any number, in any order, have gaps, and a few rows are repeated."""
    rows, _ = catalogue_log()
    order = random_values.sample(range(len(rows)), len(rows))
    for place, row in enumerate(rows):
        row["count"] = 5_000 + place
        row["shuffled"] = order[place]
        row["row_id"] = 1_000_000 * order[place]
        row["distance"] = random_values.randrange(50_000)  # differs in nearly every row, too
    path = write_csv(tmp_path / "log.csv", [*rows, *rows[40:44]])
    guesses = draft_files([path], tmp_path).guesses
    assert guesses is not None
    assert {name for name, guess in guesses.of.items() if guess.why == "numbers the rows"} == {
        "count",
        "shuffled",
        "row_id",
    }
    assert guesses.of["distance"].role == "item_feature"


def test_what_was_shown_is_no_feature_and_a_counter_is_one(tmp_path: Path) -> None:
    """The names are Dutch, which no word list has: only shown items have a place, and only these are clicked."""
    rows: list[dict[str, Any]] = []
    views: Counter[int] = Counter()
    for number, time, user in shop(200):
        for rank, product in enumerate(random_values.sample(list(PRODUCTS), 10)):
            shown = rank < 4
            rows.append(
                {
                    "verzoek": number,
                    "tijdstip": f"{time:%Y-%m-%dT%H:%M:%S}",
                    "klant": user,
                    "artikel": product,
                    "gezien_tot_nu": views[product],
                    "getoond": int(shown),
                    "plek": rank if shown else "",
                    "plaats": rank if shown else -1,
                    "geklikt": int(shown and random_values.random() < 0.4),
                }
            )
            views[product] += shown
    path = write_csv(tmp_path / "log.csv", rows)
    found = roles(path, "label=geklikt")
    assert {name for name, role in found.items() if role == "ignore"} == {"getoond", "plek", "plaats"}
    assert found["gezien_tot_nu"] == "item_feature"
    draft = draft_files([path], tmp_path, roles=["label=geklikt"])
    assert sum("may say what was shown and is not used" in check for check in draft.checks) == 3
    assert any("try --role stage=getoond" in check for check in draft.checks)
    data = yaml.safe_load(draft.files["config.yaml"])["data"]
    assert (data["negatives"], data["length"]) == (20, "all")  # a counter changes within a day, but belongs to the item
    assert draft_files([path], tmp_path, roles=["label=geklikt", "stage=getoond", "rank=plek"]).files
    # without a label, the rarest candidate is suggested: what was shown is more than what was clicked
    assert "try --role label=geklikt (candidates: geklikt, getoond)" in draft_files([path], tmp_path).problems[0]
    assert "or use --role stage=getoond" in draft_files([path], tmp_path, roles=["flag=getoond"]).problems[0]


@pytest.mark.parametrize(
    ("items", "quotas", "depths"),
    [
        ([30, 14, 8, 8], [30, 16, 8], [0, 1, 2]),  # 60 items; 30, 16 and 8 of them reached the later stages
        ([30, 20, 10], [30, 10, 5], [0, 1, 2]),
        ([40, 20], [20, 10], [0, 1]),
        ([60], [45, 30], [0, 0]),
        ([40, 30, 14, 8, 8], [60, 16, 8], [0, 1, 3]),
    ],
)
def test_quotas_are_the_items_that_reached_the_next_stage(
    items: list[int], quotas: list[int], depths: list[int]
) -> None:
    """The quotas were computed by hand from the rule in the documentation."""
    shape = LogShape(
        path="log",
        days=["1", "2"],
        stages=[f"s{number}" for number in range(len(items))] if len(items) > 1 else [],
        items=[float(count) for count in items],
        positives=2,
        relevant_stage=None,
        requests_per_day=100,
        has_sequences=False,
        catalogue=50,
        per_request=[],
    )
    stages = yaml.safe_load(draft_cascade_config(shape))["stages"]
    assert [stage["quota"] for stage in stages] == quotas
    assert [int(stage.get("min_depth", "s0")[1:]) for stage in stages] == depths


def test_letor_files_get_the_configuration_of_a_ranker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fold").mkdir()
    for seed, name in enumerate(("train", "vali", "test")):
        (tmp_path / "fold" / f"{name}.txt").write_text(planted_text(12, seed))
    assert run("init", "fold") == 0
    data = load_config(tmp_path / "config.yaml").data
    assert (data.train, data.valid, data.test) == (["train"], ["vali"], ["test"])
    follow(capsys)
    assert run("init", "lists", "--out", "again") == 0
    assert load_config(tmp_path / "again" / "config.yaml").data.valid == ["vali"]


# --- roles ----------------------------------------------------------------------------------------------------------


def test_camel_case_names_and_nested_flags(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for number, time, user in shop():
        for place, product in enumerate(random_values.sample(list(PRODUCTS), 16)):
            clicked = place < 3 and random_values.random() < 0.4
            rows.append(
                {
                    "searchId": number,
                    "requestedAt": int(time.timestamp() * 1000),
                    "visitorId": f"v{user}",
                    "deviceType": ["phone", "desktop"][number % 2],
                    "productSku": product,
                    "priceCents": int(PRODUCTS[product][1] * 100),
                    "ctr7d": product % 7 / 100,
                    "retrievalScore": round(random_values.random(), 3),
                    "isShown": int(place < 4),
                    "isRetrieved": 1,
                    "isPreRanked": int(place < 9),
                    "clickFlag": str(clicked).lower(),
                    "dwellSeconds": 3.5 if clicked else "",
                    "schemaVersion": 2,
                }
            )
    path = write_csv(tmp_path / "log.csv", rows)
    draft = draft_files([path], tmp_path)
    assert draft.guesses is not None
    assert draft.guesses.stages == ["isRetrieved", "isPreRanked", "isShown"]
    assert roles(path) == {
        "searchId": "request",
        "requestedAt": "time",
        "visitorId": "user",
        "deviceType": "context_feature",
        "productSku": "item",
        "priceCents": "item_feature",
        "ctr7d": "item_feature",
        "retrievalScore": "ignore",
        "isShown": "flag",
        "isRetrieved": "flag",
        "isPreRanked": "flag",
        "clickFlag": "label",
        "dwellSeconds": "feedback",
        "schemaVersion": "ignore",
    }


def test_events_are_stages_and_the_index_of_pandas_is_not_used(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for number, time, user in shop():
        for product in random_values.sample(list(PRODUCTS), 10):
            event = random_values.choices(["purchase", "view", "click"], [1, 8, 3])[0]
            rows.append(
                {
                    "Unnamed: 0": len(rows),
                    "session": f"s{number}",
                    "ts": int(time.timestamp()),
                    "user": user,
                    "prod_id": product,
                    "event_type": event,
                }
            )
    draft = draft_files([write_csv(tmp_path / "events.csv", rows)], tmp_path)
    assert draft.guesses is not None
    assert draft.guesses.stages == ["view", "click", "purchase"]
    assert draft.guesses.of["Unnamed: 0"].role == "ignore"
    assert yaml.safe_load(draft.files["spec.yaml"])["relevant"] == "click"


def unnamed(tmp_path: Path) -> Path:
    """A log whose names say nothing and whose requests cannot be recognised."""
    rows = [
        {"x": number // 4, "y": product, "z": f"{time:%Y-%m-%d}", "v": place % 2, "w": number % 2}
        for number, time, _ in shop(40)
        for place, product in enumerate(random_values.sample(list(PRODUCTS), 6))
    ]
    return write_csv(tmp_path / "unnamed.csv", rows)


def test_what_cannot_be_decided_is_asked_for_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"price": product / 7, "clicked": product % 2} for product in PRODUCTS]
    path = write_csv(tmp_path / "log.csv", rows)
    assert run("init", path, "--out", tmp_path / "out") == 1
    captured = capsys.readouterr()
    assert "price" in captured.out  # the table
    assert "request: no column has one value for all candidates of a request" in captured.err
    assert "--role request=COLUMN" in captured.err
    assert not (tmp_path / "out").exists()


def test_given_roles_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = unnamed(tmp_path)
    given = ["--role", "item=y", "--role", "label=w", "--role", "ignore=v", "--role", "day=z"]
    assert run("init", path, "--out", tmp_path, "--json", "--role", "request=x", *given) == 0
    printed = json.loads(capsys.readouterr().out)
    found = {column["column"]: (column["role"], column["confidence"]) for column in printed["columns"]}
    assert found["w"] == ("label", "given")
    assert {role for role, _ in found.values()} == {"request", "item", "day", "label", "ignore"}
    assert [name.rpartition("/")[2] for name in printed["files"]] == ["spec.yaml", "config.yaml"]
    assert "given by --role" in (tmp_path / "spec.yaml").read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("iten=y", "found 'iten=y', did you mean 'item'; expected ROLE=COLUMN"),
        ("item", "found 'item'"),
        ("item=why", "found no column 'why'"),
    ],
)
def test_wrong_roles_are_refused(given: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", unnamed(tmp_path), "--out", tmp_path, "--role", given) == 1
    assert message in capsys.readouterr().err


def test_values_that_prepare_cannot_read_are_named(tmp_path: Path) -> None:
    rows = [
        {
            "ImpressionID": number,
            "Time": f"{time:%m/%d/%Y %I:%M:%S %p}",
            "visitor_country_id": user % 3,
            "History": f"N{number % 30} N7",
            "News": f"N{product}",
            "pCTR": 0.25 + place / 64,
            "Clicked": ["no", "yes"][(number + place) % 2],
        }
        for number, time, user in shop(40)
        for place, product in enumerate(random_values.sample(list(PRODUCTS), 6))
    ]
    draft = draft_files([write_csv(tmp_path / "mind.csv", rows)], tmp_path)
    time_problem, label_problem = draft.problems
    assert time_problem.startswith(
        "time: found '03/01/2024 12:00:00 ' in Time, expected times such as 2024-01-13T08:30:00"
    )
    assert label_problem == "label: found the texts no, yes in Clicked, expected numbers, 0 or 1"
    assert draft.guesses is not None
    found = {name: guess.role for name, guess in draft.guesses.of.items()}
    assert (found["visitor_country_id"], found["History"], found["pCTR"]) == ("context_feature", "ignore", "ignore")


def test_existing_files_are_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    assert run("init", unnamed(tmp_path), "--out", tmp_path) == 1
    assert "config.yaml exists already and is not replaced" in capsys.readouterr().err
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert not (tmp_path / "spec.yaml").exists()


def test_drafts_are_completed_after_a_kill_between_the_two_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "drafts"
    roles = ("request=x", "item=y", "label=w", "ignore=v", "day=z")
    given = [part for role in roles for part in ("--role", role)]
    command: list[str | Path] = ["init", unnamed(tmp_path), "--out", out, *given]
    assert run(*command) == 0
    spec, config = (out / "spec.yaml").read_bytes(), (out / "config.yaml").read_bytes()
    (out / "config.yaml").unlink()  # it is written last
    assert run(*command) == 0
    assert ((out / "spec.yaml").read_bytes(), (out / "config.yaml").read_bytes()) == (spec, config)
    (out / "config.yaml").unlink()
    (out / "spec.yaml").write_text("mine")
    capsys.readouterr()
    assert run(*command) == 1
    assert "spec.yaml exists already and is not replaced" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in out.iterdir()} == {"spec.yaml": "mine"}


def test_other_problems_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text("request;item\nr;i\n")
    assert run("init", path, "--out", tmp_path) == 1
    assert "found one column, 'request;item'; columns must be separated by commas" in capsys.readouterr().err
    rows: list[dict[str, Any]] = [
        {"request": number, "time": "2024-01-01T08:00:00", "item": product, "clicked": (product + number) % 2}
        for number in range(9)
        for product in list(PRODUCTS)[:5]
    ]
    assert run("init", write_csv(path, rows), "--out", tmp_path) == 1
    assert "days: found one day, 2024-01-01, expected at least two" in capsys.readouterr().err
    stages = [
        {**row, "time": f"2024-01-0{1 + row['request'] % 3}", "stage": ["grob gefiltert", "gezeigt"][row["clicked"]]}
        for row in rows
    ]
    assert run("init", write_csv(path, stages), "--out", tmp_path) == 1
    assert "stage: found 'grob gefiltert', expected names of letters" in capsys.readouterr().err
