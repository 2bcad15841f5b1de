"""Command lines, called in this process, and configurations as files that they read."""

from __future__ import annotations

import contextlib
import io
import json
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import typer.main
import yaml

from fuzz.damage import Change, changed
from rankfall.cli import main
from support.logs import SPEC
from support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


_COMMANDS = cache(typer.main.get_command)  # takes longer than most of the cases


class Outcome(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    output: str
    errors: str


def call(folder: Path, *words: str) -> Outcome:
    """Run a command in a directory. An exception, a traceback or a message about a bug in rankfall is a finding."""
    output, errors = io.StringIO(), io.StringIO()
    code: Any = 0
    made_once = mock.patch.object(typer.main, "get_command", _COMMANDS)
    with contextlib.chdir(folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), made_once:
        try:
            main(list(words))
        except SystemExit as end:
            code = end.code
    outcome = Outcome(int(code or 0), output.getvalue(), errors.getvalue())
    assert outcome.code in (0, 1, 2)
    assert "Traceback" not in outcome.errors + outcome.output
    assert "bug in rankfall" not in outcome.errors
    assert outcome.code == 0 or outcome.errors, "a failure without a message"
    return outcome


def read_command_line(content: bytes, folder: Path) -> None:
    """Run a command line, a list of words in JSON, among files that are not what the options expect."""
    words: list[str] = json.loads(content)
    place = folder / "files"
    if not place.is_dir():
        make_files(place)
    before = names_in(place)
    outcome = call(place, *words)
    if outcome.code:
        assert names_in(place) == before, "a command that failed left files behind"


def make_files(place: Path) -> None:
    """Write files and directories of which no command can use one."""
    place.mkdir()
    (place / "empty").mkdir()
    (place / "empty.yaml").touch()
    (place / "empty.csv").touch()
    (place / "header.csv").write_text("request,item,time\n")
    (place / "bytes.yaml").write_bytes(bytes(range(256)))
    (place / "bytes.parquet").write_bytes(bytes(range(256)))
    (place / "list.yaml").write_text("- 1\n- 2\n")
    (place / "list.json").write_text("[1, 2]\n")
    (place / "letor.txt").write_text("x qid:1 1:2\n")
    (place / "run").mkdir()
    (place / "run" / "manifest.json").write_text('{"format": 3, "version": []}')
    (place / "run" / "config.yaml").write_text("data: {path: [}\n")
    (place / "loop").symlink_to("loop")
    (place / "gone").symlink_to("nowhere")


def names_in(place: Path) -> set[str]:
    """Return the names of all files."""
    return {str(path.relative_to(place)) for path in place.rglob("*")}


# --- configurations -------------------------------------------------------------------------------------------------


@cache
def configurations() -> dict[str, dict[str, Any]]:
    """Return a valid configuration of each kind."""
    kinds = {
        "comparison": "mq2007_funnel",
        "ranker comparison": "mq2007",
        "stream": "stream",
        "cascade": "cascade",
    }
    found = {kind: yaml.safe_load((ROOT / "experiments" / f"{name}.yaml").read_text()) for kind, name in kinds.items()}
    for name in ("ranker comparison", "comparison"):  # fewer runs, which are all checked for each case
        for key in ("methods", "folds"):
            found[name][key] = dict(list(found[name][key].items())[:2])
    found["cascade"]["optimizer"]["lr"] = 0.01
    found["ranker"] = {
        "data": {"path": "data", "train": ["S1", "S2"], "valid": ["S3"], "test": ["S4"]},
        "model": {"kind": "mlp", "hidden": [16, 8], "dropout": 0.1},
        "loss": {"name": "lambda_loss", "k": 5},
        "optimizer": {"name": "adam", "lr": 0.01},
        "training": {"epochs": 2, "batch": 16, "metric": "ndcg@10"},
    }
    found["search"] = {
        **found["ranker"],
        "search": {"optimizer.lr": {"low": 1e-4, "high": 0.1, "log": True}, "loss.k": [1, 5]},
        "trials": 3,
    }
    found["spec"] = SPEC
    return found


def read_config(content: bytes, folder: Path) -> None:
    """Check a configuration file. One that is accepted is printed with its defaults, which mean the same."""
    path = folder / "config.yaml"
    path.write_bytes(content)
    first = call(folder, "config", "show", str(path))
    if first.code == 0:
        path.write_text(first.output)
        again = call(folder, "config", "show", str(path))
        assert (again.code, again.output) == (0, first.output), "the configuration with its defaults differs"
    elif not first.output:  # otherwise it is valid, but its data contradict it
        assert str(path) in first.errors, f"the error does not name the file: {first.errors}"


def read_spec(content: bytes, folder: Path) -> None:
    """Check the spec of a log, by a command that reads the spec first."""
    path, rows = folder / "spec.yaml", folder / "rows.csv"
    path.write_bytes(content)
    if not rows.exists():
        rows.write_text("request,item,user,time,stage,rank\n1,a,2,1705075200000,shown,1\n")
    outcome = call(folder, "prepare", "rows", str(rows), "--spec", str(path), "--check")
    assert outcome.code == 0 or outcome.output or str(path) in outcome.errors or str(rows) in outcome.errors


def read_overrides(content: bytes, folder: Path) -> None:
    """Apply overrides, the rest of a list in JSON, to a configuration of the kind that the list begins with."""
    kind, *overrides = json.loads(content)
    path = folder / "plain.yaml"
    path.write_text(yaml.safe_dump(configurations()[kind], sort_keys=False))
    outcome = call(folder, "config", "show", str(path), "--", *overrides)
    assert outcome.code == 0 or outcome.output or "override" in outcome.errors or str(path) in outcome.errors


def as_yaml(kind: str, changes: list[Change]) -> bytes:
    """Return a configuration with damages, as a file."""
    content = changed(configurations()[kind], changes)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def dotted_keys(content: Any, key: str = "") -> list[str]:
    """Return the keys of all values of a configuration, as overrides name them."""
    if not isinstance(content, dict | list):
        return [key]
    inside = content.items() if isinstance(content, dict) else enumerate(content)
    found = [one for name, value in inside for one in dotted_keys(value, f"{key}.{name}" if key else str(name))]
    return [key, *found] if key else found


COMMANDS = {
    "command_line": read_command_line,
    "config": read_config,
    "spec": read_spec,
    "overrides": read_overrides,
}
