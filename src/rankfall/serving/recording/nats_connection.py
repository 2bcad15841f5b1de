"""Connections to a stream of NATS JetStream."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from rankfall.serving.recording.record_schemas import EVENTS, SAMPLES
from rankfall.serving.recording.sinks.sink import SinkError

if TYPE_CHECKING:
    from rankfall.serving.recording.sinks.sink_url import BrokerUrl

PASSWORD = "RANKFALL_NATS_PASSWORD"
CONNECT_SECONDS = 3.0
_ATTEMPTS = 3  # a server that refuses a user may reset the connection before its reason is read
_PING_SECONDS = 5  # after two pings without an answer a connection is closed
# What the client raises: also ValueError and EOFError, if something else than NATS answers.
ERRORS = (nats.errors.Error, OSError, ValueError, EOFError)


def subject(url: BrokerUrl, kind: str) -> str:
    """Return the subject of the messages of a kind."""
    return f"{url.name}.{kind}"


async def connect(url: BrokerUrl) -> Client:
    """Return a connection to a server, on which the stream exists.

    A connection that is lost is closed and not restored: the caller knows at any time what was confirmed.

    Args:
        url: Servers and stream.

    Raises:
        SinkError: If no server can be reached, it refuses the user, or it has no JetStream.
    """
    asyncio.get_running_loop().set_exception_handler(_on_exception)
    attempts = 0
    while True:
        attempts += 1
        try:
            return await _connect_once(url)
        except ERRORS as error:
            if attempts == _ATTEMPTS or not isinstance(error, ConnectionResetError):
                raise SinkError(f"{url}: {explained(error)}") from None


async def _connect_once(url: BrokerUrl) -> Client:
    """Return a connection, or raise what the server or the client says is wrong."""
    client, problems = Client(), deque[Exception](maxlen=1)  # the last problem that the client reported
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await client.connect([f"nats://{server}" for server in url.servers], **_options(url, problems))
            await ensure_stream(client, url)
    except ERRORS as error:
        await client.close()
        raise (problems[0] if problems else error) from None
    return client


def _options(url: BrokerUrl, problems: deque[Exception]) -> dict[str, Any]:
    async def on_error(error: Exception) -> None:
        problems.append(error)

    return {
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": CONNECT_SECONDS,
        "ping_interval": _PING_SECONDS,
        "error_cb": on_error,
        "name": "rankfall",
        **_credentials(url),
    }


def _on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore the errors of connections that tasks of the client leave behind; the connection is closed then."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)


def _credentials(url: BrokerUrl) -> dict[str, str]:
    password = url.password or os.environ.get(PASSWORD)
    if url.user is None:
        return {}
    # A user without a password is a token, as in other clients of NATS.
    return {"user": url.user, "password": password} if password else {"token": url.user}


async def ensure_stream(client: Client, url: BrokerUrl) -> None:
    """Create the stream if it is missing: its messages stay until they are collected, and are never discarded before.

    Raises:
        SinkError: If there is a stream of that name for other subjects.
    """
    subjects = [subject(url, kind) for kind in (SAMPLES, EVENTS)]
    jetstream = client.jetstream(timeout=CONNECT_SECONDS)
    try:
        await jetstream.stream_info(url.name)
    except nats.js.errors.NotFoundError:
        await jetstream.add_stream(
            StreamConfig(
                name=url.name,
                subjects=subjects,
                storage=StorageType.FILE,
                retention=RetentionPolicy.WORK_QUEUE,
                discard=DiscardPolicy.NEW,
            )
        )
        return
    for one in subjects:
        try:
            found = await jetstream.find_stream_name_by_subject(one)
        except nats.js.errors.NotFoundError:
            found = None
        if found != url.name:
            raise SinkError(f"the stream {url.name} does not have the subject {one}")


def explained(error: Exception) -> str:
    """Return what an error of the client means."""
    if isinstance(error, nats.errors.NoRespondersError | nats.js.errors.ServiceUnavailableError):
        return "the server has no JetStream for this account"
    if isinstance(error, nats.js.errors.APIError):
        return f"the server answered: {error.description}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__
