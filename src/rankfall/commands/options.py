"""Options that several verbs share, so that a flag has the same name and help text everywhere."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall._errors import RankfallError
from rankfall.commands.terminal import print_message

if TYPE_CHECKING:
    from collections.abc import Generator

MAX_NUMBER = 2**31 - 1  # of everything that is counted
MAX_SECONDS = 1e9

# What the command line says in its own way about the parameters of several functions of the API.
SHARED: dict[str, dict[str, Any]] = {
    "config": {"argument": "CONFIG", "help": "YAML configuration file."},
    "overrides": {
        "argument": "KEY=VALUE",
        "help": "Values that replace those of CONFIG, for example training.seed=1.",
        "show_default": False,
    },
    "spec": {"help": "Description of columns, stages and features, a YAML file."},
    "run": {"argument": "RUN", "help": "Directory of a training run."},
    "out": {"help": "Output directory."},
    "force": {"help": "Replace existing output."},
    "resume": {"help": "Continue after an interruption."},
    "engine": {
        "help": "Run on this machine (local), or with Ray on all processors of this machine or of the cluster at "
        "RAY_ADDRESS (pip install 'rankfall\\[ray]'). The result is the same.",
    },
    "seed": {"help": "Random seed; equal seeds give equal results."},
    "jobs": {"help": "Number of training runs in parallel."},
    "verify": {"help": "Do not compare the data and the run with their checksums before reading them."},
}

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help=SHARED["config"]["help"], show_default=False)]
Figures = Annotated[
    Path | None,
    typer.Option(
        "--figures",
        metavar="DIR",
        help="Also write every figure of the page to this directory, as SVG and PNG.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help=SHARED["force"]["help"])]
NoVerify = Annotated[bool, typer.Option("--no-verify", help=SHARED["verify"]["help"])]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help=SHARED["overrides"]["help"], show_default=False),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help=SHARED["seed"]["help"])]


def quick_option(details: str) -> Any:
    """Return the option ``--quick``; `details` describe the reduction."""
    return typer.Option("--quick", help=f"Run a reduced version: {details}.")


def existing_source(text: str) -> str:
    """Refuse a path that does not exist; what a URL names is looked up when it is read."""
    from rankfall.data.sources.object_storage import is_url

    if not is_url(text) and not Path(text).exists():
        raise typer.BadParameter(f"Path {text!r} does not exist.")
    return text


def table_option(help: str) -> Any:
    """Return the option of a table that is joined to the rows of a log."""
    return typer.Option(parser=existing_source, metavar="PATH", help=help, show_default=False)


@contextmanager
def noting(*, verify: bool = True) -> Generator[None]:
    """Context in which files are compared with their checksums, unless `verify` is False; notes are printed."""
    from rankfall.storage.manifests import verification

    with verification(verify, lambda text: print_message(f"note: {text}")):
        yield


def finite(number: float | None) -> float | None:
    """Refuse NaN, which no range of an option excludes."""
    if number is not None and math.isnan(number):
        raise typer.BadParameter(f"{number} is not a number")
    return number


def whole_number_of(variable: str, default: int) -> int:
    """Return the whole number in an environment variable, such as those of torchrun.

    Raises:
        ValueError: If it is something else.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise RankfallError(f"{variable}: found {text!r} in the environment, expected a whole number")
    return int(text)
