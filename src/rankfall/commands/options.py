"""Options and arguments that several verbs share, so that a flag has the same name and help text everywhere.

A verb annotates a parameter with one of these types. A verb whose default or range differs combines its own type with
one of the functions, for example ``Annotated[int, seed_option(max=MAX_SAMPLE_SEED)]``.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.commands.terminal import print_message

if TYPE_CHECKING:
    from collections.abc import Generator

    from rankfall._engine import Engine

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

# --- input ------------------------------------------------------------------------------------------------------

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML configuration file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Values that replace those of CONFIG, for example training.seed=1.",
        show_default=False,
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a training run.", show_default=False)]
MovedData = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Path of the prepared data, if it was moved.", show_default="the path used for training"
    ),
]

Trust = Annotated[bool, typer.Option("--trust", help="Import code that the stored configuration names.")]

NoVerify = Annotated[
    bool,
    typer.Option("--no-verify", help="Do not compare the data and the run with their checksums before reading them."),
]


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


# --- output -----------------------------------------------------------------------------------------------------


def out_option(**options: Any) -> Any:
    """Return the option ``--out``; `options` are further settings of `typer.Option`."""
    return typer.Option("--out", help="Output directory.", **options)


Out = Annotated[Path, out_option(show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace existing output.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Figures = Annotated[
    Path | None,
    typer.Option(
        "--figures",
        metavar="DIR",
        help="Also write every figure of the page to this directory, as SVG and PNG.",
        show_default=False,
    ),
]

# --- execution --------------------------------------------------------------------------------------------------

MAX_NUMBER = 2**31 - 1  # of everything that is counted
MAX_SECONDS = 1e9
MAX_SAMPLE_SEED = 2**63 - 1  # samples of stages are drawn by hashing 64-bit integers


def finite(number: float | None) -> float | None:
    """Refuse NaN, which no range of an option excludes."""
    if number is not None and math.isnan(number):
        raise typer.BadParameter(f"{number} is not a number")
    return number


def seed_option(help: str = "Random seed; equal seeds give equal results.", **options: Any) -> Any:
    """Return the option ``--seed``; `options` are further settings of `typer.Option`."""
    return typer.Option("--seed", min=0, help=help, **{"max": MAX_SAMPLE_SEED, **options})


def quick_option(details: str) -> Any:
    """Return the option ``--quick``; `details` describe the reduction."""
    return typer.Option("--quick", help=f"Run a reduced version: {details}.")


def jobs_option(**options: Any) -> Any:
    """Return the option ``--jobs``; `options` are further settings of `typer.Option`."""
    return typer.Option("--jobs", min=1, max=MAX_NUMBER, help="Number of training runs in parallel.", **options)


def whole_number_of(variable: str, default: int) -> int:
    """Return the whole number in an environment variable, such as those of torchrun.

    Raises:
        ValueError: If it is something else.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{variable}: found {text!r} in the environment, expected a whole number")
    return int(text)


Seed = Annotated[int, seed_option()]
SampleSeed = Annotated[int, seed_option(max=MAX_SAMPLE_SEED)]
Resume = Annotated[bool, typer.Option("--resume", help="Continue after an interruption.")]


class EngineName(StrEnum):
    """Engines that execute the work."""

    LOCAL = "local"
    RAY = "ray"


EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="Run on this machine (local), or with Ray on all processors of this machine or of the cluster at "
        "RAY_ADDRESS (pip install 'rankfall\\[ray]'). The result is the same.",
    ),
]


def announce(engine: EngineName) -> None:
    """Print that Ray is started, which takes seconds."""
    if engine is EngineName.RAY:
        print_message("starting Ray")


@contextmanager
def opened_engine(name: EngineName) -> Generator[Engine]:
    """Open the engine of ``--engine`` for the duration of the block."""
    from rankfall._engine import open_engine

    announce(name)
    with open_engine(name.value) as engine:
        yield engine
