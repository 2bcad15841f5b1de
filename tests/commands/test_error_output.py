"""Errors and warnings on standard error: no traceback, and a bug is told from a mistake."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import threading
import warnings
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

import rankfall
from rankfall import losses
from rankfall._errors import BugError, RankfallError, is_expected, one_line
from rankfall.commands import methods as methods_module
from rankfall.storage import files as _files
from support.command_line import run

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Run 'rankfall methods' with a function in place of its work, and return the exit code."""

    def call(work: Callable[[], object], *words: str) -> int:
        monkeypatch.setattr("rankfall.commands.methods.find_methods", lambda kind: work())
        return run(*words, "methods")

    return call


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


def inside(expression: str) -> Callable[[], object]:
    """Return a function that evaluates an expression as a module of rankfall does."""
    code = compile(expression, str(methods_module.__file__), "eval")
    return lambda: eval(code, {"__name__": methods_module.__name__, "json": json, "np": np, "pa": pa})


def deep() -> object:
    return deep()


def while_handling() -> NoReturn:
    try:
        raise ValueError("the first")
    except ValueError:
        raise KeyError("the second")  # noqa: B904


BUGS: dict[str, Callable[[], object]] = {
    "KeyError: 'x'": raising(KeyError("x")),
    "RuntimeError": raising(RuntimeError()),
    "AssertionError: no": raising(AssertionError("no")),
    "EOFError": raising(EOFError()),
    "StopIteration": raising(StopIteration()),
    "KeyError: 'the second'": while_handling,
    "PanicException: in Rust": raising(pl.exceptions.PanicException("in Rust")),  # not an Exception
    "RecursionError: maximum recursion depth": deep,
    "ExceptionGroup: several": raising(ExceptionGroup("several", [ValueError("one"), OSError("two")])),
    # errors with the types of messages for users that libraries raise
    "ValueError: invalid literal": inside("int('ten')"),
    "ValueError: cannot reshape": inside("np.zeros(3).reshape(2, 2)"),
    "JSONDecodeError": inside("json.loads('{')"),
    "UnicodeDecodeError": inside("b'\\xff'.decode()"),
    "UnicodeEncodeError": inside("'\\udcff'.encode()"),
    "ArrowInvalid": inside("pa.array(['a']).cast(pa.int64())"),
    "ColumnNotFoundError": lambda: pl.DataFrame({"a": [1]}).select("b"),
    "IndexError": lambda: torch.zeros(2).sum(dim=5),
}


