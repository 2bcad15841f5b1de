"""README.md and docs/: links resolve, lines are short, Python blocks run and commands exist."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from rankfall.cli import app
from support.command_line import run
from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
NOT_RUN = "# not run: "
PROSE_LIMIT, CELL_LIMIT = 160, 200

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


@cache
def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_and_anchors_resolve(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(index))}
    assert {page for page in PAGES[1:] if page != index} <= linked


@pages
def test_lines_and_cells_are_short(page: Path) -> None:
    for line in prose(page).splitlines():
        if line.lstrip().startswith("|"):
            assert max(map(len, re.split(r"(?<!\\)\|", line))) <= CELL_LIMIT, line
        else:
            assert len(line) <= PROSE_LIMIT, line


# --- Python ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log that pages make with `rankfall simulate log --preset tiny`."""
    log = tmp_path_factory.mktemp("docs") / "log"
    assert run("simulate", str(log), "--preset", "tiny") == 0
    return log


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(not block.startswith(NOT_RUN) for block in blocks(page, "python"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_python_blocks_run_in_order(
    page: Path, simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").symlink_to(simulated)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        if not block.startswith(NOT_RUN):
            exec(compile(block, str(page), "exec"), names)
    if "loss" in names:
        assert names["loss"].isfinite()
    if page.stem == "choose-an-operator":
        assert names["inclusion"].sum(-1).tolist() == pytest.approx([20.0] * 32, abs=1e-3)


@pages
def test_python_blocks_that_do_not_run_say_why_and_import_what_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        assert "# not run" not in block or re.match(r"# not run: \S+ \S+", block), block
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankfall"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, alias.name) for alias in node.names), block


# --- commands -------------------------------------------------------------------------------------------------------


def commands(block: str) -> Iterator[list[str]]:
    """The words after `rankfall` of each command of a shell block."""
    for line in block.replace("\\\n", " ").splitlines():
        if (found := re.search(r"(?:^|-m |&& )rankfall (.*)$", line)) is not None:
            yield shlex.split(found[1].partition("&&")[0].rstrip(" &"), comments=True)


def shell_commands() -> list[tuple[str, list[str]]]:
    found = [(page, words) for page in PAGES for block in blocks(page, "sh") for words in commands(block)]
    assert len(found) > 50  # the pages show many: an empty list would mean that the pattern is wrong
    return [(str(page.relative_to(ROOT)), words) for page, words in found]


@pytest.mark.parametrize(("page", "words"), shell_commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_shell_blocks_show_commands_and_options_that_exist(page: str, words: list[str]) -> None:
    command: Any = get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        assert rest, words
        if rest[0].startswith("-"):
            break
        assert rest[0] in command.commands, words
        command = command.commands[rest.pop(0)]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    options |= {"--help", "-h"}
    assert {word.partition("=")[0] for word in rest if word.startswith("-")} <= options, words


# --- tutorials ------------------------------------------------------------------------------------------------------


def test_the_log_of_the_tutorial_is_prepared_by_its_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ROOT / "docs" / "tutorials" / "own-log"
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(files / "make_log.py"))
    script["main"]("shop.csv")
    assert run("prepare", "rows", "shop.csv", "--spec", str(files / "spec.yaml"), "--out", "shop") == 0
    assert "2,800 impressions" in capsys.readouterr().out
    for name in ("train.yaml", "compare.yaml"):
        assert run("config", "show", str(files / name)) == 0


def test_the_lists_of_the_tutorial_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ROOT / "docs" / "tutorials" / "letor"
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(files / "make_lists.py"), run_name="__main__")
    assert run("prepare", "letor", "train.txt", "vali.txt", "test.txt", "--out", "lists") == 0
    for name in ("train.yaml", "compare.yaml"):
        assert run("config", "show", str(files / name)) == 0


@pytest.mark.parametrize(
    ("page", "files"), [("own-log", ["spec.yaml", "train.yaml"]), ("letor-comparison", ["train.yaml", "compare.yaml"])]
)
def test_tutorials_show_their_files(page: str, files: list[str]) -> None:
    directory = ROOT / "docs" / "tutorials"
    shown = blocks(directory / f"{page}.md", "yaml")
    for file in files:
        assert (directory / page.removesuffix("-comparison") / file).read_text(encoding="utf-8") in shown
