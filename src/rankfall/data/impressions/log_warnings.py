"""Warnings about a log that was prepared, from the counts in its manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.data.impressions.log import PER_REQUEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WORTH_A_WARNING = 0.01  # share of ids never seen
WITHOUT_THEM = "leave them out of the models (`only`), or make them features of the context"


def log_warnings(about: Mapping[str, Any]) -> list[str]:
    """Return what a user has to know about a log.

    Args:
        about: The section `about` of the manifest.
    """
    return [*_count_warnings(about["counts"]), *_source_warnings(about)]


def share(count: int, of: int) -> str:
    """Return a count and its share as text.

    >>> share(3, 12), share(0, 12)
    ('3 (25.00%)', '0')
    """
    return f"{count:,} ({count / of:.2%})" if count else "0"


def depends_on_request(features: Sequence[str]) -> str:
    """Return the statement that item features depend on the request.

    >>> depends_on_request(["item.distance"]), depends_on_request(["item.a", "item.b", "item.c", "item.d"])
    ('item.distance depends on the request', 'item.a, item.b and 2 others depend on the request')
    """
    if len(features) == 1:
        return f"{features[0]} depends on the request"
    shown = ", ".join(features) if len(features) < 4 else f"{', '.join(features[:2])} and {len(features) - 2} others"
    return f"{shown} depend on the request"


def _count_warnings(counts: Mapping[str, Any]) -> Iterator[str]:
    requests = counts["requests"]
    for name, unseen in counts["unseen"].items():
        if unseen >= WORTH_A_WARNING * (values := counts["values"][name]):
            yield f"{name}: {share(unseen, values)} ids were never seen on the days of the fit"
    if without := counts["without_relevant"]:
        yield f"{share(without, requests)} impressions have no relevant item"
    for stage, short in counts["short"].items():
        if short:
            yield f"stage {stage}: {share(short, requests)} impressions have fewer items than the sample"
    for stage, logged in counts["logged"].items():
        if not logged:
            yield f"stage {stage}: the log has no items of it"


def _source_warnings(about: Mapping[str, Any]) -> Iterator[str]:
    if features := about.get(PER_REQUEST):
        yield (
            f"{depends_on_request(features)}: lists cannot be extended by other items (data.negatives, data.length). "
            "What production decided, such as a position, is no feature: a model would see the answer in it"
        )
    for source in about["sources"]:
        if source["rows"] == 0:
            yield f"{source['path']} has no rows"
    if days := about.get("empty_days"):
        yield f"the log has no rows on {', '.join(days[:5])}{' and other days' if len(days) > 5 else ''}"
    for table, unknown in about.get("unknown", {}).items():
        if unknown:
            yield f"{unknown:,} {table} of the log are not in the table of {table}; its columns are missing for them"
    if unused := about.get("unused_requests"):
        yield f"{unused:,} requests of the table of requests are not in the log"
