"""Streams: a day is measured by what was learned before it and learned from once, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shutil
import signal
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console
from scipy import stats

from rankfall._config import ConfigError
from rankfall.reporting.comparison import curves_chart, markdown_tables, stream_blocks
from rankfall.reporting.terminal import show
from rankfall.simulation.simulate import Simulation, append_days, simulate_log
from rankfall.studies.comparison_plan import validated
from rankfall.studies.evaluate import evaluate_run
from rankfall.studies.results import DayResult, StreamResult
from rankfall.studies.stream.stream_config import StreamConfig, make_runs
from rankfall.training.config.load_config import merge
from rankfall.training.run_directory import EnvironmentFailure, Stopped
from reporting.test_report import Page, check_pictures
from support.command_line import run as command
from support.forks import DEADLINE
from support.interrupted import train
from support.logs import write_log
from support.sealing import edit_manifest
from support.streams import run_outcome, stream_content, stream_outcome, streamed
from support.week_log import WEEK, add_day, day_of, drop_day, log_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.studies.stream.stream_config import StreamRun
    from rankfall.training.run_directory import Step
    from support.forks import Fork, Forks
    from support.logs import Columns


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return log_of(tmp_path_factory.mktemp("stream") / "log", range(5))


@pytest.fixture(scope="module")
def out(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream of four days, two methods and two seeds."""
    directory: Path = tmp_path_factory.mktemp("stream")
    content = stream_content(log, data={"days": f"{WEEK[0]}..{WEEK[3]}"}) | {"seeds": [0, 3]}
    (directory / "stream.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    assert command("stream", str(directory / "stream.yaml"), "--out", str(directory / "out")) == 0
    return directory / "out"


def one_method(log: Path, **changes: Any) -> dict[str, Any]:
    """A stream of the first method alone, which has the name of its objective."""
    content = stream_content(log, **changes)
    content.pop("methods")
    return content


def training_content(log: Path, days: list[str], valid: str, **changes: Any) -> dict[str, Any]:
    """A training of the stream's first method on these days, once."""
    content = one_method(log)
    data = {"train": days, "valid": valid}
    return merge(content, {"data": data, "training": {"epochs": 1}, **changes})


# --- what a stream is -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_ends_as_one_training(log: Path, out: Path, tmp_path: Path) -> None:
    train(training_content(log, WEEK[:4], WEEK[4], training={"seed": 3, "epochs": 1}), tmp_path / "run")
    weights = (tmp_path / "run/checkpoints/last.safetensors").read_bytes()
    for name in ("best", "last"):
        assert (out / f"runs/lcron-3/checkpoints/{name}.safetensors").read_bytes() == weights


def test_a_schedule_spans_all_days(log: Path, tmp_path: Path) -> None:
    tau = {"objective": {"topk": {"tau": {"start": 10.0, "end": 1.0}}}}
    content = one_method(log, data={"days": WEEK[:3]}, **tau)
    streamed(content, tmp_path / "stream")
    train(training_content(log, WEEK[:3], WEEK[4], **tau), tmp_path / "run")
    weights = (tmp_path / "run/checkpoints/last.safetensors").read_bytes()
    assert (tmp_path / "stream/runs/lcron-0/checkpoints/last.safetensors").read_bytes() == weights
    content["data"]["days"] = WEEK[:4]
    with pytest.raises(ConfigError, match=r"lcron: a temperature follows a schedule over the 3 days .* there are 4"):
        streamed(content, tmp_path / "stream", resume=True)
    content["data"]["days"] = WEEK[:3]
    assert not streamed(content, tmp_path / "stream", resume=True).failed


def test_further_metrics_of_stages_are_measured_every_day(log: Path, tmp_path: Path) -> None:
    content = one_method(log, data={"days": WEEK[:2]}) | {"stage_metrics": ["ndcg_linear@3"]}
    result = streamed(content, tmp_path / "stream")
    (method,) = result.days[-1].methods
    assert {"retrieval/alone/ndcg_linear@3", "ranking/alone/ndcg_linear@3"} < set(method.metrics)


@pytest.mark.parametrize("number", [1, 3])
def test_a_day_is_measured_before_it_is_learned_from(log: Path, out: Path, tmp_path: Path, number: int) -> None:
    train(training_content(log, WEEK[:number], WEEK[number]), tmp_path / "run")
    evaluate_run(tmp_path / "run", "valid")
    expected = pq.read_table(tmp_path / "run/values-valid.parquet")
    assert pq.read_table(out / f"runs/lcron-0/days/{WEEK[number]}.parquet").equals(expected)


def test_a_run_is_a_run(out: Path, log: Path) -> None:
    run = out / "runs/lcron-0"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["day"] for line in lines] == WEEK[:4]
    assert lines[0]["validation"] == {}
    for line in lines[1:]:
        values = pq.read_table(run / f"days/{line['day']}.parquet")["joint_recall"].to_pylist()
        assert line["validation"]["joint_recall"] == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert not (run / f"days/{WEEK[0]}.parquet").exists()
    evaluation = evaluate_run(run, WEEK[4])  # a day that it has never seen
    assert len(evaluation.qids) == 40
    assert command("report", str(run)) == 0
    found = Page(run / "report.html")
    check_pictures(found, 4)
    (run / "report.html").unlink()


