"""``rankfall config``: what a configuration means, and what it may hold."""

from __future__ import annotations

from enum import StrEnum
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
    """Check a configuration and print it with every default written out, those of models and objective included."""
    import yaml

    from rankfall.training.config import load_config
    from rankfall.training.options import with_defaults

    content = with_defaults(load_config(config, overrides or []))
    if as_json:
        show_json(content)
    else:
        typer.echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), nl=False)


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

    from rankfall.data.spec import Spec
    from rankfall.training.cascade_config import CascadeConfig
    from rankfall.training.config import RankerConfig

    described: dict[Kind, Any] = {
        Kind.TRAINING: RankerConfig | CascadeConfig,
        Kind.RANKER: RankerConfig,
        Kind.CASCADE: CascadeConfig,
        Kind.SPEC: Spec,
    }
    show_json(TypeAdapter(described[kind]).json_schema())
