"""Components of users in a run: what a configuration names, its source files, and errors that its code raises.

A run whose configuration names components that are not built in stores their files and hashes in ``components.json``.
"""

from __future__ import annotations

import json
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from rankfall import registry
from rankfall._json_reader import read_json_file
from rankfall._trust import remember
from rankfall._yaml_config import ConfigError
from rankfall.registry.metric_names import split_cutoffs
from rankfall.registry.references import Source, imported_files, source_of
from rankfall.registry.stored_sources import short_name
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.component_checks import is_own

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from pathlib import Path

    from pydantic import BaseModel

    from rankfall.register import Kind

    Named: TypeAlias = tuple[Kind, str]
    """Kind and name of a component."""

COMPONENTS = "components.json"
CODE = "the code "  # before the name of a file among the checksums that all processes must share


class OwnCodeError(ValueError):
    """The code of a user's component raised an error."""


# --- what a configuration names -----------------------------------------------------------------------------------


def sources_of(config: BaseModel) -> list[Source]:
    """Return the code of all components of a configuration that are not built in. Nothing is imported.

    Args:
        config: A validated configuration: of a ranker, of a cascade, or of a baseline.
    """
    content = config.model_dump(mode="json")
    found = (source_of(kind, name) for kind, name in dict.fromkeys(_named(content, isinstance(config, CascadeConfig))))
    return [source for source in found if source is not None]


def _named(content: Mapping[str, Any], is_cascade: bool) -> list[Named]:
    """Return the kind and name of every component of a configuration."""
    if is_cascade:
        models = [stage["model"]["kind"] for stage in content["stages"]]
        objective = content["objective"]
        metrics = content["stage_metrics"]
        return [
            *(("model", kind) for kind in models),
            ("objective", objective["name"]),
            *_in_options("objective", objective),
            *_own_metrics(metrics),
        ]
    if "loss" not in content:  # a baseline
        return _own_metrics(content.get("metrics", ()))
    own_models = [kind for kind in [content["model"]["kind"]] if kind not in ("mlp", "linear")]
    return [
        *(("model", kind) for kind in own_models),
        ("loss", content["loss"]["name"]),
        *_in_options("loss", content["loss"]),
        *_own_metrics([*content["metrics"], content["training"]["metric"]]),
    ]


def _own_metrics(names: Iterable[str]) -> list[Named]:
    """Return the metrics that are not built in; those of cascades have names of their own."""
    return [("metric", name) for name in names if is_own("metric", split_cutoffs(name)[0])]


def _in_options(kind: Kind, section: Mapping[str, Any]) -> list[Named]:
    """Return the operators and losses that the options of a loss or an objective name."""
    found: list[Named] = []
    for name, option in registry.options(kind, section["name"]).items():
        value = section.get(name)
        given = {"name": value} if isinstance(value, str) else value
        if option.part is not None and isinstance(given, dict) and isinstance(given.get("name"), str):
            found.append(("loss" if option.part == "loss" else "operator", given["name"]))
            found += _in_options("loss", given) if option.part == "loss" else []
    return found


def identity(config: BaseModel, content: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what identifies a run besides its data: its configuration without paths, and the hashes of its code.

    Args:
        config: The configuration.
        content: Its content as JSON values, or a part of it.
    """
    sources = sources_of(config)
    names = {one.name: short_name(one.name) for one in sources}
    return _renamed(content, names), [f"{one.kind} {short_name(one.name)} {one.sha256}" for one in sources]


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


# --- files of a run -----------------------------------------------------------------------------------------------


def component_files(config: BaseModel) -> dict[str, str]:
    """Return the content of ``components.json``; nothing if all components are built in."""
    sources = sources_of(config)
    return {COMPONENTS: json.dumps([asdict(one) for one in sources], indent=1) + "\n"} if sources else {}


def stored_sources(directory: Path) -> list[Source]:
    """Return the code that a run was trained with."""
    try:
        content = read_json_file(directory / COMPONENTS)
        return [_source(one) for one in content]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        raise ValueError(f"{directory / COMPONENTS} is damaged: it is not a list of components") from None


def _source(content: Any) -> Source:
    source = Source(**content)
    if source.kind not in registry.KINDS or not all(isinstance(value, str) for value in content.values()):
        raise ValueError
    return source


def check_same_code(out: Path, config: BaseModel) -> None:
    """Check that a run is resumed with the code that it was started with."""
    before = {(one.kind, one.name): one for one in stored_sources(out)}
    differences = [
        f"{now.file or now.name} had sha256 {old.sha256[:12]} and has {now.sha256[:12]}"
        for now in sources_of(config)
        if (old := before.get((now.kind, now.name))) is not None and old.sha256 != now.sha256
    ]
    if differences:
        raise ConfigError(
            f"{out} was started with other code: {', '.join(dict.fromkeys(differences))}. Resume with the old code, "
            "name another directory, or start over with --force"
        )


# --- errors of users' code ----------------------------------------------------------------------------------------


@contextmanager
def own_code(config: BaseModel, *, trains: bool = False) -> Generator[None]:
    """Context for running the components of a configuration: errors of users' code name the component and the line.

    Args:
        config: The configuration.
        trains: Whether the user has passed the configuration, so that its code is trusted from now on.

    Raises:
        OwnCodeError: If code of a user raises an error.
    """
    sources = sources_of(config)
    if trains and sources:
        try:
            remember(dict.fromkeys(file for one in sources for file in imported_files(one)))
        except OSError as error:
            warnings.warn(f"later commands will ask for --trust, because {error}", stacklevel=3)
    try:
        yield
    except (Exception, SystemExit) as error:
        if not sources or any(isinstance(one, OwnCodeError) for one in _chain(error)):
            raise
        if (place := _place(error, sources)) is not None:
            component, text = place
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise OwnCodeError(f"{component}: {said} {text}") from error
        # an error of ours about one that users' code raised
        for cause in _chain(error):
            if (place := _place(cause, sources)) is not None:
                error.args = (f"{error} {place[1]}", *error.args[1:])
                break
        raise


def _chain(error: BaseException) -> Generator[BaseException]:
    """Yield an error and those that led to it."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


def _place(error: BaseException, sources: Iterable[Source]) -> tuple[str, str] | None:
    """Return the component whose file an error passed through, and the innermost line there."""
    by_file: dict[str, list[Source]] = {}
    for source in sources:
        by_file.setdefault(source.file, []).append(source)
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if names := [short_name(one.name) for one in by_file.get(code.co_filename, ())]:
            outer = code.co_qualname.partition(".")[0]
            component = outer if outer in names else names[0]
            found = component, f"({code.co_filename}, line {line}, in {code.co_qualname})"
    return found
