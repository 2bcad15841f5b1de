"""``rankfall config``: check a configuration, print it with its defaults, print the JSON schema."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from rankfall.commands.terminal import print_error, print_json, print_message
from rankfall.commands.verb import command, group


@command()
def show(config: Path, overrides: Sequence[str] = (), as_json: bool = False) -> None:
    """Check a configuration and print it as YAML with all defaults, including those of models, loss or objective.

    Configurations of comparisons, streams and searches are checked too, and printed with the defaults of their own
    keys. Then everything is listed that the configuration names and that does not exist. Days or splits that the data
    do not have are errors. Data that do not exist, perhaps not yet, are a warning.

    Examples:
        rankfall config show config.yaml
        rankfall config show config.yaml loss.k=5
    """
    from rankfall._config import to_yaml

    content = _content(config, overrides)
    from rankfall.training.cascade_loaders import data_problems  # after the errors of the configuration

    if as_json:
        print_json(content)
    else:
        typer.echo(to_yaml(content), nl=False)
    problems = data_problems(content)
    for message, is_error in problems:
        print_error(f"{config}: {message}") if is_error else print_message(f"warning: {config}: {message}")
    if any(is_error for _, is_error in problems):
        raise typer.Exit(1)


def _content(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Validate a file of any kind and return its content with defaults."""
    from rankfall._config import read_yaml
    from rankfall.studies.comparison_plan import check_comparison, errors_of, load_comparison
    from rankfall.studies.search_space import load_search
    from rankfall.studies.stream.stream_config import load_stream, make_runs
    from rankfall.training.config.load_config import apply_overrides, load_config

    given = apply_overrides(read_yaml(path), overrides)
    if "search" in given:
        return load_search(path, overrides).written()
    if "methods" not in given:
        checked = load_config(path, overrides)
        from rankfall.training.methods import method_of  # needs torch

        method = method_of(checked)
        method.check_components(str(path))
        return method.with_defaults()
    data = given.get("data")
    if (isinstance(data, dict) and "train" in data) or "folds" in given:
        comparison = load_comparison(path, overrides)
        with errors_of(str(path)):
            check_comparison(comparison)
        return _without_empty_sections(comparison.model_dump(mode="json"))
    stream = load_stream(path, overrides)
    with errors_of(str(path)):
        make_runs(stream, path.parent)
    return _without_empty_sections(stream.model_dump(mode="json"))


def _without_empty_sections(content: dict[str, Any]) -> dict[str, Any]:
    """Drop empty sections, such as those of a ranker in a comparison of cascades."""
    return {key: value for key, value in content.items() if value not in ({}, [], None)}


@command()
def schema(kind: Literal["training", "ranker", "cascade", "spec"] = "training") -> None:
    """Print the JSON schema of configurations, for completion and checks in editors.

    Options:
        kind: Schema of any training configuration, of a ranker, of a cascade, or of a log's spec.

    Examples:
        rankfall config schema > rankfall.schema.json
        rankfall config schema --kind spec
    """
    from pydantic import TypeAdapter

    from rankfall.data.impressions.spec import Spec
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.config.ranker_config import RankerConfig

    described: dict[str, Any] = {
        "training": TrainConfig,
        "ranker": RankerConfig,
        "cascade": CascadeConfig,
        "spec": Spec,
    }
    print_json(TypeAdapter(described[kind]).json_schema())


app = group(
    "config",
    "Check a configuration and print it with its defaults, or print the JSON schema.",
    ["rankfall config show config.yaml loss.tau=0.5", "rankfall config schema"],
    show,
    schema,
)
