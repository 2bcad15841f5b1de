"""The command line: its output on both streams, and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
import typer
from rich.console import Console

import rankfall
from rankfall import ops
from rankfall.cli import PATH, app
from rankfall.commands.terminal import print_error, print_message, print_result
from rankfall.reporting.blocks import Table
from rankfall.reporting.terminal import show
from support.command_line import run

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
VERBS = tuple(COMMANDS)
GROUPS = {verb: command for verb, command in COMMANDS.items() if hasattr(command, "commands")}


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from rankfall.cli import main\n"
        "try: main(['--help'])\n"
        "finally: assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"simulate", "train", "tune", "report"} < set(VERBS)
    assert all(verb in done.stdout for verb in VERBS)


def test_module_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "rankfall", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"rankfall {rankfall.__version__}\n")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--help") == 0
    text = capsys.readouterr().out
    assert "Examples" in text
    assert f"rankfall {verb}" in text.split("Examples")[1]


SUBVERBS = [(verb, sub) for verb, group in GROUPS.items() for sub in group.commands]


@pytest.mark.parametrize(("verb", "subverb"), SUBVERBS)
def test_every_subverb_has_help_with_examples(verb: str, subverb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, subverb, "--help") == 0
    assert f"rankfall {verb} {subverb}" in capsys.readouterr().out.split("Examples")[1]


def test_help_shows_the_main_path_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    places = [text.find(f"rankfall {command}") for verb, (command, _) in PATH.items() if verb in VERBS]
    assert places[0] > -1
    assert places == sorted(places)


@pytest.mark.parametrize("verb", [verb for verb in PATH if verb in VERBS])
def test_the_commands_of_the_main_path_are_accepted(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their words are those of the help page of the verb: none is unknown, and none is missing."""
    monkeypatch.chdir(tmp_path)
    command, _ = PATH[verb]
    assert run(*command.split()) in (1, 2)  # the files do not exist
    error = capsys.readouterr().err
    assert "No such option" not in error
    assert "Missing" not in error
    assert "unexpected extra argument" not in error


