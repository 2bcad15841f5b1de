"""Samples as records: what a service knows of an answered request, and the Arrow batches of several of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from rankfall.serving.drawing import draw_samples
from rankfall.serving.encoded_requests import NO_ITEM
from rankfall.serving.recording.record_schemas import sample_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankfall.serving.bundle import Bundle
    from rankfall.serving.drawing import Sample
    from rankfall.serving.trails import Trail

_BODY = ("time", "user", "context", "sequences")


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """An answered request.

    Args:
        request: Its id.
        time: Its time in milliseconds since 1970.
        received: The clock of the service when it was answered. Events of the request are received later, so that no
            limit of a day separates them from a sample that is written after them.
        model: The model that answered.
        bundle: The bundle of the model.
        features: Time, user, context and sequences as the client sent them.
        trail: What the stages did with it; None if it is not sampled.
        seed: A random number for its draws.
        size: Bytes of its body.
    """

    request: str
    time: int
    received: int
    model: str
    bundle: Bundle
    features: dict[str, Any]
    trail: Trail | None
    seed: int
    size: int

    @property
    def memory(self) -> int:
        """About the number of bytes that it takes in memory."""
        return self.size + (0 if self.trail is None else self.trail.trails.bytes_each)


def sample_batches(served: Sequence[ServedRequest], counts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Draw samples and yield the records of answered requests; those of one bundle in a row are one batch.

    Args:
        served: The requests.
        counts: Number of items to draw from what each stage dropped.
    """
    for _, of_bundle in groupby(served, key=lambda one: id(one.bundle)):
        requests = list(of_bundle)
        yield _batch(requests, _samples(requests, counts))


def _samples(served: Sequence[ServedRequest], counts: Sequence[int]) -> list[Sample | None]:
    given = [(one.trail, one.seed) for one in served if one.trail is not None]
    drawn = iter(draw_samples([trail for trail, _ in given], np.array([seed for _, seed in given], np.uint64), counts))
    return [None if one.trail is None else next(drawn) for one in served]


def _batch(served: Sequence[ServedRequest], samples: Sequence[Sample | None]) -> pa.RecordBatch:
    bundle = served[0].bundle
    schema = sample_schema(pa.string() if bundle.items.lookup.is_text else pa.int64())
    model, path = served[0].model, str(bundle.path.resolve())
    is_sampled = [sample is not None for sample in samples]
    columns = {
        "request": [one.request for one in served],
        "time": [one.time for one in served],
        "received": [one.received for one in served],
        "sampled": is_sampled,
        "model": [model if sampled else None for sampled in is_sampled],
        "bundle": [path if sampled else None for sampled in is_sampled],
        "body": [_body(one.features) if sampled else None for one, sampled in zip(served, is_sampled, strict=True)],
    }
    arrays = [pa.array(values, schema.field(name).type) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays([*arrays, *_lists(samples, bundle, schema)], schema=schema)


def _lists(samples: Sequence[Sample | None], bundle: Bundle, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of items, which are null for requests without a sample."""
    given = [sample for sample in samples if sample is not None]
    has_item = [sample.rows != NO_ITEM for sample in given]
    counts = iter([int(np.count_nonzero(has)) for has in has_item])
    lengths = [0 if sample is None else next(counts) for sample in samples]
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    is_null = pa.array([sample is None for sample in samples])

    def column(name: str, of_samples: str) -> pa.Array:
        kind = schema.field(name).type
        parts = [getattr(sample, of_samples)[has] for sample, has in zip(given, has_item, strict=True)]
        values = np.concatenate(parts) if parts else np.empty(0, np.int64)
        found = bundle.items.id_array(values) if name == "item" else pa.array(values)
        return pa.ListArray.from_arrays(offsets, found.cast(kind.value_type), type=kind, mask=is_null)

    names = {"item": "rows", "stage": "stages", "rank": "ranks", "score": "scores", "inclusion": "inclusion"}
    return [column(name, of_samples) for name, of_samples in names.items()]


def _body(features: dict[str, Any]) -> str:
    """Return a request as canonical JSON: sorted keys, no spaces."""
    given = {key: features[key] for key in _BODY if features.get(key) is not None}
    return orjson.dumps(given, option=orjson.OPT_SORT_KEYS).decode()
