"""The description of RecFlow's logs, published or simulated: columns, stages, features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from rankfall.data.impressions.spec import validate_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from rankfall.data.impressions.spec import Spec

USER_IDS = ("user_id", "device_id", "age", "gender", "province")
ITEM_IDS = ("video_id", "author_id", "category_level_two", "category_level_one", "upload_type")
FEEDBACK = (
    "realshow",
    "effective_view",
    "long_view",
    "like",
    "follow",
    "forward",
    "comment",
    "playing_time",
)
FLAGS = ("rerank_pos", "rerank_neg", "rank_pos", "rank_neg", "coarse_neg", "prerank_neg")  # deepest first
STAGES: dict[int, tuple[str, ...]] = {
    2: ("prerank_neg", "coarse_neg", "rank_neg", "rank_pos"),
    3: ("prerank_neg", "coarse_neg", "rank_neg", "rerank_neg", "rerank_pos"),
}
HISTORY = "history"  # the sequence of effective views
HISTORY_LENGTH = 50
RANK = "rank"  # the column computed by `rank_expression`
POSITION = "position"  # the column computed by `position_expression`
TRUTH = "truth"  # the column of true relevance in simulated logs
ZONE = "Asia/Shanghai"
SAMPLE = 10  # items per stage in the published experiments

_UPLOAD = {"column": "upload_timestamp", "unit": "s"}
_PARTS = ("weekday", "hour", "minute")


def sequence_column(feature: str) -> str:
    """Return the column of lists with a feature of the events."""
    return f"sequence.{HISTORY}.{feature}"


def recflow_spec(
    id_counts: Mapping[str, int], *, stages: Literal[2, 3] = 2, sample: int | Sequence[int] | None = SAMPLE
) -> Spec:
    """Return the features and stages of the published experiments.

    As in the published models, request and upload share the embeddings of weekday, hour and minute.

    Args:
        id_counts: The number of ids of each of `USER_IDS` and `ITEM_IDS`.
        stages: The number of stages of the cascade.
        sample: The number of items sampled per stage: one for all stages or one for each, first stage first.
    """
    samples = sample if isinstance(sample, Sequence) else [sample] * len(STAGES[stages])
    ids = {name: {"kind": "categorical", "num_buckets": id_counts[name]} for name in (*USER_IDS, *ITEM_IDS)}
    times = {part: {"kind": "time", "part": part, "embedding": part} for part in _PARTS}
    content: dict[str, Any] = {
        "request": "request_id",
        "item": "video_id",
        "user": "user_id",
        "time": {"column": "request_timestamp", "unit": "ms", "zone": ZONE},
        "rank": RANK,
        "stages": [
            {"name": name, "flag": name, "sample": count} for name, count in zip(STAGES[stages], samples, strict=True)
        ],
        "relevant": STAGES[stages][-1],
        "feedback": list(FEEDBACK),
        "features": {
            "user": {name: ids[name] for name in USER_IDS},
            "context": times,
            "item": {
                **{name: ids[name] for name in ITEM_IDS},
                **{f"upload_{part}": {**times[part], **_UPLOAD} for part in _PARTS},
            },
        },
        "sequences": {
            HISTORY: {
                "max_length": HISTORY_LENGTH,
                "features": list(ITEM_IDS),
                "columns": {name: sequence_column(name) for name in ITEM_IDS},
            }
        },
    }
    return validate_spec(content)


def rank_expression(stages: Literal[2, 3]) -> pl.Expr:
    """Return the rank of an item in the deepest stage that ranked it, null if none did.

    RecFlow has one column of ranks per stage.
    """
    import polars as pl

    in_rank = (pl.col("rank_pos") > 0) | (pl.col("rank_neg") > 0)
    in_rerank = (pl.col("rerank_pos") > 0) | (pl.col("rerank_neg") > 0)
    rank = pl.when(in_rank).then(pl.col("rank_index")).otherwise(None)
    if stages == 3:
        rank = pl.when(in_rerank).then(pl.col("rerank_index")).otherwise(rank)
    return rank.alias(RANK)


def position_expression() -> pl.Expr:
    """Return the place at which an item was shown: its rank in mix-ranking if the user saw it, else null."""
    import polars as pl

    shown = pl.col("realshow").cast(pl.Float64).fill_nan(0) > 0
    return pl.when(shown & (pl.col("rerank_index") >= 0)).then(pl.col("rerank_index")).otherwise(None).alias(POSITION)
