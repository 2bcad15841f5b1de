"""Options that the benchmarks share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rankfall.commands.options import quick_option

MIN_SIZE = 20


def sizes_option(default: str) -> Any:
    """Return the option ``--sizes``; `default` describes the lengths that are measured without it."""
    return typer.Option("--sizes", help="List lengths, separated by commas.", show_default=default)


Sizes = Annotated[str | None, sizes_option("50 to 100,000")]
StepSizes = Annotated[str | None, sizes_option("40 to 5,000")]
Quick = Annotated[bool, quick_option("little data, k = 10, one thread, no memory, no claims")]


def parse_sizes(text: str | None) -> list[int] | None:
    """Return the sorted list lengths of ``--sizes``."""
    if text is None:
        return None
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise typer.BadParameter(
            f"found {text!r}, expected integers separated by commas", param_hint="--sizes"
        ) from None
    if sizes[0] < MIN_SIZE:
        raise typer.BadParameter(
            f"found {sizes[0]}, expected list lengths of at least {MIN_SIZE}", param_hint="--sizes"
        )
    return sizes
