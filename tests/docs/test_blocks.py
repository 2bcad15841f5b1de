"""Every block of Python and every shell command of the documentation runs, or the page says why not."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from docs_site.blocks import EXECUTED, Block, blocks, pages
from rankfall._config import parse_yaml
from rankfall.cli import app
from support.command_line import run
from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("docs")  # they share one training run

CONFIG = """\
data: {path: log, train: 2024-01-13..2024-01-14, valid: 2024-01-15, test: 2024-01-16}
stages:
  - {name: retrieval, quota: 30, model: {kind: two_tower}}
  - {name: ranking, quota: 20, model: {kind: din}}
objective: {name: lcron, topk: {name: lapsum_topk, tau: 1.0}}
training: {batch: 256}
"""
RANKER = """\
data: {path: prepared/mq2007, train: [S1, S2, S3], valid: S4, test: S5}
model: {kind: mlp, hidden: [8]}
loss: {name: lambda_loss, k: 5}
training: {epochs: 1, batch: 8}
"""
COMPARISON = """\
data: {path: prepared/mq2007, train: [S1, S2, S3], valid: S4, test: S5}
model: {kind: mlp, hidden: [8]}
training: {batch: 8}
methods:
  RankNet: {loss: {name: ranknet_loss}}
  LambdaLoss: {loss: {name: lambda_loss}}
