"""``rankfall serve``: serve a bundle over HTTP."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

import typer
from annotated_types import Ge, Le

from rankfall._errors import RankfallError
from rankfall.api.serving import milliseconds
from rankfall.commands.terminal import print_message, requires_extra
from rankfall.commands.verb import command
from rankfall.option_types import Fraction

TOKEN = "RANKFALL_TOKEN"
MAX_COUNT = 10_000  # of --sample-items


@command(
    bundle={"argument": "BUNDLE"},
    other={"metavar": "BUNDLE2"},
    samples={"metavar": "DIR"},
    sample_items={"metavar": "N[,N...]"},
    time_window={"metavar": "DURATION"},
)
def serve(
    bundle: Path,
    host: str = "127.0.0.1",
    port: Annotated[int, Ge(0), Le(65535)] = 8080,
    workers: Annotated[int, Ge(1), Le(256)] = 1,
    threads: Annotated[int, Ge(1), Le(256)] | None = None,
    other: Path | None = None,
    watch: bool = False,
    token_file: Path | None = None,
    batch: Annotated[int, Ge(1), Le(4096)] = 32,
    queue: Annotated[int, Ge(1), Le(10_000)] = 256,
    deadline: Annotated[int, Ge(1), Le(60_000)] = 1000,
    drain: Annotated[int, Ge(0), Le(3600)] = 0,
    keep_alive: Annotated[int, Ge(1), Le(3600)] = 75,
    max_body: Annotated[int, Ge(100), Le(1_000_000_000)] = 1_000_000,
    samples: str | None = None,
    sample_share: Fraction | None = None,
    sample_items: str | None = None,
    time_window: str | None = None,
    clock: Literal["wall", "requests"] | None = None,
    page: bool = True,
) -> None:
    """Serve a bundle over HTTP.

    POST /rank ranks items; the page at / shows the funnel of a request. Requests that arrive at the same time are
    computed in one batch. If too many requests wait, further ones are refused with 503 at once. No request waits longer
    than its deadline. POST /reload and --watch replace the bundle without interrupting requests.

    Options:
        bundle: A bundle, or a directory of bundles; the newest is served.
        host: Address to listen on; 0.0.0.0 for all addresses of this machine.
        port: Port to listen on; 0 for any free port.
        workers: Number of processes.
        threads: Number of batches that a process computes in parallel. Default: a share of the cores, at most 4.
        other: A second bundle for comparison.
        watch: Reload the bundle when it is replaced or a newer one appears.
        token_file: File with the token that POST /reload requires. Default: the variable RANKFALL_TOKEN.
        batch: Maximum number of requests per batch.
        queue: Maximum queue length; further requests are refused.
        deadline: Default deadline of a request in milliseconds.
        drain: Seconds after SIGTERM in which /ready returns 503 and requests are still accepted.
        keep_alive: Seconds after which an idle connection is closed.
        max_body: Maximum size of a request body in bytes.
        samples: Record samples of requests and the events of POST /events here, a directory or the URL of a broker.
        sample_share: Share of requests that are sampled. Default: 1.
        sample_items: Number of items drawn from what each stage dropped, one for all stages or for each. Default: 10.
        time_window: Requests whose time differs by more than this from the clock are not sampled; 0: any time. Default:
            1d, and any time with --clock requests.
        clock: Clock of the records; requests: the largest time of a request so far, for replays. Default: wall.
        page: Do not serve the page, /score and /examples.

    Examples:
        rankfall serve bundle
        rankfall serve bundles --watch --token-file token --workers 4
        rankfall serve bundle --other candidate --port 9000
        rankfall serve bundles --watch --samples recorded --sample-share 0.1 --sample-items 20,10
    """
    with requires_extra("serve", "serve"):
        import rankfall.serving.service.app  # noqa: F401 (report a missing package before loading the bundle)
        from rankfall.serving.service.run_service import serve as run
        from rankfall.serving.service.settings import Settings, default_threads

    recording = {"sample_share": sample_share, "sample_items": sample_items, "time_window": time_window, "clock": clock}
    for name, value in recording.items():
        if samples is None and value is not None:
            raise RankfallError(f"{name.replace('_', '-')}: requires --samples")
    if clock == "requests" and workers > 1:
        raise RankfallError(
            "clock: found requests with several workers, each of which has its own clock; use --workers 1"
        )
    window = time_window or ("0" if clock == "requests" else "1d")
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
        page=page,
        local=_is_loopback(host),
        samples=samples,
        sample_share=1.0 if sample_share is None else sample_share,
        sample_items=_counts(sample_items or "10"),
        time_window=milliseconds("time-window", window) or None,
        clock=clock or "wall",
    )
    if not _is_loopback(host):
        _warn_of_exposure(host, token, page)
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
