"""How every verb speaks: reports on standard output, everything else on standard error."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_WIDTH = 120  # columns of a table that goes into a file or a pipe, where nobody knows the width


def examples(*commands: str) -> str:
    """The epilogue of a help page, in Markdown."""
    return "\n".join(["**Examples**\n", *(f"- `{command}`" for command in commands)])


def show(content: RenderableType) -> None:
    """Print a report on standard output."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    # a sentence may quote anything, brackets too; what stands in tables is marked up by those who make them
    console.print(content, markup=not isinstance(content, str))


def show_json(content: object) -> None:
    """Print a report as JSON on standard output."""
    typer.echo(json_text(content))


def json_text(content: object) -> str:
    """A report as JSON; what is not a number there is null."""
    return json.dumps(_without_nan(content), indent=2, allow_nan=False)


def say(message: str) -> None:
    """Tell the user something that is not the report."""
    Console(stderr=True, soft_wrap=True).print(message, markup=False)


def fail(message: str) -> None:
    """One red line on standard error."""
    Console(stderr=True, soft_wrap=True).print(f"error: {message}", style="red", markup=False, highlight=False)


def progress() -> Progress:
    """A progress bar on standard error, silent where that is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _without_nan(content: object) -> object:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(value) for value in content]
    return content
