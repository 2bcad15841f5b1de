"""Wrong values for every option and argument of every verb: a message and an exit code, nothing left behind.

The verbs get inputs that do not exist, or outputs that they may not replace, so that a value which is allowed ends in
that error. The list of options is that of the command line itself, so that a new option is tested as well.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import typer

from rankfall.cli import app
from support.command_line import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HUGE = "9" * 30
NUMBERS = ["-1", "0", "nan", "inf", "1e999", str(2**63), str(2**64), "9" * 5000, "abc", "1_000", "\u0661"]
TEXTS = ["a" * 300, "a" * 5000, "=", "a=b", "[", "{}", "!!python/x", "1,,2", "0..", "\x1b[31m", "--", "%s", "~"]
PATHS = ["/dev/full", "/proc/self/mem", "FILE", "FILE/x", "DIRECTORY", "DANGLING", "LOOP", "DEEP", "BYTES"]

# The work of verbs that need no input and would start it.
WORK = {"simulate": "rankfall.api.simulate", "demo": "rankfall.demo.run", "reproduce": "rankfall.api.reproduce"}
SKIPPED = {"bench", "serve"}  # they measure and wait; their options are tested with them


def commands(command: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that has no subcommands with its full name."""
    inner = getattr(command, "commands", {})
    if not inner and name[0] not in SKIPPED:
        yield name, command
    for verb, subcommand in inner.items():
        yield from commands(subcommand, (*name, verb))


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "FILE").write_text("x")
    (tmp_path / "DIRECTORY").mkdir()
    (tmp_path / "DANGLING").symlink_to("nowhere")
    (tmp_path / "LOOP").symlink_to("LOOP")
    (tmp_path / "DEEP").write_text("[" * 100_000)
    (tmp_path / "BYTES").write_bytes(bytes(range(256)))
    return tmp_path


def required(command: Any) -> list[str]:
    """Return arguments for all that a command requires: inputs that do not exist, and an output in a file."""
    words = []
    for parameter in command.params:
        if parameter.required:
            value = "FILE/out" if parameter.opts[0] in ("--out", "out") else "missing"
            words += [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]
    return words


VALUES = itertools.cycle([*NUMBERS, *TEXTS, *PATHS])


def lines(name: tuple[str, ...], command: Any) -> Iterator[list[str]]:
    """Yield command lines, each with one wrong value: a huge number, or the next of all values."""
    given = required(command)
    for number, parameter in enumerate(command.params):
        values = [HUGE, *itertools.islice(VALUES, number % 2)]
        if parameter.param_type_name == "argument":
            rest = given[1:] if parameter.required else given
            yield from ([*name, value, *rest] for value in values)
        elif not parameter.is_flag:
            yield from ([*name, *given, parameter.opts[0], value] for value in values)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_option_refuses_wrong_values(
    name: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(*arguments: object, **options: object) -> None:
        raise ValueError("the values are allowed")

    if name[0] in WORK:
        monkeypatch.setattr(WORK[name[0]], work)
    monkeypatch.chdir(place)
    before = {path.name for path in place.iterdir()}
    for words in lines(name, COMMANDS[name]):
        code = run(*words)
        err = capsys.readouterr().err
        shown = [word[:40] for word in words]
        assert code in (0, 1, 2), shown
        assert "Traceback" not in err, shown
        assert "bug in rankfall" not in err, (shown, err)
        assert code == 0 or err, shown
        assert len(err) < 25_000, shown
        left = {path.name for path in place.iterdir()} - before
        assert not left or (name == ("demo",) and left <= set(words)), shown  # demo creates its directory first
        before |= left


@pytest.mark.parametrize(
    "words", [("report", "run"), ("data", "run"), ("evaluate", "run"), ("examination", "run", "--feedback", "click")]
)
def test_json_that_is_nested_deeply_is_damaged(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("manifest.json", "comparison.json", "result.json", "evaluation.json"):
        (tmp_path / "run" / name).write_text("[" * 100_000)
    assert run(*words) == 1
    err = capsys.readouterr().err
    assert "run" in err
    assert "bug" not in err


def test_showing_a_configuration_builds_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers of 10**9 x 10**9 weights would need 4 EB."""
    (tmp_path / "ranker.yaml").write_text(
        "{data: {path: lists, train: S1, valid: S2}, loss: {name: softmax_loss},"
        " model: {kind: mlp, hidden: [1000000000, 1000000000]}}"
    )
    (tmp_path / "cascade.yaml").write_text(
        "{data: {path: log, train: a, valid: b}, relevant: 2147483647, objective: {name: bce},"
        " training: {batch: 2147483647}, stages: [{name: first, quota: 2147483647,"
        " model: {kind: two_tower, dim: 1000000000, hidden: [1000000000, 1000000000]}}]}"
    )
    for name in ("ranker", "cascade"):
        assert run("config", "show", tmp_path / f"{name}.yaml") == 0
        assert "1000000000" in capsys.readouterr().out
