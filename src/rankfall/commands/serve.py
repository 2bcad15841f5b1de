"""``rankfall serve``: a bundle as an HTTP service."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from rankfall.commands.terminal import examples, needing, say

EXAMPLES = examples(
    "rankfall serve bundle",
    "rankfall serve bundles --watch --token-file token --workers 4",
    "rankfall serve bundle --other candidate --port 9000",
)
TOKEN = "RANKFALL_TOKEN"


def serve(
    bundle: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE",
            help="A bundle, or a directory of bundles, of which the newest is served.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 is any that is free.")] = 8080,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes.")] = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Batches that a process computes at the same time.",
            show_default="a share of the cores, at most 4",
        ),
    ] = None,
    other: Annotated[
        Path | None, typer.Option(metavar="BUNDLE2", help="A second bundle, to compare with.", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Take bundles that are replaced, or newer.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token of administrators.", show_default=f"the variable {TOKEN}"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Requests that are computed together, at most.")] = 32,
    queue: Annotated[int, typer.Option(min=1, max=10_000, help="Requests that may wait; others are refused.")] = 256,
    deadline: Annotated[int, typer.Option(min=1, max=60_000, help="Milliseconds that a request may take.")] = 1000,
    drain: Annotated[
        int, typer.Option(min=0, max=3600, help="Seconds after SIGTERM in which /ready is 503 but requests are taken.")
    ] = 0,
    keep_alive: Annotated[int, typer.Option(min=1, max=3600, help="Seconds that a connection may be idle.")] = 75,
    max_body: Annotated[
        int, typer.Option(min=100, max=1_000_000_000, help="Bytes that a request may have.")
    ] = 1_000_000,
    no_page: Annotated[bool, typer.Option("--no-page", help="Leave out the page, /score and /examples.")] = False,
) -> None:
    """Answer requests over HTTP with a bundle: POST /rank, and a page at / that shows the funnel of a request.

    Requests that come at the same time are computed together. When too many wait, others are refused at once with 503;
    none waits longer than its deadline. POST /reload, or --watch, replaces the bundle while requests go on.
    """
    with needing("serve", "serve"):
        import rankfall.serving.service.app  # noqa: F401 (what it needs must be there, too, before anything begins)
        from rankfall.serving.service.run_service import serve as run
        from rankfall.serving.service.settings import Settings, share_of_cores

    token = _token(token_file)
    say("loading the bundle")
    settings = Settings(
        bundle,
        other=other,
        threads=threads or share_of_cores(workers),
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
    )
    if not _is_loopback(host):
        _warn_of_open_doors(host, token, not no_page)
    run(
        settings,
        host=host,
        port=port,
        workers=workers,
        on_start=lambda address, served: typer.echo(f"{address} serves {served}"),
    )


def _token(file: Path | None) -> str | None:
    """The token of administrators, if there is one."""
    if file is None:
        text, where = os.environ.get(TOKEN), TOKEN
    else:
        text, where = _read(file), f"token-file: {file}"
    if text is None:
        return None
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{where}: found nothing that can be a token, expected printable ASCII without spaces")
    return token


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(f"token-file: {file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"token-file: {file} is no text") from None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _warn_of_open_doors(host: str, token: str | None, has_page: bool) -> None:
    say(f"note: everybody who reaches {host} may ask; put it behind something that knows its callers")
    if has_page:
        say("note: /examples and /docs show requests of the bundle, which are real users'; --no-page hides them")
    if token is None:
        say("note: there is no token, so that nobody may POST /reload")