@pytest.mark.parametrize("found", BUGS)
def test_unexpected_errors_say_that_they_are_a_bug(
    found: str, methods: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert methods(BUGS[found]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith(f"error: this is a bug in rankfall: {found}")
    assert "(rankfall.commands.methods, line" in err
    for word in (rankfall.__version__, platform.python_version(), torch.__version__, "command: rankfall methods"):
        assert word in err
    assert "issue tracker" in err


MISTAKES: dict[str, Callable[[], object]] = {
    "reduction must be": lambda: losses.softmax_loss(torch.ones(2), torch.ones(2), reduction="median"),  # type: ignore[arg-type]
    "[Errno 2] No such file or directory: 'nothing'": lambda: Path("nothing").read_text(),
    "[Errno 28] No space left on device": lambda: Path("/dev/full").write_text("x"),
    "/ is a directory, expected a file": lambda: _files.write_file(Path("/"), ""),
    "memory ran out: MemoryError": raising(MemoryError()),
    "memory ran out: MemoryError: Unable to allocate": lambda: np.zeros(2**59),
    "memory ran out: RuntimeError": lambda: torch.empty(2**58),
}


@pytest.mark.parametrize("found", MISTAKES)
def test_other_errors_are_one_line(found: str, methods: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert methods(MISTAKES[found]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {found}")
    assert err.count("\n") == 1
    assert "bug" not in err


def test_errors_of_users_code_are_no_bug_in_rankfall() -> None:
    with pytest.raises(ValueError, match="own") as caught:
        raising(ValueError("own"))()
    assert is_expected(caught.value)


@pytest.mark.parametrize("asked", [("--debug",), ()])
def test_debug_shows_the_traceback(
    asked: tuple[str, ...],
    methods: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not asked:
        monkeypatch.setenv("RANKFALL_DEBUG", "1")
    assert methods(raising(KeyError("x")), *asked) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last)")
    assert "error: this is a bug in rankfall: KeyError: 'x'" in err
    assert ("RANKFALL_DEBUG" in os.environ) == (not asked)  # a second command in the same process is not affected


def test_the_traceback_of_another_process_is_shown(
    methods: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    error = BugError("in a training process: KeyError: 1", "Traceback of that process")
    assert methods(raising(error)) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert methods(raising(error), "--debug") == 1
    assert "Traceback of that process" in capsys.readouterr().err


def test_exit_codes_of_interrupts_and_exits(methods: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert methods(raising(KeyboardInterrupt())) == 130
    assert methods(raising(SystemExit(7))) == 7
    assert capsys.readouterr() == ("", "")


def test_errors_of_threads_are_one_line(methods: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    def start() -> dict[str, Any]:
        thread = threading.Thread(target=raising(KeyError("x")), name="loader")
        thread.start()
        thread.join()
        return {}

    methods(start)
    err = capsys.readouterr().err
    assert "error: in the thread loader: KeyError: 'x'" in err
    assert "Traceback" not in err


class _Fragile:
    def __del__(self) -> None:
        raise KeyError("x")


def test_errors_of_finalizers_are_one_line(methods: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    def drop() -> dict[str, Any]:
        _Fragile()
        return {}

    methods(drop)
    err = capsys.readouterr().err
    assert "_Fragile" in err
    assert "KeyError: 'x'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("debug", [False, True])
def test_warnings_of_libraries_are_for_developers(
    debug: bool, methods: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def warn() -> dict[str, Any]:
        warnings.warn_explicit("of torch", FutureWarning, torch.__file__, 1)
        warnings.warn("of my loss", stacklevel=1)
        return {}

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        methods(warn, *(["--debug"] if debug else []))
    err = capsys.readouterr().err
    assert ("of torch" in err) == debug
    assert "of my loss" in err
    assert debug or err.startswith("warning: of my loss")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("", "argument 2 is empty"),
        ("a\0b", "expected text without NUL characters"),
        ("caf\udce9.yaml", "'caf\\udce9.yaml', which is not utf-8 text"),
    ],
)
def test_arguments_that_are_no_text(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", word) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: argument 2")
    assert message in err


def test_messages_cannot_control_the_terminal_and_are_cut(
    methods: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    methods(raising(RankfallError("log\x1b]0;title\x07: " + "x" * 10**6)))
    err = capsys.readouterr().err
    assert err.startswith("error: log\\x1b]0;title\\x07: xxx")
    assert len(err) < 30_000


def test_letters_that_the_encoding_of_standard_output_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert run("methods", "ndcg") == 0
    output.seek(0)
    assert "J\\xe4rvelin" in output.read()
    assert capsys.readouterr().err == ""


def test_a_reader_of_the_output_that_ends_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert run("methods") == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", ["methods", "methods --json", "--help"])
def test_closed_standard_output_is_an_error_with_a_message(words: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m rankfall {words} "
    found = subprocess.run(["sh", "-c", command + ">&-"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == "error: [Errno 9] standard output is closed, the result cannot be printed\n"


def test_closed_standard_error_drops_messages(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m rankfall data {tmp_path / 'nothing'} 2>&- <&-"
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (1, "", "")


def test_a_broken_pipe_of_another_process_is_an_error(
    methods: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert methods(raising(BrokenPipeError(32, "Broken pipe"))) == 1
    assert capsys.readouterr().err == "error: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_environment_of_torchrun_is_checked(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(name, "two")
    assert run("train", tmp_path / "config.yaml", "--out", tmp_path / "run") == 1
    assert f"error: {name}: found 'two' in the environment, expected a whole number" in capsys.readouterr().err


def test_a_failure_of_one_run_says_that_it_is_a_bug() -> None:
    with pytest.raises(ValueError, match="ten") as caught:
        inside("int('ten')")()
    assert "this is a bug in rankfall" in one_line(caught.value)
