"""The Python API: same numbers as the commands, forms of configurations, data frames, notebooks, interruption."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import rankfall as rf
from rankfall.api.shared import override_words
from rankfall.reporting.files import shown_in
from rankfall.studies.comparison_plan import ComparisonConfig, load_comparison
from rankfall.studies.search_space import load_search
from rankfall.studies.stream.stream_config import StreamConfig, load_stream
from rankfall.training.config.load_config import apply_overrides, load_config
from support.bundles import platform_bundle, platform_run
from support.cascades import content, liked_log
from support.command_line import run as command
from support.paths import ROOT
from support.planted import config_for, planted_text
from support.results import compared, streamed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = [
    pytest.mark.filterwarnings("ignore::rankfall.RankfallWarning"),
    pytest.mark.xdist_group("api"),  # they share one training run
]

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return liked_log(tmp_path_factory.mktemp("api") / "log")


@pytest.fixture(scope="module")
def config(log: Path) -> dict[str, Any]:
    return content(log, training={"epochs": 1})


@pytest.fixture(scope="module")
def trained(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> rf.api.TrainedRun:
    return rf.train(config, tmp_path_factory.mktemp("api") / "run", progress=False)


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    """Return what a command prints with ``--json``."""
    capsys.readouterr()
    assert command(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def as_json(result: Any) -> Any:
    """Return the JSON form of a result after it was written and read."""
    return json.loads(json.dumps(result.to_json()))


def weights(run: Path) -> bytes:
    return (run / "checkpoints" / "last.safetensors").read_bytes()


# --- imports ------------------------------------------------------------------------------------------------------


def test_the_api_is_listed_and_imported_without_torch() -> None:
    program = (
        "import sys, rankfall as rf\n"
        "from rankfall import api\n"
        "assert all(callable(getattr(rf, name)) for name in api.__all__ if name[0].islower())\n"
        "assert set(dir(rf)) >= {name for name in api.__all__ if name[0].islower()}\n"
        "assert rf.train is api.train and issubclass(rf.ConfigError, ValueError)\n"
        "print([name for name in ('torch', 'polars', 'rich', 'typer') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_documentation_imports_public_names_only() -> None:
    fence = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    blocks = [block for page in pages for block in fence.findall(page.read_text(encoding="utf-8"))]
    imported = [
        name
        for block in blocks
        for node in ast.walk(ast.parse(block))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    ]
    assert imported.count("rankfall") > 5
    public = {"rankfall", "rankfall.serving", *(f"rankfall.{name}" for name in rf.__all__)}
    assert {name for name in imported if name.startswith("rankfall")} <= public


def test_mistakes_are_found_before_torch_is_imported(config: dict[str, Any]) -> None:
    wrong = config | {"objective": {"name": "lcorn"}}
    methods = {"methods": {"a": {"objective": {"name": "lcorn"}}}}
    days = {"data": {"path": config["data"]["path"]}, "training": {}}
    calls = {
        "train": wrong,
        "tune": wrong | {"search": {"optimizer.lr": [0.1, 0.2]}},
        "compare": config | methods,
        "stream": config | days | methods,
    }
    program = (
        f"import sys, rankfall as rf\nfor name, config in {calls!r}.items():\n"
        "    try: getattr(rf, name)(config, 'out')\n"
        "    except rf.ConfigError as error: assert \"found 'lcorn', did you mean 'lcron'\" in str(error)\n"
        "    else: raise AssertionError(name)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- configurations -----------------------------------------------------------------------------------------------


def test_a_path_a_dictionary_and_a_model_are_the_same_configuration(
    config: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    methods = {"methods": {"a": {}, "b": {"optimizer": {"lr": 0.01}}}}
    streamed = {**config, "data": {"path": config["data"]["path"]}, "training": {}, **methods}
    forms: list[tuple[Any, dict[str, Any]]] = [
        (load_config, config),
        (load_config, config_for(data)),
        (load_comparison, config | methods),
        (load_stream, streamed),
    ]
    for load, mapping in forms:
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(mapping))
        before = json.dumps(mapping)
        model = load(mapping)
        assert load(path) == load(str(path)) == model == load(model)
        assert load(mapping, ["training.seed=7"]) == load(model, override_words({"training.seed": 7})) != model
        assert json.dumps(mapping) == before
    search = config | {"search": {"optimizer.lr": [0.1, 0.2]}, "trials": 2}
    path.write_text(yaml.safe_dump(search))
    assert load_search(search).written() == load_search(path).written()
    assert isinstance(load_comparison(config | methods), ComparisonConfig)
    assert isinstance(load_stream(streamed), StreamConfig)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Co", "Cn"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=60)
@given(value=VALUES)
def test_overrides_by_dotted_keys_arrive_as_they_are(value: Any) -> None:
    assert apply_overrides({}, override_words({"a.b": value})) == {"a": {"b": value}}


def test_wrong_arguments_are_named(config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    with pytest.raises(rf.ConfigError, match=r"config: objective.name: found 'lcorn', did you mean 'lcron'"):
        rf.train(config, out, overrides={"objective.name": "lcorn"})
    with pytest.raises(rf.ConfigError, match="expected a list of strings or a dictionary"):
        rf.train(config, out, overrides="training.seed=1")
    with pytest.raises(rf.ConfigError, match="expected the path of a YAML file, a dictionary or a model"):
        rf.train(3, out)  # type: ignore[arg-type]
    with pytest.raises(rf.ConfigError, match=r"missing.yaml does not exist"):
        rf.compare(tmp_path / "missing.yaml", out)
    with pytest.raises(ValueError, match="force: found with resume"):
        rf.train(config, out, force=True, resume=True)
    with pytest.raises(ValueError, match="engine: found 'spark', expected local or ray"):
        rf.compare(config | {"methods": {"a": {}}}, out, engine="spark")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not the directory of a run"):
        rf.evaluate(tmp_path)
    with pytest.raises(ValueError, match="layout: found 'leter', did you mean 'letor'"):
        rf.prepare("x", out, layout="leter")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="options: found 'fit_day', did you mean 'fit_days'"):
        rf.prepare(tmp_path, out, spec={"stages": [{"name": "a"}], "relevant": "a", "day": "d"}, fit_day=3)
    assert not out.exists()
    assert capsys.readouterr().out == ""


# --- the numbers of the commands ----------------------------------------------------------------------------------


def test_train(
    trained: rf.api.TrainedRun, config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "config.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(config))
    found, expected = as_json(trained), printed(capsys, "train", path, "--out", out)
    assert weights(trained.directory) == weights(out)
    changing = ("seconds", "run")
    assert {key: found[key] for key in found if key not in changing} == {
        key: expected[key] for key in expected if key not in changing
    }
    opened = rf.api.TrainedRun.open(out)
    assert (opened.config, opened.metric) == (trained.config, trained.metric)
    assert opened.result.best_metric == trained.result.best_metric
    epochs = trained.to_polars()
    lines = [json.loads(line) for line in (trained.directory / "metrics.jsonl").read_text().splitlines()]
    assert epochs["epoch"].to_list() == [line["epoch"] for line in lines]
    assert epochs["validation/joint_recall"].to_list() == [line["validation"]["joint_recall"] for line in lines]
    assert trained.to_pandas()["loss"].tolist() == [line["loss"] for line in lines]


def test_evaluate(trained: rf.api.TrainedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = trained.evaluate(progress=False)
    expected = printed(capsys, "evaluate", trained.directory)
    assert as_json(result) == expected
    assert result.directory == trained.directory
    assert (trained.directory / "report.html").is_file()
    for row in result.to_polars().to_dicts():
        name = row["metric"]
        assert (row["value"], row["chance"]) == (expected["metrics"][name], expected["chance"][name])
        assert [row["low"], row["high"]] == expected["intervals"][name]
        assert row["undefined"] == expected["undefined"][name]
    stages = result.to_polars("stages").to_dicts()
    for stage, figures in zip(stages, expected["funnel"], strict=True):
        assert (stage["stage"], stage["quota"]) == (figures["stage"], figures["quota"])
        for name in ("kept", "lost", "survived"):
            ends = [stage[name], stage[f"{name}_low"], stage[f"{name}_high"]]
            assert ends == [figures[name]["value"], figures[name]["low"], figures[name]["high"]]
    with pytest.raises(ValueError, match="table: found 'stage', did you mean 'stages'; allowed are metrics, stages"):
        result.to_polars("stage")
    other = rf.evaluate(trained, overrides={"stages.0.quota": 7}, progress=False)
    assert other.directory is None
    assert as_json(other) == printed(capsys, "evaluate", trained.directory, "stages.0.quota=7")
    kept = rf.evaluate(str(trained.directory), overrides=["stages.0.quota=7"], out=tmp_path / "seven", progress=False)
    assert kept == other
    assert kept.directory == tmp_path / "seven"
    assert json.loads((tmp_path / "seven" / "evaluation.json").read_text()) == as_json(kept)


def test_diagnose_and_plan(trained: rf.api.TrainedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis = trained.diagnose(progress=False)
    assert as_json(diagnosis) == printed(capsys, "evaluate", trained.directory, "--diagnose")["diagnosis"]
    assert diagnosis.to_polars()["text"].to_list() == [one.text for one in diagnosis.findings]
    costs = {"retrieval": "1us", "ranking": "0.1ms+5us"}
    plan = trained.plan(costs=costs, budget="0.15ms", grid={"retrieval": [4, 7]}, out=tmp_path / "plan", progress=False)
    words = ["--cost", "retrieval=1us,ranking=0.1ms+5us", "--budget", "0.15ms", "--grid", "retrieval=4,7"]
    before = (trained.directory / "plan.json").exists()
    assert as_json(plan) == printed(capsys, "plan", trained.directory, *words, "--out", tmp_path / "other")
    assert json.loads((tmp_path / "plan" / "plan.json").read_text()) == as_json(plan)
    assert (trained.directory / "plan.json").exists() == before
    chosen = plan.to_polars().filter("chosen").to_dicts()
    assert [[row["retrieval"], row["ranking"]] for row in chosen] == [plan.chosen.point.quotas]
    assert plan.to_polars("points")["joint_recall"].to_list() == [point.value for point in plan.points]
    with pytest.raises(ValueError, match="recall: found with budget"):
        trained.plan(budget=1, recall=0.5)


def test_compare(config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = config | {"methods": {"a": {}, "b": {"optimizer": {"lr": 0.1}}}}
    out, path = tmp_path / "out", tmp_path / "comparison.yaml"
    path.write_text(yaml.safe_dump(comparison))
    seen: list[rf.api.Progress] = []
    result = rf.compare(comparison, out, against="b", progress=seen.append)
    assert [(one.done, one.total) for one in seen] == [(0, None), (1, 2), (2, 2)]
    figures = tmp_path / "figures"
    assert as_json(result) == printed(capsys, "compare", path, "--out", out, "--against", "b", "--figures", figures)
    assert any(figures.glob("*.svg"))
    assert {"comparison.json", "comparison.csv", "report.html"} <= {file.name for file in out.iterdir()}
    for row in result.to_polars().to_dicts():
        method = next(one for one in as_json(result)["methods"] if one["name"] == row["method"])
        summary = method["metrics"][row["metric"]]
        assert all(row[name] == summary[name] for name in ("mean", "std", "chance", "low", "high", "queries"))
    assert [out / directory for directory in result.to_polars("runs")["directory"]] == [
        out / run.directory for method in result.methods for run in method.runs or ()
    ]


def test_tune(config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = config | {"search": {"optimizer.lr": [0.01, 0.1]}, "trials": 2}
    path, out = tmp_path / "search.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(search))
    result = rf.tune(search, out, progress=False)
    assert as_json(result) == printed(capsys, "tune", path, "--out", out)  # continued: no trial is left
    trials = result.to_polars()
    assert trials["optimizer.lr"].to_list() == [trial.settings["optimizer.lr"] for trial in result.trials]
    assert trials["value"].to_list() == [trial.value for trial in result.trials]
    assert result.directory == out
    assert (out / "search.svg").is_file()


def test_stream(config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = config | {"data": {"path": config["data"]["path"]}, "training": {"batch": 32}}
    path, out = tmp_path / "stream.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(stream))
    result = rf.stream(stream, out, progress=False)
    figures = tmp_path / "figures"
    assert as_json(result) == printed(capsys, "stream", path, "--out", out, "--resume", "--figures", figures)
    assert any(figures.glob("*.svg"))
    assert set(result.to_polars("days")["day"]) == {day.day for day in result.days}


def test_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra serve")
    pytest.importorskip("faiss", reason="needs the extra serve")
    bundle = rf.export(platform_run(), tmp_path / "bundle", stage="retrieval", progress=False)
    found, expected = as_json(bundle), json.loads((platform_bundle() / "manifest.json").read_text())  # by the command
    assert (found["items"], found["display"]) == (expected["items"], expected["display"])
    assert found["stages"] == expected["stages"][:1]
    assert (found["bundle"], found["notes"]) == (str(tmp_path / "bundle"), bundle.notes)
    assert bundle.load().names == ["retrieval"]
    (stage,), figures = bundle.to_polars().to_dicts(), expected["measured"]["stages"][0]
    assert (stage["quota"], stage["kept"], stage["lost"]) == (25, figures["kept"]["value"], figures["lost"]["value"])


def test_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = rf.simulate(tmp_path / "log", days=2, requests_per_day=5, seed=1, progress=False)
    words = ("--days", "2", "--requests-per-day", "5", "--seed", "1")
    expected = printed(capsys, "simulate", tmp_path / "other", *words)
    assert {**as_json(result), "seconds": 0, "out": ""} == {**expected, "seconds": 0, "out": ""}
    assert result.to_polars()["logged"].to_list() == [counts["logged"] for counts in expected["stages"].values()]
    assert list(result.open().days) == ["2024-01-13", "2024-01-14"]
    grown = rf.simulate(tmp_path / "log", days=3, requests_per_day=5, seed=1, append=True, progress=False)
    assert len(grown.open().days) == 3
    with pytest.raises(ValueError, match="append: cannot be combined with force"):
        rf.simulate(tmp_path / "log", append=True, force=True)


ROWS = "request_id,item_id,day,ranked,shown,age\n1,1,d1,1,1,3\n1,2,d1,1,0,4\n2,1,d2,1,1,5\n2,3,d2,1,0,6\n"
SPEC: dict[str, Any] = {
    "stages": [{"name": "ranked", "flag": "ranked"}, {"name": "shown", "flag": "shown"}],
    "relevant": "shown",
    "day": "day",
    "features": {"item": {"age": {"kind": "dense"}}},
}


def test_prepare_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text(ROWS)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    result = rf.prepare(tmp_path / "log.csv", tmp_path / "log", spec=SPEC, fit_days=1, progress=False)
    words = ("--spec", tmp_path / "spec.yaml", "--fit-days", "1", "--out", tmp_path / "other")
    expected = printed(capsys, "prepare", "rows", tmp_path / "log.csv", *words)
    assert as_json(result)["about"]["counts"] == expected["about"]["counts"]
    assert (tmp_path / "log/days/d1/impressions.arrow").read_bytes() == (
        tmp_path / "other/days/d1/impressions.arrow"
    ).read_bytes()
    assert result.to_polars()["logged"].sum() == 4
    assert list(result.open().days) == ["d1", "d2"]  # type: ignore[union-attr]
    (tmp_path / "bad.csv").write_text(ROWS + "2,4,d2,1,0,many\n")
    check = rf.prepare(tmp_path / "bad.csv", spec=SPEC, check=True, progress=False)
    assert check.errors
    assert check.to_polars()["count"].to_list() == [problem.count for problem in check.problems]
    with pytest.raises(ValueError, match="spec: missing"):
        rf.prepare(tmp_path / "log.csv", tmp_path / "new")
    with pytest.raises(ValueError, match="source: missing, and the spec names no source"):
        rf.prepare(out=tmp_path / "new", spec=SPEC)
    assert not (tmp_path / "new").exists()


def test_prepare_letor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "S1.txt"
    file.write_text(planted_text(3, 0))
    result = rf.prepare({"S1": file}, tmp_path / "lists", layout="letor", log1p=True, progress=False)
    expected = printed(capsys, "prepare", "letor", f"S1={file}", "--log1p", "--out", tmp_path / "other")
    assert result.manifest["splits"] == expected["splits"]
    assert result.to_polars()["lists"].to_list() == [3]
    assert list(result.open()) == ["S1"]  # type: ignore[arg-type]
    file.write_text(planted_text(3, 0) + "x qid:1 1:2\n")
    check = rf.prepare({"S1": file}, layout="letor", check=True, progress=False)
    capsys.readouterr()
    assert command("prepare", "letor", f"S1={file}", "--check", "--json") == 1
    assert as_json(check) == json.loads(capsys.readouterr().out)


def test_reproduce(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = rf.reproduce("lcron-table5", tmp_path / "out", progress=False)
    assert as_json(result) == printed(capsys, "reproduce", "lcron-table5", "--out", tmp_path / "other")
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == as_json(result)
    (sheet,) = result.report.sheets
    assert result.to_polars(sheet.title).rows() == [tuple(row) for row in sheet.rows if row]
    with pytest.raises(ValueError, match="unknown reproduction 'lcron-table55'; did you mean"):
        rf.reproduce("lcron-table55")


def test_report(trained: rf.api.TrainedRun, tmp_path: Path) -> None:
    trained.evaluate(progress=False)  # figures are those of an evaluation
    page = rf.report(trained, tmp_path / "page.html", figures=tmp_path / "figures")
    assert page.read_text().startswith("<!doctype html>")
    assert any((tmp_path / "figures").glob("*.svg"))
    with pytest.raises(ValueError, match="is neither a run nor a comparison nor a stream"):
        rf.report(tmp_path)


# --- data frames and notebooks ------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """The elements and texts of an HTML text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.images: list[str] = []
        self.text: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attributes: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.images += [value or "" for name, value in attributes if (tag, name) == ("img", "src")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("result", [compared(methods=[SCRIPT, "b & c"]), streamed(days=3, methods=[SCRIPT, "b & c"])])
def test_html_shows_names_as_text(result: Any) -> None:
    page = Elements(shown_in(result, Path("<i>out"))._repr_html_())
    assert set(page.tags) == {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "img"}
    assert SCRIPT in page.text
    assert any("<i>out" in text for text in page.text)
    (image,) = page.images
    drawn = ET.fromstring(base64.b64decode(image.removeprefix("data:image/svg+xml;base64,")))
    assert not [one for one in drawn.iter() if "script" in one.tag]
    assert any(SCRIPT in (one.text or "") for one in drawn.iter())


def test_long_tables_are_cut_in_notebooks() -> None:
    result = streamed(days=40)
    rows = len(result.to_polars())
    shown = Elements(result._repr_html_())
    assert shown.tags.count("tr") == 1 + 20
    assert f"and {rows - 20} more rows" in shown.text


def test_undefined_values_are_null_and_mixed_values_are_text() -> None:
    result = rf.api.ExportedBundle({"stages": [], "measured": None}, [], Path("bundle"))
    assert result.to_polars().is_empty()
    assert "no rows" in result._repr_html_()
    search = {"metric": "m", "higher_is_better": True, "search": {"loss": [], "lr": []}, "best": None}
    trial = {"state": "complete", "best_epoch": 1, "seconds": 1.0, "error": None, "directory": "d"}
    settings = [{"loss": {"name": "softmax_loss"}, "lr": 1}, {"loss": "x", "lr": 0.5}]
    from rankfall.studies.results import SearchResult

    values = [None, 2.0]
    trials = [{"trial": n, "value": values[n], "settings": one, **trial} for n, one in enumerate(settings)]
    frame = SearchResult.from_json({**search, "trials": trials}).to_polars()
    assert frame["loss"].to_list() == ['{"name": "softmax_loss"}', "x"]
    assert frame["lr"].to_list() == [1.0, 0.5]
    assert frame["value"].to_list() == [None, 2.0]
    assert frame.schema["lr"] == pl.Float64


def test_texts_of_results_are_short_and_name_the_directory() -> None:
    text = repr(shown_in(compared(), Path("mq2007")))
    assert text.startswith("ComparisonResult in mq2007\n")
    assert max(map(len, text.splitlines())) <= 120


def test_pandas_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="to_pandas needs pandas, which is not installed: pip install pandas"):
        compared().to_pandas()


