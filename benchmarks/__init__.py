"""Studies of the costs of rankfall, which are not part of the package.

Run one as ``python -m benchmarks.NAME`` in a clone. It prints its report as JSON on standard output, and the
requirements that are not met on standard error; it ends with code 1 if there are any:

- `textbook`: operators and losses beside their textbook forms;
- `claims`: the claims about the cost of operators, losses and the loader, with their targets;
- `preparation`: ``rankfall prepare rows`` with each engine;
- `scaling`: training with several processes;
- `service`: a service beside the bare calls of faiss and onnxruntime, also at half of its largest rate;
- `samples`: what recording samples costs a service.

`load_client`, `answer_check` and `services` are what these and the trials in `tests/trials/` share.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall._tables import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")


def parse_settings(
    doc: str | None,
    settings: type[S],
    arguments: Sequence[str] | None,
    others: Mapping[str, dict[str, Any]] | None = None,
) -> tuple[S, argparse.Namespace]:
    """Parse a command line in which every field of a dataclass is an option.

    Args:
        doc: Doc string of the program, shown as its help.
        settings: The dataclass. The type of an option is that of the default.
        arguments: Words of the command line; None: those of this process.
        others: Further arguments, with the options of `ArgumentParser.add_argument`.

    Returns:
        The settings, and all arguments.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, options in (others or {}).items():
        parser.add_argument(name, **options)
    for field in fields(settings):
        default: Any = field.default
        option = f"--{field.name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=default)
        elif isinstance(default, tuple):  # at least one value
            parser.add_argument(option, nargs="+", type=type(default[0]), default=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    given = parser.parse_args(arguments)
    values = {field.name: getattr(given, field.name) for field in fields(settings)}
    return settings(**{name: tuple(one) if isinstance(one, list) else one for name, one in values.items()}), given


BUNDLES: dict[str, dict[str, Any]] = {
    "bundles": {"type": Path, "nargs": "*", "help": "directories of bundles; simulated ones if there are none"},
    "--items": {"type": int, "default": 1_000_000, "help": "number of items of a simulated bundle"},
    "--keep": {"type": Path, "help": "directory that keeps simulated bundles for reuse"},
}


@contextmanager
def given_bundles(given: argparse.Namespace, count: int) -> Iterator[list[Path]]:
    """Yield the bundles of a command line with the arguments BUNDLES, or a number of simulated ones."""
    if given.bundles and len(given.bundles) != count:
        raise SystemExit(f"found {len(given.bundles)} bundles, expected {count}")
    from rankfall.benchmarks.serve import simulated_bundle

    with tempfile.TemporaryDirectory() as scratch:
        directory = given.keep or Path(scratch)
        yield given.bundles or [simulated_bundle(directory, given.items, seed=seed) for seed in range(count)]


def show_step(step: str, done: int, total: int | None) -> None:
    """Show the progress of a program on standard error."""
    sys.stderr.write(f"\r\x1b[K{step}" if total is None else f"\r\x1b[K{step} ({done} of {total})")
    sys.stderr.flush()


def print_report(report: Any) -> int:
    """Print a report as JSON, and its problems on standard error; return the exit code."""
    sys.stderr.write("\n")
    sys.stdout.write(json_text(report if isinstance(report, dict) else asdict(report)) + "\n")
    problems = report["problems"] if isinstance(report, dict) else getattr(report, "problems", [])
    for problem in problems:
        sys.stderr.write(f"problem: {problem}\n")
    return 1 if problems else 0


def module_environment() -> dict[str, str]:
    """Return the environment of a process that imports modules as this one does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