seeds: [0, 1]
"""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", pages(), ids=name)


@every_page
def test_reasons_are_sentences(page: Path) -> None:
    for block in blocks(page):
        assert "# not run" not in block.body or block.reason, f"{name(page)}:{block.line}"
        assert not block.reason or len(block.reason.split()) >= 3, f"{name(page)}:{block.line}"


# --- names ---------------------------------------------------------------------------------------------------------


@every_page
def test_python_blocks_import_what_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block.body)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankfall"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, alias.name) for alias in node.names), block.body


def lines(block: Block) -> list[str]:
    """Return the commands of a shell block, one per line."""
    joined = block.body.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def rankfall_words(line: str) -> list[str] | None:
    """Return the words after `rankfall` of a command, or None if the line calls something else."""
    found = re.search(r"(?:^|-m |&& )rankfall (.*)$", line)
    return shlex.split(found[1].partition("&&")[0].rstrip(" &"), comments=True) if found else None


def shell_commands() -> Iterator[tuple[str, list[str]]]:
    for page in pages():
        for block in blocks(page, "sh"):
            for line in lines(block):
                if words := rankfall_words(line):
                    yield name(page), words


COMMANDS = list(shell_commands())
VERBS: Any = get_command(app)


def test_many_commands_are_found() -> None:
    assert len(COMMANDS) > 50


def test_shell_blocks_show_commands_and_options_that_exist() -> None:
    for page, words in COMMANDS:
        command, rest = VERBS, list(words)
        while hasattr(command, "commands"):
            assert rest, (page, words)
            if rest[0].startswith("-"):
                break
            assert rest[0] in command.commands, (page, words)
            command = command.commands[rest.pop(0)]
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        options |= {"--help", "-h"}
        assert {word.partition("=")[0] for word in rest if word.startswith("-")} <= options, (page, words)


# --- execution -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages use without making them: logs, lists, configurations and runs."""
    directory = tmp_path_factory.mktemp("examples")
    for split, first in zip(("S1", "S2", "S3", "S4", "S5"), range(1, 50, 10), strict=True):
        rows = [f"{(q + d) % 3} qid:{q} 1:{d}.5 2:{(q * d) % 7}" for q in range(first, first + 10) for d in range(6)]
        (directory / f"{split}.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (directory / "config.yaml").write_text(CONFIG, encoding="utf-8")
    (directory / "ranker.yaml").write_text(RANKER, encoding="utf-8")
    (directory / "mq2007.yaml").write_text(COMPARISON, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert run("simulate", "log", "--preset", "tiny") == 0
        assert run("prepare", "letor", *(f"S{n}=S{n}.txt" for n in range(1, 6)), "--out", "prepared/mq2007") == 0
        assert run("train", "config.yaml", "--out", "runs/lcron") == 0
    shutil.copytree(directory / "runs" / "lcron", directory / "runs" / "first")
    shutil.copytree(directory / "log", directory / "other-log")
    shutil.copytree(directory / "prepared" / "mq2007", directory / "elsewhere")
    return directory


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in EXECUTED and not block.reason]


def marked(page: Path) -> Any:
    return pytest.param(page, marks=[pytest.mark.slow] if page.parent.name == "tutorials" else [], id=name(page))


@pytest.mark.parametrize("page", [marked(page) for page in pages() if runnable(page)])
def test_blocks_run_in_order(page: Path, example_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.parent.name != "tutorials":  # a tutorial makes everything itself
        shutil.copytree(example_files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in runnable(page):
        if block.language == "python":
            for made in re.findall(r'rf\.train\(.*"(runs/\w+)"', block.body):
                shutil.rmtree(made, ignore_errors=True)
            exec(compile("\n" * block.line + block.body, str(page), "exec"), names)
        for line in lines(block) if block.language == "sh" else ():
            execute(line, f"{name(page)}:{block.line}")
    if "loss" in names:
        assert names["loss"].isfinite()
    if page.stem == "choose-an-operator":
        assert names["inclusion"].sum(-1).tolist() == pytest.approx([20.0] * 32, abs=1e-3)


def execute(line: str, where: str) -> None:
    """Run one command: those of rankfall in this process, others in a shell."""
    if copied := re.match(r"cp -r (docs/\S+) (\S+) && cd \2$", line):  # files of a tutorial, into an empty directory
        shutil.copytree(ROOT / copied[1], ".", dirs_exist_ok=True)
        return
    words = rankfall_words(line)
    if words is None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run(["bash", "-ec", line], check=True, timeout=60, env=os.environ | {"PATH": path})
        return
    if not {"--append", "--resume"} & set(words):
        shutil.rmtree(output(words), ignore_errors=True)  # pages show alternatives with the same output
    assert run(*reduced(words)) == 0, f"{where}: {line}"


def output(words: list[str]) -> str:
    """Return the directory that a command makes, or a path that does not exist."""
    if words[0] == "simulate":
        return words[1]
    return words[words.index("--out") + 1] if "--out" in words else "none"


def reduced(words: list[str]) -> list[str]:
    """Return a command that takes less time: comparisons run in one process and train for one epoch."""
    if words[0] != "compare":
        return words
    place = words.index("--jobs") if "--jobs" in words else len(words)
    return [*words[:place], *words[place + 2 :], "training.epochs=1"]


# --- other languages ------------------------------------------------------------------------------------------------


@every_page
def test_yaml_and_json_blocks_are_valid(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml":
            assert parse_yaml(block.body, f"{name(page)}:{block.line}") is not None
        if block.language == "json":
            assert json.loads(block.body) is not None


@pytest.mark.parametrize(
    ("page", "files"), [("own-log", ["spec.yaml", "train.yaml"]), ("letor-comparison", ["train.yaml", "compare.yaml"])]
)
def test_tutorials_show_their_files(page: str, files: list[str]) -> None:
    directory = ROOT / "docs" / "tutorials"
    shown = [block.body for block in blocks(directory / f"{page}.md", "yaml")]
    for file in files:
        assert (directory / page.removesuffix("-comparison") / file).read_text(encoding="utf-8") in shown


@pytest.mark.parametrize("file", ["train.yaml", "compare.yaml"])
@pytest.mark.parametrize("tutorial", ["own-log", "letor"])
def test_configurations_of_tutorials_are_valid(tutorial: str, file: str) -> None:
    assert run("config", "show", ROOT / "docs" / "tutorials" / tutorial / file) == 0