# --- interruption, progress and notices ---------------------------------------------------------------------------


@pytest.fixture
def sigint() -> Iterator[Any]:
    """The usual handler of Ctrl-C; a shell that starts tests in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_leaves_a_run_that_continues_with_the_same_weights(
    trained: rf.api.TrainedRun, config: dict[str, Any], tmp_path: Path, sigint: Any
) -> None:
    out, before = tmp_path / "run", sigint

    def interrupt(progress: rf.api.Progress) -> None:
        if progress.done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="stopped after batch 3 of 10 in epoch 1"):
        rf.train(config, out, progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    count = 0

    def stop() -> bool:
        nonlocal count
        count += 1
        return count == 2

    with pytest.raises(rf.Stopped, match="stopped after batch 5 of 10"):
        rf.train(config, out, resume=True, progress=False, stop=stop)
    rf.train(config, out, resume=True, progress=False)
    assert weights(out) == weights(trained.directory)


def test_progress_counts_up_to_the_total(config: dict[str, Any], tmp_path: Path) -> None:
    seen: list[rf.api.Progress] = []
    rf.train(config, tmp_path / "run", progress=seen.append)
    batches = [one for one in seen if one.total]
    assert [one.done for one in batches] == list(range(1, 11))
    assert {one.total for one in batches} == {10}
    assert re.match(r"loss \d+\.\d{4} = e2e ", batches[-1].status)


@pytest.mark.filterwarnings("default::rankfall.RankfallWarning")
def test_notices_are_warnings_at_the_line_of_the_caller(
    trained: rf.api.TrainedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(trained.directory, tmp_path / "run")
    (copy / "result.json").unlink()
    with pytest.warns(rf.RankfallWarning, match="did not finish; its best weights so far are evaluated") as caught:
        rf.evaluate(copy, progress=False)
    assert {warning.filename for warning in caught} == {__file__}
    notices: list[str] = []
    rf.evaluate(copy, progress=True, on_notice=notices.append)
    assert "did not finish" in notices[0]
    assert capsys.readouterr().out == ""
