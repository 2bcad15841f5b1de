"""``rankfall config``: what a configuration means, and what it may hold."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated, Any

import typer

from rankfall.commands.terminal import examples, show_json
from rankfall.commands.train import Config, Overrides  # noqa: TC001 (typer reads the annotations)

app = typer.Typer(
    name="config",
    no_args_is_help=True,
    help="What a configuration means, and what it may hold.",
    epilog=examples("rankfall config show config.yaml loss.tau=0.5", "rankfall config schema"),
)


class Kind(StrEnum):
    """What a file may be."""

    TRAINING = "training"
    RANKER = "ranker"
    CASCADE = "cascade"
    SPEC = "spec"


@app.command("show", epilog=examples("rankfall config show config.yaml", "rankfall config show config.yaml loss.k=5"))
def show(
    config: Config,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Check a configuration and print it with every default written out, those of models and objective included.

    Comparisons, streams and searches are checked and printed as well, with the defaults of their own keys.
    """
    from rankfall._settings import to_yaml

    content = _content(config, overrides or [])
    if as_json:
        show_json(content)
    else:
        typer.echo(to_yaml(content), nl=False)


def _content(path: Path, overrides: list[str]) -> dict[str, Any]:
    """What a file means, by what it is."""
    from rankfall._settings import read_yaml
    from rankfall.studies.comparison_plan import check_comparison, load_comparison
    from rankfall.studies.search_space import load_search
    from rankfall.studies.stream.stream_config import load_stream, make_runs
    from rankfall.training.component_options import with_defaults
    from rankfall.training.config.ranker_config import apply_overrides, load_config

    given = apply_overrides(read_yaml(path), overrides)
    if "search" in given:
        return load_search(path, overrides).written()
    if "methods" not in given:
        return with_defaults(load_config(path, overrides))
    if "train" in (given.get("data") or {}) or "folds" in given:
        comparison = load_comparison(path, overrides)
        check_comparison(comparison)
        return _without_nothing(comparison.model_dump(mode="json"))
    stream = load_stream(path, overrides)
    make_runs(stream, path.parent)
    return _without_nothing(stream.model_dump(mode="json"))


def _without_nothing(content: dict[str, Any]) -> dict[str, Any]:
    """But for sections that are not there: those of a ranker where cascades are meant."""
    return {key: value for key, value in content.items() if value not in ({}, [], None)}


@app.command(
    "schema", epilog=examples("rankfall config schema > rankfall.schema.json", "rankfall config schema --kind spec")
)
def schema(
    kind: Annotated[
        Kind, typer.Option(help="Of any training, a ranker's or a cascade's, or of the description of a log.")
    ] = Kind.TRAINING,
) -> None:
    """Print the JSON schema of configurations, by which editors complete and check them."""
    from pydantic import TypeAdapter

    from rankfall.data.impressions.spec import Spec
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.config.ranker_config import RankerConfig

    described: dict[Kind, Any] = {
        Kind.TRAINING: RankerConfig | CascadeConfig,
        Kind.RANKER: RankerConfig,
        Kind.CASCADE: CascadeConfig,
        Kind.SPEC: Spec,
    }
    show_json(TypeAdapter(described[kind]).json_schema())
