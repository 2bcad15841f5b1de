"""The command line: ``rankfall VERB``.

Exit codes: 0 success, 1 a failure with a message, 2 wrong usage, 130 interrupted. Results go to standard output,
progress and messages to standard error. No error shows a traceback, unless ``--debug`` or ``RANKFALL_DEBUG`` asks for
it. This module must not import torch, so that ``rankfall --help`` responds at once.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rankfall import __version__
from rankfall._errors import DEBUG, is_panic
from rankfall.commands import (
    bench,
    config,
    demo,
    export,
    logs,
    methods,
    prepare,
    records,
    reproduce,
    serve,
    train,
)
from rankfall.commands.terminal import check_words, clean_output, examples, exit_for, print_error, whole_number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PANELS: dict[str, tuple[Any, ...]] = {  # the verbs of the help page, in the order of the work
    "Get data": (logs.init, logs.simulate, prepare.app, logs.data, logs.examination),
    "Train and compare": (train.train, train.evaluate, train.plan, train.compare, train.tune, train.stream),
    "Serve": (export.export, serve.serve, records.collect, records.join),
    "Results": (train.report, reproduce.reproduce),
    "Explore": (demo.demo, methods.methods, bench.app, config.app, records.clean),
}

PATH = {  # the main path of the help page: what one does with a log, in order
    "init": ("init log.csv", "draft a spec of the log and a configuration"),
    "prepare": ("prepare rows log.csv --spec spec.yaml --out log", "make training data; --check lists what is wrong"),
    "data": ("data log", "look at the data and at warnings about them"),
    "train": ("train config.yaml --out run", "train a cascade"),
    "evaluate": ("evaluate run", "see what each stage keeps and loses"),
    "compare": ("compare comparison.yaml --out compared", "compare methods"),
    "export": ("export run --out bundle", "write what a service needs"),
    "serve": ("serve bundle", "answer requests"),
}


def _name(verb: Any) -> str:
    return str(verb.info.name if isinstance(verb, typer.Typer) else verb.__name__)


class _Verbs(TyperGroup):
    """Verbs in the order of PANELS, by default verbs with subcommands come last; errors of verbs become messages."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # an error of the disk is not lost
            return result
        except Exception as error:
            # Not in main: typer takes a broken pipe and an EOFError for something that standard output or input did.
            if hasattr(error, "exit_code"):  # an exception of typer for wrong usage, or an exit
                if hasattr(error, "message"):  # pydantic's, by which typer checks choices
                    error.message = str(error.message).removeprefix("Value error, ")
                raise
            exit_for(error, ctx.obj)

    def list_commands(self, ctx: object) -> list[str]:
        return [_name(verb) for verbs in PANELS.values() for verb in verbs]


def _help() -> str:
    """Return the text of the help page: what rankfall is, and the main path."""
    verbs = {_name(verb) for verbs in PANELS.values() for verb in verbs}
    steps = [f"`rankfall {command}`: {what}" for verb, (command, what) in PATH.items() if verb in verbs]
    path = [f"{number}. {step}" for number, step in enumerate(steps, start=1)]
    what = "Cascade ranking in PyTorch: ranking losses, soft sorts, soft top-k, and training and serving of cascades."
    return "\n".join([what, "", "**From a log to a service**", "", *path])


app = typer.Typer(
    name="rankfall",
    cls=_Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("rankfall demo", "rankfall methods --kind loss", "rankfall bench ops --quick"),
)
for panel, verbs in PANELS.items():
    for verb in verbs:
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, rich_help_panel=panel)
        else:
            app.command(verb.__name__, epilog=verb.epilog, rich_help_panel=panel)(verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rankfall {__version__}")
        raise typer.Exit


def _check_alone(verb: str | None) -> None:
    """Exit with an error if torchrun started several processes for a command that runs in one."""
    if verb == "train" or "TORCHELASTIC_RUN_ID" not in os.environ or whole_number_of("WORLD_SIZE", 1) == 1:
        return
    if os.environ.get("RANK", "0") == "0":
        print_error(f"torchrun: {verb} runs in one process, only train supports torchrun; run it without torchrun")
    raise typer.Exit(1)


@app.callback(help=_help())
def rankfall(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help=f"Show the traceback of an error and warnings of libraries, as {DEBUG}=1 does."),
    ] = False,
) -> None:
    """Check what holds for all verbs."""
    if debug:
        os.environ[DEBUG] = "1"  # other processes of the command inherit it
    _check_alone(context.invoked_subcommand)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit. Every error ends in a message on standard error and exit code 1 or 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with clean_output():
        try:
            check_words(words)
            app(args=words, prog_name="rankfall", obj=words)
        except KeyboardInterrupt:  # before or after what typer handles: while it reads the options of all verbs
            raise SystemExit(128 + signal.SIGINT) from None
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):  # an exit
                raise
            exit_for(error, words)