@pytest.mark.parametrize(
    "arguments",
    [
        ("cook",),
        ("bench",),
        ("bench", "cascades"),
        ("bench", "ops", "--sizes", "ten"),
        ("bench", "ops", "--sizes", "5"),
        ("methods", "--kind", "objektive"),
        ("demo", "--seed", "-1"),
        ("demo", "--colour", "red"),
        ("demo", "--days", "2"),
        ("demo", "--loop", "--days", "0"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: rankfall" in err
    assert "Traceback" not in err


def test_a_failure_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run("demo", "--out", str(tmp_path / "file" / "directory"), "--quick") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(kind: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rankfall.commands.methods.find_methods", interrupt)
    assert run("methods") == 130
    assert capsys.readouterr() == ("", "")


def test_messages_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("feedback.a:b: found nothing")  # rich would make a picture of the letter between colons
    print_message("data.a:b: [bold]x[/]")
    print_result("a:b: 1")
    assert capsys.readouterr() == ("a:b: 1\n", "error: feedback.a:b: found nothing\ndata.a:b: [bold]x[/]\n")


# --- demo ---------------------------------------------------------------------------------------------------


DEMO_SEED = "3"
of_the_demo = pytest.mark.xdist_group("demo")  # one process runs it once for all


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output directory of a quick demo, with what it printed in printed.txt."""
    out: Path = tmp_path_factory.mktemp("demo") / "new"
    with redirect_stdout(StringIO()) as printed:
        assert run("demo", "--quick", "--seed", DEMO_SEED, "--out", str(out)) == 0
    (out / "printed.txt").write_text(printed.getvalue())
    return out


@of_the_demo
def test_demo_writes_the_files_that_scripts_rely_on(demonstration: Path) -> None:
    names = {path.name for path in demonstration.iterdir()}
    assert {"log", "runs", "config.yaml", "comparison.json", "comparison.yaml", "report.html"} <= names
    written = json.loads((demonstration / "comparison.json").read_text())
    assert [method["name"] for method in written["methods"]] == ["bce", "lcron"]
    for method in written["methods"]:
        figures = method["metrics"]
        assert set(figures["joint_recall"]) == {"mean", "std", "chance", "values", "low", "high", "queries"}
        assert 0.01 < figures["joint_recall"]["chance"] < 0.05  # the last stage keeps 50 of all items
        lost = [figures[f"{stage}/lost"]["mean"] for stage in ("retrieval", "preranking", "ranking")]
        assert figures["joint_recall"]["mean"] + sum(lost) == pytest.approx(1)
    assert len(written["tests"]) == 2 * len(written["metrics"])


@of_the_demo
def test_the_report_is_self_contained(demonstration: Path) -> None:
    page = (demonstration / "report.html").read_text()
    written = json.loads((demonstration / "comparison.json").read_text())
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="', page)  # no external resources
    for method in written["methods"]:
        mean = method["metrics"]["joint_recall"]["mean"]
        assert f"{mean:.3f}".removeprefix("0") in page
    assert page.count('role="img"') == 2
    assert "What to do next" in page
    ElementTree.fromstring(
        page.removeprefix("<!doctype html>\n")
        .replace('<meta charset="utf-8">', "")
        .replace('<meta name="viewport" content="width=device-width, initial-scale=1">', "")
        .replace(" class=best", "")
    )  # every tag is closed


def test_demo_does_not_replace_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    assert run("demo", "--quick", "--force", "--out", str(tmp_path)) == 1
    assert f"out: {tmp_path} contains config.yaml but no log" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_loop_does_not_replace_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], force: list[str]
) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    assert run("demo", "--loop", "--quick", "--out", str(tmp_path), *force) == 1
    assert f"out: {tmp_path} is not empty and has no loop" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@of_the_demo
def test_demo_prints_a_table(demonstration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--quick", "--seed", DEMO_SEED, "--json") == 0
    printed, err = capsys.readouterr()
    assert "training bce and lcron" in err
    out = (demonstration / "printed.txt").read_text()
    for method in json.loads(printed)["methods"]:  # the same seed gives the same figures
        assert f"{method['metrics']['joint_recall']['mean']:.3f}".removeprefix("0") in out
    assert "[bold]" not in out


@of_the_demo
def test_the_output_of_the_demo_can_be_trained_on(
    demonstration: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = demonstration / "config.yaml"
    assert run("train", str(config), "objective.name=bce", "--out", str(tmp_path / "run")) == 0
    capsys.readouterr()
    assert run("evaluate", str(tmp_path / "run"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["joint_recall"] > 0


# --- bench --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["ops", "losses"])
def test_bench_quick_in_json(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", what, "--quick", "--sizes", "20", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["what"] == what
    assert {row["n"] for row in report["rows"]} == {20}
    assert all(row["cpu_ms"] > 0 and row["ratios"]["torch.sigmoid"] > 0 for row in report["rows"])


@pytest.mark.slow
def test_bench_quick_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "ops", "--quick", "--sizes", "20,24") == 0
    out, _ = capsys.readouterr()
    assert all(word in out for word in ("torch.sort", "dftopk", "/sort"))
    assert "[bold]" not in out


# --- the package -------------------------------------------------------------------------------------------


def test_submodules_are_imported_lazily_but_listed() -> None:
    assert {"ops", "losses", "metrics"} <= set(dir(rankfall))
    assert rankfall.ops is ops
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rankfall.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_wide_table_is_folded(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [f"column {i}".ljust(20, "x") for i in range(7)]
    rows = [[row, *(f"{row}{i}" for i in range(7))] for row in ("a", "b")]
    table = show([Table(["name", *columns], rows, title="title", caption="caption", framed=False)])
    for width, parts in ((80, 3), (100, 2), (300, 1)):
        Console(width=width).print(table)
        lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
        assert max(map(len, lines)) <= width
        assert (lines[0].strip(), lines[-1].strip()) == ("title", "caption")
        words = " ".join(lines).replace("│", " ").replace("┃", " ").split()
        assert [word for word in words if word in ("a", "b")] == ["a", "b"] * parts
        assert [word for word in words if word.startswith("a") and word != "a"] == [f"a{i}" for i in range(7)]
        text = "\n".join(lines)
        assert all(text.count(column) == 1 for column in columns)
    Console(width=20).print(table)  # narrower than a column
    assert "a6" in capsys.readouterr().out
