"""The format of an impression log: its files, and the columns of impressions and items.

A directory has one part per day, and a part has one row per impression::

    DIR/manifest.json                       spec, stages, features, provenance
    DIR/items.arrow                         every item of the log with its newest features
    DIR/item_versions.arrow                 earlier features of items that changed, if there are any
    DIR/vocabularies/TABLE.arrow            the values of an embedding table; the first one has id 2
    DIR/days/2024-01-13/impressions.arrow   Arrow IPC, uncompressed, in blocks of 4,096 impressions
    DIR/days/2024-01-13/manifest.json       counts and checksum of the day; a day with a manifest is complete

The columns of an impression:

=========================  ===========================  =======================================================
``request``                int64 or string              the id of the request
``time``                   timestamp[ms, UTC]           the time of the request
``user.F``, ``context.F``  int32, float32 or a vector   feature F: the id of an embedding row, or a number
``sequence.S.F``           list of int32                feature F of the events of sequence S, oldest first
``item``                   list of int32                the candidates, in an order that carries no information
``item.F``                 list                         feature F of the candidates
``depth``                  list of int8                 the index of the deepest stage reached, -1: a random negative
``rank``                   list of int32                logged rank in that stage, smaller is better, -1: none
``relevance``              list of float32              above 0: relevant
``grade``                  list of int32                full-stage grade: deeper is better, then better ranked
``feedback.F``             list of float32              feedback F of the user
``position``               list of int32                place at which the item was shown, from 0, -1: not shown
``inclusion``              list of float32              probability with which the item was drawn, 1 without draws
``left_out``               list of int32                relevant items of the request that were not sampled, sorted
``truth``                  list of float32              true relevance, in simulated logs written with it
=========================  ===========================  =======================================================

Logs without shown positions have no column ``position``, logs without probabilities no column ``inclusion``, and logs
without true relevance no column ``truth``.

All lists of items of an impression have the same length, except ``left_out``, which is usually empty. Its items are
not candidates of the impression, but they must not be used as negatives either. Manifests are written last, and the
directory gets its name after that, so a log that looks complete is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from rankfall.data.impressions.spec import is_dense

if TYPE_CHECKING:
    from rankfall.data.impressions.spec import Dense, FeatureConfig, Spec

FORMAT = "rankfall impression log"
VERSION = 1
BLOCK = 4096  # impressions per record batch
IMPRESSIONS = "impressions.arrow"  # the file of a day
ITEMS = "items.arrow"  # the item table of a log
VERSIONS = "item_versions.arrow"  # earlier rows of the item table
UNTIL = "until"  # the column with the index of the last day whose requests see a version
VOCABULARIES = "vocabularies"  # the directory of the vocabularies of a log, and their key in its manifest
DAY_SEAL = "seal"  # key of the seal in the manifest of a day, whose key "sha256" is the checksum of its file

_IDS = pa.int32()
_NUMBERS = pa.float32()


def impression_schema(spec: Spec, *, request: pa.DataType) -> pa.Schema:
    """Return the columns of the impressions of a log.

    Args:
        spec: The description of the log.
        request: The type of request ids, int64 or string.
    """
    columns = [("request", request), ("time", pa.timestamp("ms", "UTC"))]
    for group, name, feature in spec.features:
        if group != "item":
            columns.append((f"{group}.{name}", _type_of(feature)))
    for name, sequence in spec.sequences.items():
        columns += [(f"sequence.{name}.{feature}", _list(_IDS)) for feature in sequence.features]
    columns.append(("item", _list(_IDS)))
    columns += [(f"item.{name}", _list(_type_of(feature))) for name, feature in spec.features.item.items()]
    columns += [("depth", _list(pa.int8())), ("rank", _list(pa.int32())), ("relevance", _list(_NUMBERS))]
    columns.append(("grade", _list(pa.int32())))
    columns += [(f"feedback.{name}", _list(_NUMBERS)) for name in spec.feedback]
    if spec.position is not None:
        columns.append(("position", _list(pa.int32())))
    if spec.inclusion is not None:
        columns.append(("inclusion", _list(_NUMBERS)))
    columns.append(("left_out", _list(_IDS)))
    if spec.truth is not None:
        columns.append(("truth", _list(_NUMBERS)))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def item_schema(spec: Spec, *, ids: pa.DataType | None = None) -> pa.Schema:
    """Return the columns of the item table.

    Args:
        spec: The description of the log.
        ids: The type of item ids in the source, if they are not int32 and need a column ``id``.
    """
    columns = [("item", _IDS)] + ([("id", ids)] if ids is not None else [])
    columns += [(f"item.{name}", _type_of(feature)) for name, feature in spec.features.item.items()]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def version_schema(spec: Spec) -> pa.Schema:
    """Return the columns of earlier versions of items."""
    return item_schema(spec).insert(0, pa.field(UNTIL, pa.int32(), nullable=False))


def _type_of(feature: FeatureConfig) -> pa.DataType:
    if not is_dense(feature):
        return _IDS
    size = _dense(feature).width
    return _NUMBERS if size == 1 else pa.list_(pa.field("value", _NUMBERS, nullable=False), size)


def _dense(feature: FeatureConfig) -> Dense:
    return feature  # type: ignore[return-value]  # is_dense was checked


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


# --- checks -----------------------------------------------------------------------------------------------------


def check_schema(found: pa.Schema, spec: Spec, where: str) -> None:
    """Check that impressions have exactly the columns of their log.

    Args:
        found: The schema of the impressions.
        spec: The description of the log.
        where: The prefix of the error message, usually the file.

    Raises:
        ValueError: If columns are missing, unexpected, of a wrong type or in another order.
    """
    request = found.field("request").type if "request" in found.names else None
    expected = impression_schema(spec, request=request if request == pa.string() else pa.int64())
    if found.equals(expected):
        return
    missing = [name for name in expected.names if name not in found.names]
    unexpected = [name for name in found.names if name not in expected.names]
    common = [name for name in expected.names if name in found.names]
    wrong = [
        f"{name} (found {found.field(name).type}, expected {expected.field(name).type})"
        for name in common
        if not found.field(name).equals(expected.field(name))
    ]
    problems = (("missing", missing), ("unexpected", unexpected), ("of a wrong type", wrong))
    listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in problems if names)
    raise ValueError(f"{where}: the columns do not match the spec of the log; {listed or 'their order differs'}")


def check_no_nulls(block: pa.RecordBatch, where: str) -> None:
    """Raise an error if a column has nulls, also inside of lists, which Arrow schemas do not check.

    Args:
        block: Impressions.
        where: The prefix of the error message.
    """
    for name, values in zip(block.schema.names, block.columns, strict=True):
        if _has_nulls(values):
            raise ValueError(f"{where}: column {name!r} has nulls, which no column may have")


def _has_nulls(values: pa.Array) -> bool:
    nested = pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type)
    return values.null_count > 0 or (nested and _has_nulls(values.flatten()))
