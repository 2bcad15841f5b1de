"""Presets of simulated platforms: their size, the parts of relevance and the quality of the production models."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from rankfall._errors import RankfallError, did_you_mean


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the parts of the true relevance in its variance among the candidates of a request. They sum to 1.

    The first three together are a dot product of the vectors of user and item.
    """

    interest: float = 0.34  # the match of a user's interests and an item
    quality: float = 0.05  # of the item, for all users
    freshness: float = 0.02
    cross: float = 0.34  # matches of traits of user and request with traits of the item, each with a narrow peak
    history: float = 0.13  # recent views: items like them are preferred, until there are too many
    noise: float = 0.12  # of this user, item and request only

    def __post_init__(self) -> None:
        """Check that the shares are not negative and sum to 1."""
        shares = [getattr(self, field.name) for field in fields(self)]
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
            raise RankfallError(f"shares: found {shares}, expected numbers of at least 0 that sum to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The number of candidates that each channel of matching draws for a request; duplicates count once."""

    interest: int
    authors: int  # of videos the user viewed lately
    popular: int
    fresh: int
    random: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """The cascade that served the log, and how well its models know the parts of the true relevance."""

    channels: Channels
    prerank_keeps: int
    coarse_keeps: int
    rank_keeps: int  # items passed to mix-ranking
    logged: int  # logged items among those that each model drops; all items of mix-ranking are logged
    stale_noise: float = 0.8  # in the vectors of users and items that pre-ranking uses, whose own length is 1
    early_noise: float = 0.0  # deviation of independent noise in pre-ranking and in coarse ranking
    early_favour: float = 0.0  # what pre-ranking and coarse ranking add for one deviation of an item's quality
    rank_favour: float = 0.0  # the same of ranking, which is negative where ranking corrects the stages before it
    coarse_cross: float = 0.3  # the share of the cross part that coarse ranking knows
    rank_cross: float = 0.9
    rank_history: float = 0.9
    rank_noise: float = 0.5  # deviation; that of the true relevance is 1
    diversity: float = 0.25  # what mix-ranking subtracts for every better item of the same subcategory
    mix_noise: float = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The settings of a platform."""

    name: str
    layout: Literal["recflow", "industry"]  # of its log
    sample: tuple[int, ...]  # the sample size of each logged stage, first stage first
    days: int  # by default
    requests_per_day: int
    users: int
    births: int  # new items per day
    authors: int
    categories: int  # of the first level; each has `subcategories` of the second
    subcategories: int
    production: Production
    shares: Shares = Shares()


_RECFLOW = Preset(
    name="recflow-like",
    layout="recflow",
    sample=(10, 10, 10, 10),
    days=22,
    requests_per_day=3000,
    users=3000,
    births=2000,
    authors=2000,
    categories=16,
    subcategories=5,
    production=Production(
        channels=Channels(interest=160, authors=60, popular=60, fresh=60, random=60),
        prerank_keeps=200,
        coarse_keeps=110,
        rank_keeps=30,
        logged=25,
    ),
)
_NOISY = replace(
    _RECFLOW,
    name="recflow-noisy",
    production=replace(_RECFLOW.production, early_noise=3.2, early_favour=1.5, rank_favour=-3.0),
)
_TINY = replace(
    _RECFLOW,
    name="tiny",
    days=4,
    requests_per_day=500,
    users=500,
    births=200,
    authors=150,
    categories=8,
    production=Production(
        channels=Channels(interest=100, authors=30, popular=30, fresh=30, random=30),
        prerank_keeps=90,
        coarse_keeps=60,
        rank_keeps=25,
        logged=15,
    ),
)
_INDUSTRY = replace(
    _RECFLOW,
    name="industry-easy",
    layout="industry",
    sample=(4, 4, 2),
    days=8,
    production=Production(
        channels=_RECFLOW.production.channels,
        prerank_keeps=100,
        coarse_keeps=100,  # there is no coarse ranking: it drops nothing
        rank_keeps=20,
        logged=15,
    ),
)
# The platform of `rankfall demo --loop`. It has few items, whose quality is a large part of their relevance, so that a
# cascade that begins with some thousand requests learns more every day. `rankfall simulate` has no such preset.
LOOP = replace(
    _TINY,
    name="loop",
    requests_per_day=1000,
    users=200,
    births=40,
    authors=40,
    categories=4,
    subcategories=4,
    production=Production(
        channels=Channels(interest=60, authors=20, popular=20, fresh=20, random=20),
        prerank_keeps=55,
        coarse_keeps=40,
        rank_keeps=20,
        logged=10,
    ),
    shares=Shares(interest=0.45, quality=0.3, freshness=0.05, cross=0.08, history=0.02, noise=0.1),
)
PRESETS = {
    preset.name: preset
    for preset in (
        _TINY,
        _RECFLOW,
        replace(_RECFLOW, name="recflow-like-3", sample=(10, 10, 10, 10, 10)),
        _NOISY,
        replace(_NOISY, name="recflow-noisy-3", sample=(10, 10, 10, 10, 10)),
        _INDUSTRY,
        replace(
            _INDUSTRY,
            name="industry-hard",
            sample=(6, 10, 4),
            production=replace(_INDUSTRY.production, rank_keeps=40, rank_noise=0.7),
        ),
        replace(_RECFLOW, name="industry-cascade", sample=(5, 5, 8, 2)),  # LCRON, appendix B
    )
}


def preset_of(name: str) -> Preset:
    """Return the preset of that name.

    Raises:
        ValueError: If there is no such preset.
    """
    if name not in PRESETS:
        raise RankfallError(
            f"preset: found {name!r}{did_you_mean(name, PRESETS)}; the presets are {', '.join(PRESETS)}"
        )
    return PRESETS[name]
