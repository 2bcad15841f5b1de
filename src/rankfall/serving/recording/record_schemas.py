"""The columns of recorded samples and events.

A sample is one request. Requests that were not sampled have ``request``, ``time``, ``received`` and ``sampled`` only,
so that an event of a request that was never served can be told from an event of one that was not sampled.

=================  ======================  ===========================================================================
``request``        string                  the id of the request
``time``           timestamp[ms, UTC]      the time that the request gave, or that of its arrival
``received``       timestamp[ms, UTC]      the clock of the service when it answered
``sampled``        bool                    whether the other columns have values
``model``          string                  the model that answered, as in responses
``bundle``         string                  the directory of its bundle
``body``           string                  JSON of the request: its time, user, context and sequences
``item``           list of int64 or string everything that was answered, and draws of what each stage dropped
``stage``          list of int8            the stage that dropped the item, from 0; if it was answered, their number
``rank``           list of int32           its rank by that score, from 0; if it was answered, its place; -1: unknown
``score``          list of float32         its score by that stage; that of the last stage if it was answered
``inclusion``      list of float32         the probability with which the item was drawn; 1 if it was answered
=================  ======================  ===========================================================================

An event is something that a user did with an item of an answer:

=================  ======================  ===========================================================================
``id``             string                  the id of the event; an event with the id of an earlier one is a repetition
``request``        string                  the id of the request
``item``           string                  the id of the item; numbers in decimal notation
``kind``           string                  view, click, purchase or any other name
``value``          float64                 1 if the client gave none
``time``           timestamp[ms, UTC]      the time that the client gave, or that of its arrival
``received``       timestamp[ms, UTC]      the clock of the service when it wrote the record
=================  ======================  ===========================================================================
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

# kinds of records, and directories of their segments
SAMPLES: Final = "samples"
EVENTS: Final = "events"

_TIME = pa.timestamp("ms", "UTC")


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


def sample_schema(ids: pa.DataType) -> pa.Schema:
    """Return the columns of samples.

    Args:
        ids: The type of item ids, int64 or string.
    """
    return pa.schema(
        [
            _required("request", pa.string()),
            _required("time", _TIME),
            _required("received", _TIME),
            _required("sampled", pa.bool_()),
            pa.field("model", pa.string()),
            pa.field("bundle", pa.string()),
            pa.field("body", pa.string()),
            pa.field("item", _list(ids)),
            pa.field("stage", _list(pa.int8())),
            pa.field("rank", _list(pa.int32())),
            pa.field("score", _list(pa.float32())),
            pa.field("inclusion", _list(pa.float32())),
        ]
    )


EVENT_SCHEMA = pa.schema(
    [
        _required("id", pa.string()),
        _required("request", pa.string()),
        _required("item", pa.string()),
        _required("kind", pa.string()),
        _required("value", pa.float64()),
        _required("time", _TIME),
        _required("received", _TIME),
    ]
)
