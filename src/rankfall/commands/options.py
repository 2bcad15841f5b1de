"""Options that several verbs share, so that a flag has the same name and help text everywhere."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rankfall._errors import RankfallError
from rankfall.commands.terminal import print_message

if TYPE_CHECKING:
    from collections.abc import Generator

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
    "as_json": {"flag": "json", "help": "Print the result as JSON on standard output."},
    "figures": {
        "metavar": "DIR",
        "help": "Also write every figure of the page to this directory, as SVG and PNG.",
    },
}


def existing_source(text: str) -> str:
    """Refuse a path that does not exist; what a URL names is looked up when it is read."""
    from rankfall.data.sources.object_storage import is_url

    if not is_url(text) and not Path(text).exists():
        raise typer.BadParameter(f"Path {text!r} does not exist.")
    return text


TABLE = {"metavar": "PATH", "parser": existing_source, "kind": str}  # one that is joined to the rows of a log


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
