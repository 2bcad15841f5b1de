"""``rankfall serve``: serve a bundle over HTTP."""

from __future__ import annotations

import os
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from rankfall._errors import RankfallError
from rankfall.api.records import milliseconds
from rankfall.commands.terminal import print_message, requires_extra, with_examples

TOKEN = "RANKFALL_TOKEN"
MAX_COUNT = 10_000  # of --sample-items
TIME_WINDOW = "1d"


class Clock(StrEnum):
    """The clock of the records."""

    wall = "wall"
    requests = "requests"


@with_examples(
    "rankfall serve bundle",
    "rankfall serve bundles --watch --token-file token --workers 4",
    "rankfall serve bundle --other candidate --port 9000",
    "rankfall serve bundles --watch --samples recorded --sample-share 0.1 --sample-items 20,10",
)
def serve(
    bundle: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE",
            help="A bundle, or a directory of bundles; the newest is served.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 8080,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Number of processes.")] = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Number of batches that a process computes in parallel.",
            show_default="a share of the cores, at most 4",
        ),
    ] = None,
    other: Annotated[
        Path | None, typer.Option(metavar="BUNDLE2", help="A second bundle for comparison.", show_default=False)
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Reload the bundle when it is replaced or a newer one appears.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that POST /reload requires.", show_default=f"the variable {TOKEN}"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Maximum number of requests per batch.")] = 32,
    queue: Annotated[
        int, typer.Option(min=1, max=10_000, help="Maximum queue length; further requests are refused.")
    ] = 256,
    deadline: Annotated[
        int, typer.Option(min=1, max=60_000, help="Default deadline of a request in milliseconds.")
    ] = 1000,
    drain: Annotated[
        int,
        typer.Option(
            min=0, max=3600, help="Seconds after SIGTERM in which /ready returns 503 and requests are still accepted."
        ),
    ] = 0,
    keep_alive: Annotated[
        int, typer.Option(min=1, max=3600, help="Seconds after which an idle connection is closed.")
    ] = 75,
    max_body: Annotated[
        int, typer.Option(min=100, max=1_000_000_000, help="Maximum size of a request body in bytes.")
    ] = 1_000_000,
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Record samples of requests and the events of POST /events here, a directory or the URL of a broker.",
            show_default=False,
        ),
    ] = None,
    sample_share: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Share of requests that are sampled.", show_default="1"),
    ] = None,
    sample_items: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Number of items drawn from what each stage dropped, one for all stages or for each.",
            show_default="10",
        ),
    ] = None,
    time_window: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Requests whose time differs by more than this from the clock are not sampled; 0: any time.",
            show_default=f"{TIME_WINDOW}, and any time with --clock requests",
        ),
    ] = None,
    clock: Annotated[
        Clock | None,
        typer.Option(
            help="Clock of the records; requests: the largest time of a request so far, for replays.",
            show_default=Clock.wall.value,
        ),
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Do not serve the page, /score and /examples.")] = False,
) -> None:
    """Serve a bundle over HTTP.

    POST /rank ranks items; the page at / shows the funnel of a request. Requests that arrive at the same time are
    computed in one batch. If too many requests wait, further ones are refused with 503 at once. No request waits longer
    than its deadline. POST /reload and --watch replace the bundle without interrupting requests.
    """
    with requires_extra("serve", "serve"):
        import rankfall.serving.service.app  # noqa: F401 (report a missing package before loading the bundle)
        from rankfall.serving.service.run_service import serve as run
        from rankfall.serving.service.settings import Settings, default_threads

    recording = {"sample_share": sample_share, "sample_items": sample_items, "time_window": time_window, "clock": clock}
    for name, value in recording.items():
        if samples is None and value is not None:
            raise RankfallError(f"{name.replace('_', '-')}: found without --samples, so that nothing is recorded")
    if clock == Clock.requests and workers > 1:
        raise RankfallError(
            "clock: found requests with several workers, each of which has its own clock; use --workers 1"
        )
    window = time_window or ("0" if clock == Clock.requests else TIME_WINDOW)
    token = _token(token_file)
    print_message("loading the bundle")
    settings = Settings(
        bundle,
        other=other,
        threads=threads or default_threads(workers),
        watch=watch,
        token=token,
        batch=batch,
        queue=queue,
        deadline=deadline,
        drain=drain,
        keep_alive=keep_alive,
        max_body=max_body,
        page=not no_page,
        local=_is_loopback(host),
        samples=samples,
        sample_share=1.0 if sample_share is None else sample_share,
        sample_items=_counts(sample_items or "10"),
        time_window=milliseconds("time-window", window) or None,
        clock=(clock or Clock.wall).value,
    )
    if not _is_loopback(host):
        _warn_of_exposure(host, token, not no_page)
    run(
        settings,
        host=host,
        port=port,
        workers=workers,
        on_start=lambda address, served: typer.echo(f"{address} serves {served}"),
    )


def _counts(text: str) -> tuple[int, ...]:
    """Return the numbers of items to draw per stage."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 and int(part) <= MAX_COUNT for part in parts):
        expected = f"whole numbers from 0 to {MAX_COUNT:,}, such as 10,5"
        raise RankfallError(f"sample-items: found {text[:60]!r}, expected {expected}")
    return tuple(map(int, parts))


def _token(file: Path | None) -> str | None:
    """Return the token for POST /reload, or None."""
    if file is None:
        text, where = os.environ.get(TOKEN), TOKEN
    else:
        text, where = _read(file), f"token-file: {file}"
    if text is None:
        return None
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise RankfallError(f"{where}: found no valid token, expected printable ASCII without spaces")
    return token


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(f"token-file: {file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise RankfallError(f"token-file: {file} is not a text file") from None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _warn_of_exposure(host: str, token: str | None, has_page: bool) -> None:
    print_message(
        f"note: anyone who can reach {host} can send requests; put a proxy with authentication in front of the service"
    )
    if has_page:
        print_message("note: /examples and /docs show requests of real users from the bundle; --no-page hides them")
    if token is None:
        print_message("note: POST /reload is disabled, because there is no token")
