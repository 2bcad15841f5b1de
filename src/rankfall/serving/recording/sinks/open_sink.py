"""Sinks by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.serving.recording.sinks.files import FileSink
from rankfall.serving.recording.sinks.sink_url import BrokerUrl, parse_sink

if TYPE_CHECKING:
    from rankfall.serving.recording.sinks.sink import Sink


def open_sink(target: str) -> Sink:
    """Return the sink that a directory or URL names.

    Servers are connected to in the background, so that a service starts while its broker is down; call
    :meth:`Sink.check` to be told.

    Raises:
        ValueError: If it names none, or the package of the broker is not installed.
        OSError: If a directory cannot be created.
    """
    place = parse_sink(target)
    if isinstance(place, BrokerUrl):
        raise ValueError(f"sink: {place.scheme} is not available")
    return FileSink(place)