# --- what it says ---------------------------------------------------------------------------------------------------


def days_values(out: Path, method: str, day: str, metric: str) -> list[list[float]]:
    """The values of every impression of a day, a list a seed."""
    return [pq.read_table(out / f"runs/{method}-{seed}/days/{day}.parquet")[metric].to_pylist() for seed in (0, 3)]


def over_seeds(values: list[list[float]]) -> list[float]:
    return [statistics.fmean(of) for of in zip(*values, strict=True)]


def check_figures(figures: dict[str, Any], by_seed: list[list[float]], chance: list[float]) -> None:
    means = [statistics.fmean(values) for values in by_seed]
    assert figures["mean"] == pytest.approx(statistics.fmean(means))
    assert figures["std"] == pytest.approx(statistics.stdev(means))
    assert figures["values"] == pytest.approx(means)
    assert figures["chance"] == pytest.approx(statistics.fmean(chance))


def check_test(tests: list[dict[str, Any]], metric: str, by_unit: dict[str, list[float]]) -> None:
    """Of two methods the worse one is held against the better, so there is one p-value and nothing to correct."""
    means = {name: statistics.fmean(values) for name, values in by_unit.items()}
    lost = metric.endswith("/lost")
    best = (min if lost else max)(means, key=lambda name: means[name])
    (worse,) = set(means) - {best}
    (test,) = (one for one in tests if one["metric"] == metric and one["method"] == worse)
    assert test["best"] == best
    assert test["difference"] == pytest.approx(means[worse] - means[best])
    expected = stats.ttest_rel(by_unit[worse], by_unit[best], alternative="greater" if lost else "less")
    assert test["p_value"] == test["adjusted_p_value"] == pytest.approx(expected.pvalue)
    assert test["significantly_worse"] == (expected.pvalue < 0.05)


@pytest.mark.parametrize("metric", ["joint_recall", "retrieval/lost", "ranking/alone/ndcg"])
def test_figures_and_tests_are_those_of_a_loop(out: Path, metric: str) -> None:
    result = json.loads((out / "stream.json").read_text())
    names = {"LCRON": "lcron", "BCE, all": "bce-all"}
    assert [method["name"] for method in result["methods"]] == list(names)
    assert [entry["day"] for entry in result["days"]] == WEEK[1:4]
    daily: dict[str, list[list[float]]] = {name: [[], []] for name in names}
    chances = []
    for entry in result["days"]:
        values = {name: days_values(out, run, entry["day"], metric) for name, run in names.items()}
        chance = days_values(out, "lcron", entry["day"], f"chance {metric}")[0]
        chances.append(statistics.fmean(chance))
        for method in entry["methods"]:
            check_figures(method["metrics"][metric], values[method["name"]], chance)
            for seed in (0, 1):
                daily[method["name"]][seed].append(statistics.fmean(values[method["name"]][seed]))
        check_test(entry["tests"], metric, {name: over_seeds(of) for name, of in values.items()})
        assert entry["impressions"] == 40
    for method in result["methods"]:
        check_figures(method["metrics"][metric], daily[method["name"]], chances)
    assert result["unit"] == "days"
    check_test(result["tests"], metric, {name: over_seeds(of) for name, of in daily.items()})


