"""``rankfall collect``: write the samples and events of a broker to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankfall import api
from rankfall.api.display import Display
from rankfall.commands.options import AsJson
from rankfall.commands.terminal import examples, interruptible, print_json, print_message, stoppable

EXAMPLES = examples(
    "rankfall collect nats://127.0.0.1:4222/shop records --follow",
    "rankfall collect kafka://127.0.0.1:9092/shop records",
)


def collect(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Stream of NATS JetStream, nats://HOST:PORT/STREAM, or topic of Kafka, kafka://HOST:PORT/TOPIC.",
            show_default=False,
        ),
    ],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to write to; earlier files stay.", show_default=False)
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for further messages until SIGTERM or Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the samples and events that services sent to a broker to files.

    rankfall serve --samples URL sends them. DIR gets the files that rankfall serve --samples DIR writes. Messages are
    acknowledged after their records are on disk: the command can be killed and run again. With --follow it connects
    again if the broker was down. Messages that hold no records are counted, and kept in DIR/rejected.
    """
    with (
        interruptible(lambda: f"the same command continues {directory}"),
        Display() as display,
        stoppable(lambda: display.note("stopping; press Ctrl-C again to stop at once")) as stop,
    ):
        result = api.collect(url, directory, follow=follow, progress=display.show, on_notice=display.note, stop=stop)
    if as_json:
        print_json(result.to_json())
    else:
        typer.echo(
            f"{result.samples:,} samples and {result.events:,} events of {result.messages:,} messages; "
            f"repeated: {result.repeated:,}, rejected: {result.rejected:,}, missed: {result.missed:,}"
        )
    print_message(f"wrote to {directory}")
    if stop() and not follow:
        raise typer.Exit(128 + stop())  # the convention of shells
