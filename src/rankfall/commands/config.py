"""``rankfall config``: what a configuration means, and what it may hold."""

from __future__ import annotations

from typing import Annotated

import typer

from rankfall.commands.terminal import examples, show_json
from rankfall.commands.train import Config, Overrides  # noqa: TC001 (typer reads the annotations)

app = typer.Typer(
    name="config",
    no_args_is_help=True,
    help="What a configuration means, and what it may hold.",
    epilog=examples("rankfall config show config.yaml loss.tau=0.5", "rankfall config schema"),
)


@app.command("show", epilog=examples("rankfall config show config.yaml", "rankfall config show config.yaml loss.k=5"))
def show(
    config: Config,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Check a configuration and print it with every default written out."""
    from rankfall._settings import dump
    from rankfall.training.config import load_config

    settings = load_config(config, overrides or [])
    if as_json:
        show_json(settings.model_dump(mode="json"))
    else:
        typer.echo(dump(settings), nl=False)


@app.command("schema", epilog=examples("rankfall config schema > rankfall.schema.json"))
def schema() -> None:
    """Print the JSON schema of configurations, by which editors complete and check them."""
    from rankfall.training.config import RankerConfig

    show_json(RankerConfig.model_json_schema())
