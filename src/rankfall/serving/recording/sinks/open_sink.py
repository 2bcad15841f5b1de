"""Sinks by their names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankfall.serving.recording.sinks.file_sink import FileSink
from rankfall.serving.recording.sinks.sink_url import BrokerUrl, parse_sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankfall.serving.recording.sinks.sink import Sink


def open_sink(target: str) -> Sink:
    """Return the sink that a directory or URL names.

    Servers are connected to in the background, so that a service can start while its broker is down;
    :meth:`Sink.check` reports whether there is a connection.

    Raises:
        ValueError: If it names none, or the package of the broker is not installed.
        OSError: If a directory cannot be created.
    """
    place = parse_sink(target)
    if not isinstance(place, BrokerUrl):
        return FileSink(place)
    with requires_extra(place.scheme):
        if place.scheme == "nats":
            from rankfall.serving.recording.sinks.nats_sink import NatsSink

            return NatsSink(place)
        from rankfall.serving.recording.sinks.kafka_sink import KafkaSink

        return KafkaSink(place)


@contextmanager
def requires_extra(scheme: str) -> Iterator[None]:
    """Turn a failed import of the package of a broker into an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{scheme}:// needs {error.name}, which is not installed: pip install 'rankfall[{scheme}]'"
        ) from None
