"""No configuration and no command line ends in a traceback, and what fails leaves nothing behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from fuzz.command_lines import (
    as_yaml,
    configurations,
    dotted_keys,
    read_command_line,
    read_config,
    read_overrides,
    read_spec,
)
from fuzz.damage import HOSTILE, byte_changes, damaged, structure_changes
from rankfall.cli import app
from support.fuzzing import cases, one_case

if TYPE_CHECKING:
    from pathlib import Path

KINDS = sorted(set(configurations()) - {"spec"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands")


# --- configurations -------------------------------------------------------------------------------------------------


@cases(40)
@given(kind=st.sampled_from(KINDS), changes=structure_changes())
def test_configurations_with_wrong_values_are_refused(folder: Path, kind: str, changes: list[Any]) -> None:
    content = as_yaml(kind, changes)
    with one_case("config", content):
        read_config(content, folder)


@cases(25)
@given(changes=structure_changes())
def test_specs_with_wrong_values_are_refused(folder: Path, changes: list[Any]) -> None:
    content = as_yaml("spec", changes)
    with one_case("spec", content):
        read_spec(content, folder)


_WORDS = st.sampled_from(
    ["data", "loss", "stages", "methods", "search", "<<", "*a", "&a b", "!!python/object:os.system", "!x", "? ", "null",
     "1", "1e5", "0x1f", "12:30:45", "2024-01-13", "'", '"', "|", ">", "---", "...", "%YAML 9.9", "{", "}", "[", "]",
     ": ", ",", "- ", "\n", "\n  ", "\t", "#", "\x00", "\ufeff", "\u2028", "é"]
)  # fmt: skip


@cases(30)
@given(words=st.lists(_WORDS | st.text(max_size=3), max_size=12), kind=st.sampled_from(KINDS), changes=byte_changes())
def test_any_text_is_a_configuration_or_refused(folder: Path, words: list[str], kind: str, changes: list[Any]) -> None:
    for content in ("".join(words).encode("utf-8", "surrogatepass"), damaged(as_yaml(kind, []), changes)):
        with one_case("config", content):
            read_config(content, folder)


@st.composite
def _overrides(draw: st.DrawFn) -> list[str]:
    kind = draw(st.sampled_from(KINDS))
    keys = st.sampled_from(dotted_keys(configurations()[kind])) | st.text("abz.0129=-", max_size=8)
    values = st.sampled_from([json.dumps(value) for value in HOSTILE]) | st.text(max_size=6)
    return [kind, *(f"{draw(keys)}={draw(values)}" for _ in range(draw(st.integers(1, 3))))]


@cases(25)
@given(words=_overrides())
def test_overrides_are_applied_or_refused(folder: Path, words: list[str]) -> None:
    content = json.dumps(words).encode()
    with one_case("overrides", content):
        read_overrides(content, folder)


# --- command lines --------------------------------------------------------------------------------------------------

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# These work without any input, for minutes or for ever; what they read is tested elsewhere.
_WITHOUT_INPUT = {"bench", "demo", "simulate", "reproduce"}
_FILES = [
    "empty", "empty.yaml", "empty.csv", "header.csv", "bytes.yaml", "bytes.parquet", "list.yaml", "list.json", "run",
    "letor.txt", "loop", "gone", "missing", "missing/below", "run/manifest.json/below", "/dev/null", "/proc/self/mem",
    ".", "",
]  # fmt: skip


def _leaves(commands: dict[str, Any], words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, command in commands.items():
        inside = getattr(command, "commands", None)
        found += _leaves(inside, (*words, name)) if inside else [((*words, name), command)]
    return found


LEAVES = _leaves({name: command for name, command in COMMANDS.items() if name not in _WITHOUT_INPUT})


@st.composite
def _command_lines(draw: st.DrawFn) -> list[str]:
    words, command = draw(st.sampled_from(LEAVES))
    numbers = st.sampled_from(["0", "1", "-1", str(10**30), "1e308", "nan", "x", ""])
    values = st.sampled_from(_FILES) | numbers | st.text(max_size=5)
    line = [*words]
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        if not is_option:
            line += [draw(values) for _ in range(draw(st.integers(0, 2)) if parameter.nargs == -1 else 1)]
        elif "--help" not in parameter.opts and draw(st.integers(0, 4)) == 0:
            line.append(draw(st.sampled_from(parameter.opts)))
            line += [] if parameter.is_flag else [draw(values)]
        elif parameter.opts[0] == "--out":
            line += ["--out", draw(st.sampled_from(["made", "empty", "run", "loop", "gone", "list.yaml"]))]
    return line


@cases(60)
@given(words=_command_lines())
def test_no_command_line_ends_in_a_traceback(folder: Path, words: list[str]) -> None:
    content = json.dumps(words).encode()
    with one_case("command_line", content):
        read_command_line(content, folder)
