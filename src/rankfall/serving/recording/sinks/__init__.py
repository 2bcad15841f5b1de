"""Sinks: where a service writes samples and events.

==============================  ======================================================================================
``DIR``, ``file:///DIR``        segments in DIR/samples and DIR/events
``nats://HOST:PORT/STREAM``     a stream of NATS JetStream; ``rankfall collect`` makes segments of it
``kafka://HOST:PORT/TOPIC``     a topic of Kafka; ``rankfall collect`` makes segments of it
==============================  ======================================================================================
"""

from rankfall.serving.recording.sinks.open_sink import open_sink
from rankfall.serving.recording.sinks.sink import Kind, Sink, SinkError

__all__ = ["Kind", "Sink", "SinkError", "open_sink"]
