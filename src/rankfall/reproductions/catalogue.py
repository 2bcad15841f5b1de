"""Reproductions by name, loaded from the files in ``papers/``. Drivers are imported when they run."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import ValidationError

from rankfall._config import ConfigError, Section, explain, read_yaml, shown
from rankfall._errors import RankfallError, did_you_mean
from rankfall.reproductions.paper_schema import DRIVERS, Kind, Method, PaperFile, Reproduction, Statement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.reproductions.task import Report, Task

DIRECTORY = Path(__file__).parent / "papers"
FILES = ("arf.yaml", "lambdaloss.yaml", "pirank.yaml", "lcron.yaml", "dftopk.yaml")  # in the order of ``--list``

KINDS = get_args(Kind)

Model = TypeVar("Model", bound=Section)


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper with its reproductions, and what it states beside its tables."""

    name: str
    reference: str
    reproductions: tuple[Reproduction, ...]
    statements: tuple[Statement, ...]


@cache
def papers() -> tuple[Paper, ...]:
    """Load all papers."""
    return tuple(load_paper(DIRECTORY / file) for file in FILES)


@cache
def reproductions() -> dict[str, Reproduction]:
    """Return every reproduction by name, in the order of `KINDS`."""
    found = [one for paper in papers() for one in paper.reproductions]
    return {one.id: one for one in sorted(found, key=lambda one: KINDS.index(one.data))}


def find_reproduction(name: str) -> Reproduction:
    """Return the reproduction of that name.

    Raises:
        ValueError: There is none; the message names similar ones.
    """
    known = reproductions()
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"allowed are {', '.join(known)}"
    raise RankfallError(f"unknown reproduction {name!r}; {hint}")


def run(reproduction: Reproduction, task: Task) -> Report:
    """Run a reproduction with its driver; our better versions of published methods only if the task includes them."""
    module, function = reproduction.runner.split(".")
    driver = getattr(importlib.import_module(f"rankfall.reproductions.{module}"), function)
    chosen = reproduction.with_variants(improved=task.improved).with_methods(task.methods)
    report: Report = driver(chosen, task)
    return report


def load_methods(methods: str | PathLike[str] | Mapping[str, Any]) -> list[Method]:
    """Return methods of a user, which a reproduction runs beside those of the paper.

    Args:
        methods: YAML file, or its content: by the name of each method its changes to the training configuration, as
            `methods` of a comparison, such as ``{"mine": {"loss": {"name": "./my_loss.py:focal"}}}``. `tune` has
            values to try.

    Raises:
        ConfigError: If the content is not of this form.
    """
    if isinstance(methods, str | PathLike):
        where, content = str(methods), read_yaml(Path(methods))
    else:
        where, content = "methods", dict(methods)
    found = []
    for name, changes in content.items():
        if not isinstance(changes, dict):
            raise ConfigError(f"{where}: {name}: found {shown(changes)}, expected keys and values of a configuration")
        config = {key: value for key, value in changes.items() if key != "tune"}
        given = {"name": name, "config": config, "tune": changes.get("tune", {})}
        found.append(_validated(Method, given, f"{where}: {name}"))
    return found


# --- loading ------------------------------------------------------------------------------------------------------


def load_paper(path: Path) -> Paper:
    """Load a paper.

    Raises:
        ConfigError: The file is not valid; the message names the reproduction and the key.
    """
    content = _validated(PaperFile, read_yaml(path), str(path))
    loaded = tuple(_reproduction(one, content, path) for one in content.reproductions)
    return Paper(content.paper, content.reference, loaded, tuple(content.statements))


def _reproduction(content: dict[str, Any], paper: PaperFile, path: Path) -> Reproduction:
    where = f"{path}: {content.get('id', 'a reproduction without id')}"
    driver = content.get("driver")
    if driver not in DRIVERS:
        hint = did_you_mean(driver, DRIVERS)
        raise ConfigError(f"{where}: driver: found {driver!r}{hint}; allowed are {', '.join(DRIVERS)}")
    return _validated(DRIVERS[driver], _with_definitions(content, paper, where), where)


def _with_definitions(content: dict[str, Any], paper: PaperFile, where: str) -> dict[str, Any]:
    """Replace the names of shared protocols and methods by their definitions."""
    shared = {str(method.get("name")): method for method in paper.methods}
    content = {"paper": paper.paper, **content}
    if "protocol" in content:
        content["protocol"] = _defined(content["protocol"], paper.protocols, f"{where}: protocol")
    if isinstance(content.get("protocols"), dict):
        content["protocols"] = {
            data: _defined(name, paper.protocols, f"{where}: protocols.{data}")
            for data, name in content["protocols"].items()
        }
    if isinstance(content.get("methods"), list):
        content["methods"] = [
            _defined(one, shared, f"{where}: methods.{position}") for position, one in enumerate(content["methods"])
        ]
    return content


def _defined(value: object, definitions: Mapping[str, dict[str, Any]], where: str) -> object:
    if not isinstance(value, str):
        return value
    if value not in definitions:
        hint = did_you_mean(value, definitions)
        raise ConfigError(f"{where}: found {value!r}{hint}; defined are {', '.join(definitions) or 'none'}")
    return definitions[value]


def _validated(model: type[Model], content: dict[str, Any], where: str) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None