def test_the_page_the_picture_and_the_tables_say_the_same(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((out / "stream.json").read_text())
    means = {
        (entry["day"], method["name"]): method["metrics"]["joint_recall"]["mean"]
        for entry in result["days"]
        for method in entry["methods"]
    }
    found = Page(out / "report.html")
    rows = found.table("day")
    assert rows[0] == ["day", "LCRON", "BCE, all", "chance"]
    assert [row[0] for row in rows[1:]] == WEEK[1:4]
    for day, *cells, _ in rows[1:]:
        for name, cell in zip(("LCRON", "BCE, all"), cells, strict=True):
            assert float(cell.partition("±")[0].rstrip(" *")) == pytest.approx(means[day, name], abs=6e-4)
    curves = found.pictures[1]  # the funnels come first
    dots = [one for one in curves.iter() if one.tag.endswith("circle")]
    heights = [float(dot.attrib["cy"]) for dot in dots]
    expected = [means[day, name] for name in ("LCRON", "BCE, all") for day in WEEK[1:4]]
    assert sorted(range(6), key=lambda i: -heights[i]) == sorted(range(6), key=lambda i: expected[i])
    check_pictures(found, 2)
    tables = (out / "stream.md").read_text()
    assert all(f"| {day} | " in tables for day in WEEK[1:4])
    assert {path.name for path in out.glob("stream.*")} >= {"stream.png", "stream.svg"}
    assert command("report", str(out), "--out", str(out / "again.html")) == 0
    assert (out / "again.html").read_text() == (out / "report.html").read_text()


def shortened(columns: Columns, items: int) -> Columns:
    """Return a day whose lists have lost their random negatives and the items of the first stage."""
    kept = [[place for place, depth in enumerate(one) if depth > 0][:items] for one in columns["depth"]]
    return {
        name: [[one[place] for place in places] for one, places in zip(values, kept, strict=True)]
        if name.startswith(("item", "feedback")) or name in ("depth", "rank", "relevance", "grade")
        else values
        for name, values in columns.items()
    }


def test_a_shorter_list_is_no_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last day has five items per list instead of eleven, so that chance alone raises recall."""
    days = {WEEK[number]: day_of(number) for number in range(3)}
    days[WEEK[2]] = shortened(days[WEEK[2]], items=5)
    log = write_log(tmp_path / "log", days).path
    (tmp_path / "stream.yaml").write_text(yaml.safe_dump(one_method(log), sort_keys=False))
    assert command("stream", str(tmp_path / "stream.yaml"), "--out", str(tmp_path / "out")) == 0
    printed, warned = capsys.readouterr()
    result = StreamResult.load(tmp_path / "out/stream.json")
    assert [(entry.mean_length, entry.mean_relevant) for entry in result.days] == [(11, 2), (5, 2)]
    levels = [f"{entry.methods[0].metrics['joint_recall'].chance:.3f}" for entry in result.days]
    assert float(levels[1]) > 1.5 * float(levels[0])
    (warning,) = [text for text in result.warnings if "the task changed" in text]
    assert f"a list has 11.0 items on {WEEK[1]} and 5.0 on {WEEK[2]} (chance {' and '.join(levels)})" in warning
    assert warning in " ".join((printed + warned).split())
    first, last = (level.removeprefix("0") for level in levels)
    assert re.search(rf"^chance +\S+ +{first} +{last}\s*$", printed, re.MULTILINE)  # below the curves of the methods
    assert warning in (tmp_path / "out/stream.md").read_text()
    assert warning[1:] in Page(tmp_path / "out/report.html").words
    chart = curves_chart(result)
    assert chart
    assert "chance" in [key.name for key in chart.legend]


def test_days_that_the_log_was_fitted_to_are_named(tmp_path: Path) -> None:
    """A day is measured before the model learns from it, but its values may have a part in the vocabularies."""
    log = log_of(tmp_path / "log", range(3))
    warnings = []
    for fitted in (WEEK[:1], WEEK[:2]):
        about = json.loads((log / "manifest.json").read_text())["about"]
        edit_manifest(log / "manifest.json", about={**about, "fit_days": fitted})
        result = streamed(one_method(log), tmp_path / f"out{len(fitted)}")
        warnings.append([text for text in result.warnings if "was fitted to days that are measured" in text])
    assert warnings[0] == []
    assert f"measured ({WEEK[1]})" in warnings[1][0]
    assert "--fit-days 1 " in warnings[1][0]


def test_equal_lists_are_one_task(out: Path) -> None:
    assert not any("the task changed" in text for text in StreamResult.load(out / "stream.json").warnings)


def test_days_on_which_nothing_can_be_measured(out: Path) -> None:
    result = StreamResult.load(out / "stream.json")
    days = [DayResult(entry.day, 40, [], []) for entry in result.days]
    result = replace(result, days=days, methods=[], tests=[], incomplete=["LCRON", "BCE, all"])
    Console(width=80, file=io.StringIO()).print(show(stream_blocks(result)))
    assert "LCRON" in markdown_tables(result)


def test_a_narrow_terminal_folds_tables(out: Path) -> None:
    result = StreamResult.load(out / "stream.json")
    for width in (40, 80):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(show(stream_blocks(result)))
        text = console.export_text()
        assert all(len(line) <= width for line in text.splitlines())
        assert "…" not in text
        for entry in result.days:
            for method in entry.methods:
                summary = method.metrics["joint_recall"]
                assert f"{summary.mean:.3f}±{summary.std:.3f}".replace("0.", ".") in text


# --- what may go wrong ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.xdist_group("forks")
def test_killed_at_any_moment(forks: Forks, log: Path, tmp_path: Path) -> None:
    content = one_method(log, data={"days": WEEK[:3]}, training={"batch": 20})
    (tmp_path / "stream.yaml").write_text(json.dumps(content | {"methods": {"LCRON": {}}}))
    program = forks.start(tmp_path / "stream.yaml", tmp_path, "5", call="support.kill_loop:main")
    out, err = program.communicate()
    assert program.returncode == 0, err
    assert len(out.splitlines()) == 5
    whole, runs = stream_outcome(tmp_path / "whole"), sorted(tmp_path.glob("run*"))
    assert runs
    assert all(stream_outcome(run) == whole for run in runs)


def test_a_method_that_diverges_lets_the_others_go_on(log: Path, tmp_path: Path) -> None:
    content = stream_content(log, data={"days": WEEK[:3]}, methods={"wild": {"optimizer": {"lr": 1e30}}})
    (tmp_path / "stream.yaml").write_text(json.dumps(content))
    assert command("stream", str(tmp_path / "stream.yaml"), "--out", str(tmp_path / "out"), "--json") == 1
    result = json.loads((tmp_path / "out/stream.json").read_text())
    assert [method["name"] for method in result["methods"]] == ["LCRON", "BCE, all"]
    assert result["incomplete"] == ["wild"]
    assert "became NaN, infinite or too large" in result["failed"][0]["message"]
    assert "Failed runs" in Page(tmp_path / "out/report.html").headings


def test_it_stops_between_batches_and_goes_on(log: Path, tmp_path: Path) -> None:
    content = one_method(log, data={"days": WEEK[:3]})
    streamed(content, tmp_path / "whole")
    left = 0

    def stop() -> int:
        nonlocal left
        left -= 1
        return left == 0

    for stops in range(1, 40, 4):  # in the middle of learning, of measuring, and so on
        left = stops
        with contextlib.suppress(Stopped):
            streamed(content, tmp_path / "out", resume=True, stop=stop)
            break
    assert left > 0  # the last came to its end
    assert stream_outcome(tmp_path / "out") == stream_outcome(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_several_processes_are_ended_at_once(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def work(*arguments: Any, **options: Any) -> None:
        signal.raise_signal(number)
        time.sleep(DEADLINE)

    monkeypatch.setattr("rankfall.studies.stream.run_stream.stream_methods", work)
    (tmp_path / "stream.yaml").write_text(json.dumps(one_method(log)))
    code = command("stream", str(tmp_path / "stream.yaml"), "--out", str(tmp_path / "out"), "--jobs", "2")
    assert code == 128 + number


def test_a_run_says_where_it_is_when_the_disk_is_full(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = one_method(log, data={"days": WEEK[:2]}, training={"batch": 10})
    asked = iter([0, 0, 1])
    with pytest.raises(Stopped, match=f"after batch 3 of 4 of {WEEK[0]}"):
        streamed(content, tmp_path / "out", stop=lambda: next(asked))

    def full(*arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("rankfall.training.loop.write_file", full)
    with pytest.raises(EnvironmentFailure, match=f"Training ended after batch 3 of {WEEK[0]}"):
        streamed(content, tmp_path / "out", resume=True)


@pytest.mark.slow
def test_processes_do_the_same(log: Path, tmp_path: Path) -> None:
    content = stream_content(log, data={"days": WEEK[:2]})
    for jobs in (1, 2):
        streamed(content, tmp_path / str(jobs), jobs=jobs)
    assert stream_outcome(tmp_path / "1") == stream_outcome(tmp_path / "2")


# --- logs that grow -------------------------------------------------------------------------------------------------


def test_it_goes_on_with_days_that_are_new(log: Path, tmp_path: Path) -> None:
    growing = log_of(tmp_path / "log", range(2))
    content = one_method(growing)
    streamed(content, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/runs/*/days/*")}
    streamed(content, tmp_path / "out", resume=True)  # there is nothing new
    for number in (2, 3):
        add_day(growing, number)
    heard: list[list[str]] = []
    streamed(content, tmp_path / "out", resume=True, on_days=heard.append)
    assert heard == [WEEK[:4]]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    streamed(one_method(log, data={"days": WEEK[:4]}), tmp_path / "whole")
    assert stream_outcome(tmp_path / "out") == stream_outcome(tmp_path / "whole")


def test_items_that_are_born_later(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"preset": "tiny", "requests_per_day": 30, "seed": 0}
    simulate_log(Simulation(days=2, **plan), tmp_path / "log")
    model = {"dim": 2, "hidden": [4]}
    content = {
        "data": {"path": str(tmp_path / "log"), "negatives": 2},
        "stages": [{"name": "ranking", "quota": 20, "model": {"kind": "mlp", **model}}],
        "objective": {"name": "bce"},
    }
    streamed(content, tmp_path / "out")
    append_days(Simulation(days=3, **plan), tmp_path / "log")
    result = streamed(content, tmp_path / "out", resume=True)
    assert not result.failed
    assert [entry.day for entry in result.days] == WEEK[1:3]


def forget(log: Path, name: str) -> None:
    """Delete a day, in the manifest of the log too."""
    shutil.rmtree(log / "days" / name)
    days = json.loads((log / "manifest.json").read_text())["days"]
    edit_manifest(log / "manifest.json", days={day: listed for day, listed in days.items() if day != name})


def test_days_that_are_done_with_may_go(log: Path, tmp_path: Path) -> None:
    growing = log_of(tmp_path / "log", range(3))
    content = one_method(growing, data={"days": f"{WEEK[0]}..", "negatives": 0})
    streamed(content, tmp_path / "out")
    for name in WEEK[:2]:
        forget(growing, name)
    add_day(growing, 3)
    shutil.rmtree(growing / "days" / WEEK[2])  # which the manifest names
    streamed(content, tmp_path / "out", resume=True)
    streamed(one_method(log, data={"days": WEEK[:4], "negatives": 0}), tmp_path / "whole")
    assert stream_outcome(tmp_path / "out") == stream_outcome(tmp_path / "whole")


def test_days_that_are_done_with_may_be_damaged(tmp_path: Path) -> None:
    growing = log_of(tmp_path / "log", range(2))
    content = one_method(growing, data={"negatives": 0})
    streamed(content, tmp_path / "out")
    (growing / "days" / WEEK[0] / "impressions.arrow").write_bytes(b"")
    drop_day(growing, 2)
    result = streamed(content, tmp_path / "out", resume=True)
    assert not result.failed
    assert result.learned == WEEK[:3]


@pytest.mark.parametrize("drawn", [{"negatives": 3}, {"negatives": 0, "length": 30}])
def test_items_are_drawn_from_all_days_or_not_at_all(tmp_path: Path, drawn: dict[str, int]) -> None:
    growing = log_of(tmp_path / "log", range(2))
    content = one_method(growing, data=drawn)
    streamed(content, tmp_path / "out")
    forget(growing, WEEK[0])
    add_day(growing, 2)
    (failed,) = streamed(content, tmp_path / "out", resume=True).failed
    assert f"no longer has {WEEK[0]}; restore these days" in failed.message


def test_items_of_other_days_are_not_drawn(tmp_path: Path) -> None:
    """A log with days before, between and after those of the stream, and one that has these alone; few items a day."""
    for name, numbers in (("more", range(5)), ("alone", [1, 3])):
        log = log_of(tmp_path / name, numbers, impressions=2)
        streamed(one_method(log, data={"days": [WEEK[1], WEEK[3]]}), tmp_path / "streams" / name)
    assert stream_outcome(tmp_path / "streams/more") == stream_outcome(tmp_path / "streams/alone")


def test_a_day_that_is_replaced_meanwhile_is_not_learned_from(tmp_path: Path) -> None:
    growing = log_of(tmp_path / "log", range(2))
    place = growing / "days" / WEEK[1]
    other = log_of(tmp_path / "other", [4]) / "days" / WEEK[4]

    def replace_second(run: StreamRun, step: Step) -> None:
        if place.exists() and other.exists():
            shutil.rmtree(place)
            other.rename(place)

    result = streamed(one_method(growing), tmp_path / "out", on_step=replace_second)
    assert f"{place} has changed since the stream accepted it" in result.failed[0].message
    assert result.learned == WEEK[:1]


def test_a_run_goes_on_with_its_own_days(log: Path, tmp_path: Path) -> None:
    content = one_method(log, data={"days": WEEK[:3]})
    streamed(content, tmp_path / "out")
    ledger = json.loads((tmp_path / "out/days.json").read_text())
    for days, named, message in (
        (WEEK[:2], 2, f"was trained on 3 days, up to {WEEK[2]}, found 2"),
        ([WEEK[1], WEEK[0], WEEK[2]], 4, f"was trained on {WEEK[0]} where the stream now has {WEEK[1]}"),
    ):
        (tmp_path / "out/days.json").write_text(json.dumps({day: ledger[day] for day in days}))
        content["data"]["days"] = WEEK[:named]
        (failed,) = streamed(content, tmp_path / "out", resume=True).failed
        assert message in failed.message


def test_late_and_changed_days_are_not_learned_from(tmp_path: Path) -> None:
    growing = log_of(tmp_path / "log", [0, 2])
    content = one_method(growing)
    streamed(content, tmp_path / "out")
    add_day(growing, 1)
    add_day(growing, 3)
    forget(growing, WEEK[2])
    place = drop_day(growing, 4)
    (place).rename(growing / "days" / WEEK[2])  # other content under the old name
    said: list[str] = []
    result = streamed(content, tmp_path / "out", resume=True, on_notice=said.append)
    assert result.learned == [WEEK[0], WEEK[2], WEEK[3]]
    assert [text for text in said if "seed" not in text] == [
        f"{WEEK[1]} arrived after {WEEK[2]}, which is newer, and is left out",
        f"{growing / 'days' / WEEK[2]} has changed since the stream accepted it; no day is trained on twice",
    ]


def test_damaged_days(tmp_path: Path) -> None:
    growing = log_of(tmp_path / "log", range(3))
    (drop_day(growing, 3) / "manifest.json").write_text("{")
    content = one_method(growing)
    said: list[str] = []
    assert streamed(content, tmp_path / "out", on_notice=said.append).learned == WEEK[:3]
    (text,) = said
    assert f"{WEEK[3]} should be a day of the log but has no readable manifest.json; it is left out" in text
    (growing / "days" / WEEK[1] / "impressions.arrow").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"data.path: .*impressions.arrow has 0 bytes, .* the file is truncated"):
        streamed(content, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_tables_without_a_vocabulary_keep_the_size_they_began_with(tmp_path: Path) -> None:
    growing = log_of(tmp_path / "log", range(3))
    content = one_method(growing, data={"days": WEEK[:2]})
    streamed(content, tmp_path / "out")
    manifest = json.loads((growing / "manifest.json").read_text())
    for feature in manifest["features"]["features"]:
        if feature["embedding"] == "user.id":
            feature["rows"] += 5
    edit_manifest(growing / "manifest.json", **manifest)
    content["data"]["days"] = WEEK[:3]
    with pytest.raises(ConfigError, match=r"was started with 32 rows of user.id, .* now has 37"):
        streamed(content, tmp_path / "out", resume=True)


# --- following ------------------------------------------------------------------------------------------------------


def start(forks: Forks, config: Path, out: Path, *options: str, **settings: Any) -> Fork:
    log = yaml.safe_load(config.read_text())["data"]["path"]
    following = ("data.path=elsewhere", "--follow", log)  # which log it is, whatever the configuration says
    return forks.start("stream", config, "--out", out, *following, "--poll", "0.1", *options, **settings)


def wait_for(condition: Callable[[], bool], process: Fork) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def learned(out: Path) -> list[str]:
    path = out / "stream.json"
    return list(json.loads(path.read_text())["learned"]) if path.is_file() else []


def stopped(process: Fork, number: int) -> str:
    process.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode == 128 + number, said
    assert "with --resume" in said
    return said


@pytest.mark.slow
@pytest.mark.xdist_group("forks")
def test_it_follows_a_log_that_another_process_writes(forks: Forks, log: Path, tmp_path: Path) -> None:
    growing, config, out = log_of(tmp_path / "log", range(1)), tmp_path / "stream.yaml", tmp_path / "out"
    content = one_method(growing)
    config.write_text(json.dumps(content))

    process = start(forks, config, out)
    wait_for(lambda: learned(out) == WEEK[:1], process)
    place = drop_day(growing, 1)  # by somebody whose disk is bad
    good = (place / "impressions.arrow").read_bytes()
    (place / "impressions.arrow").write_bytes(good[:-8] + bytes(8))
    damaged = re.compile(
        re.escape(f"{place / 'impressions.arrow'} has changed since it was written") + ".*; it is read again when"
    )
    wait_for(lambda: damaged.search(process.errors()) is not None, process)
    assert learned(out) == WEEK[:1]
    (place / "impressions.arrow").write_bytes(good)
    wait_for(lambda: learned(out) == WEEK[:2], process)
    add_day(growing, 2)
    wait_for(lambda: learned(out) == WEEK[:3], process)
    said = stopped(process, signal.SIGTERM)
    assert f"trained on {WEEK[2]}; joint_recall before: lcron" in said

    add_day(growing, 3)
    process = start(forks, config, out, "--resume")
    wait_for(lambda: learned(out) == WEEK[:4], process)
    stopped(process, signal.SIGINT)

    whole = one_method(log, data={"days": WEEK[:4]})
    streamed(whole, tmp_path / "whole")
    days = out / "runs/lcron-0/days"
    weights = {path.stem: path.read_bytes() for path in days.glob("2024*.safetensors")}
    assert sorted(weights) == WEEK[:4]
    assert (days / "latest.safetensors").readlink() == Path(f"{WEEK[3]}.safetensors")
    for path in days.glob("*.safetensors"):
        path.unlink()
    assert stream_outcome(out) == stream_outcome(tmp_path / "whole")
    train(training_content(log, WEEK[:2], WEEK[4]), tmp_path / "run")
    assert weights[WEEK[1]] == (tmp_path / "run/checkpoints/last.safetensors").read_bytes()


def test_methods_have_their_own_labels(log: Path, tmp_path: Path) -> None:
    content = stream_content(log)
    content["methods"] = {"full": {}, "published": {"data": {"labels": "published"}}}
    runs = make_runs(validated(StreamConfig, content, "stream"), tmp_path)
    assert [run.config.data.labels for run in runs] == ["full", "published"]


# --- what it refuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"data": {"train": WEEK[0]}}, [], "data: unknown key 'train'; allowed are path, days, negatives"),
        ({"data": {"days": "2024-01-13..2030-01-01"}}, [], "data.days: "),
        ({"data": {"days": WEEK[:1]}}, [], "a stream needs two days, one to train on and one to test on"),
        ({"data": {"days": [WEEK[2], WEEK[0]]}}, [], f"data.days: found {WEEK[2]} before {WEEK[0]}, which is older"),
        ({"data": {"path": "nowhere"}}, [], "data.path: nowhere is not an impression log"),
        ({"epochs": 3}, [], "unknown key 'epochs'"),
        ({"training": {"epochs": 2}}, [], "a stream trains on each day once"),
        ({"training": {"bach": 2}}, [], "methods.LCRON: training: unknown key 'bach', did you mean"),
        ({"methods": {"LCRON": {"tune": {}}}}, [], "methods.LCRON.tune: unknown; allowed are relevant, stages"),
        ({"methods": {"LCRON": {"data": {"length": 9}}}}, [], "methods.LCRON.data.length: unknown; allowed are labels"),
        ({"methods": {"lcron": {}}}, [], "methods: 'LCRON' and 'lcron' would have the same directory, lcron"),
        ({"seeds": [1, 1]}, [], "seeds [1, 1] contain a seed twice"),
        ({"data": {"days": f"..{WEEK[2]}"}}, ["--follow", "LOG"], "expected FIRST.. or .."),
        (
            {"objective": {"topk": {"tau": {"start": 10.0, "end": 1.0}}}},
            ["--follow", "LOG"],
            "LCRON: a temperature follows a schedule over the whole stream, which has no end",
        ),
        ({"stages": []}, [], "stages"),
    ],
)
def test_it_says_what_is_wrong(
    log: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    options: list[str],
    message: str,
) -> None:
    (tmp_path / "stream.yaml").write_text(json.dumps(stream_content(log, **changes)))
    given = [str(log) if option == "LOG" else option for option in options]
    assert command("stream", str(tmp_path / "stream.yaml"), "--out", str(tmp_path / "out"), *given) == 1
    said = capsys.readouterr().err
    assert message in " ".join(said.split())
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_a_stream_is_not_lost_by_accident(
    log: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(out / "stream.yaml")
    before = stream_outcome(out)
    assert command("stream", config, "--out", str(out)) == 1
    assert f"{out} holds a stream already" in capsys.readouterr().err
    assert command("stream", config, "--out", str(out), "--force", "--resume") == 2
    assert command("stream", config, "--out", str(out), "--resume", "optimizer.lr=0.7") == 1
    assert "was started with a different configuration: optimizer.lr was 0.05 and is 0.7" in capsys.readouterr().err
    assert stream_outcome(out) == before
    (tmp_path / "thesis.txt").write_text("years of work")
    assert command("stream", config, "--out", str(tmp_path), "--force") == 1
    assert f"{tmp_path} holds other files and no stream" in capsys.readouterr().err
    assert command("stream", config, "--out", str(tmp_path / "thesis.txt")) == 1
    assert "is a file, expected a directory" in capsys.readouterr().err


def test_force_replaces_a_stream(log: Path, tmp_path: Path) -> None:
    content = one_method(log, data={"days": WEEK[:2]})
    streamed(content, tmp_path / "out")
    content["relevant"] = 1
    streamed(content, tmp_path / "out", force=True)
    streamed(content, tmp_path / "again")
    assert stream_outcome(tmp_path / "out") == stream_outcome(tmp_path / "again")
    assert run_outcome(tmp_path / "out/runs/lcron-0")["metrics"][0]["validation"] == {}
    assert math.isfinite(
        json.loads((tmp_path / "out/stream.json").read_text())["methods"][0]["metrics"]["joint_recall"]["mean"]
    )
