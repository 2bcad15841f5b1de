"""The shown items of a log: positions, clicks and what describes their relevance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.spec import column_of
from rankfall.data.inspect.impression_blocks import flat, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import Day, ImpressionLog
    from rankfall.data.inspect.impression_blocks import ImpressionBlock

    Integers = NDArray[np.int64]

RANK, ITEM = "rank", "item"
FEW_VALUES = 128  # embedding rows up to which a feature describes relevance by default
VARIES = 0.01  # the smallest share of shows away from the usual position of their rank


@dataclass(frozen=True, slots=True)
class Shows:
    """Shown items, one per row."""

    position: Integers
    click: NDArray[np.bool_]
    request: Integers  # numbers from 0 on
    cluster: Integers  # the user, or the request if the log does not know users
    resampled: Literal["users", "requests"]
    values: dict[str, NDArray[Any]]  # what describes relevance, by name: ids (n,) or numbers (n, size)

    def __len__(self) -> int:
        """The number of shown items."""
        return len(self.position)

    @property
    def positions(self) -> int:
        """The number of positions."""
        return int(self.position.max(initial=-1)) + 1

    def where(self, chosen: NDArray[np.bool_]) -> Shows:
        """Return some of the shown items."""
        return replace(
            self,
            **{name: getattr(self, name)[chosen] for name in ("position", "click", "request", "cluster")},
            values={name: values[chosen] for name, values in self.values.items()},
        )


def read_shows(
    log: ImpressionLog,
    feedback: str,
    *,
    given: Iterable[str],
    days: Sequence[Day] | None = None,
    on_day: Callable[[str], None] = lambda day: None,
) -> Shows:
    """Read the shown items of a log.

    Args:
        log: A log with positions.
        feedback: The feedback that counts as a click where it is above 0.
        given: What describes the relevance of an item: ``rank`` (its logged stage and rank), ``item``, and features
            such as ``user.age`` and ``item.category``.
        days: Only these days of the log; by default all.
        on_day: Receives the name of each day that was read.

    Raises:
        ValueError: If the log has no positions, no such feedback or no such column, or if nothing was shown.
    """
    if log.spec.position is None:
        raise ValueError(
            f"{log.path} has no positions; prepare it with 'position: COLUMN' in its description, the place at which "
            "an item was shown"
        )
    _check_name("feedback", feedback, log.spec.feedback)
    allowed = [RANK, ITEM, *(f"{feature.group}.{feature.name}" for feature in log.features.features)]
    names = list(dict.fromkeys(given))
    for name in names:
        _check_name("given", name, allowed)
    user = _user_column(log)
    parts, before = [], 0
    for day in log.days.values() if days is None else days:
        for block, _ in read_blocks(day, log.spec):
            parts.append(_shows_of(block, feedback, names, user, before))
            before += len(block)
        on_day(day.name)
    if not any(map(len, parts)):
        raise ValueError(f"{log.path}: no item of these days has a position, so nothing was shown")
    return _joined(parts)


def default_given(log: ImpressionLog, *, few: bool) -> list[str]:
    """Return the names of what a log describes relevance by: all of it, or only what most logs have.

    Args:
        log: The log.
        few: Leave out features.
    """
    ranked = [RANK] if log.spec.rank is not None else []
    if few:
        return ranked or [ITEM]
    features = [feature for feature in log.features.features if feature.rows <= FEW_VALUES]
    return [*ranked, *(f"{feature.group}.{feature.name}" for feature in features)]


def varies(values: NDArray[Any], position: Integers) -> bool:
    """Return whether items with one value were shown at different positions."""
    _, number = np.unique(values, return_inverse=True)
    shape = int(number.max(initial=0)) + 1, int(position.max(initial=0)) + 1
    shows = np.bincount(number * shape[1] + position, minlength=shape[0] * shape[1]).reshape(shape)
    return bool(shows.max(axis=1).sum() < (1 - VARIES) * len(position))


def _check_name(what: str, name: str, allowed: Sequence[str]) -> None:
    if name not in allowed:
        expected = ", ".join(allowed) or "none: the log has no feedback"
        raise ValueError(f"{what}: found {name!r}{did_you_mean(name, allowed)}; allowed are {expected}")


def _user_column(log: ImpressionLog) -> str | None:
    """Return the column that has the id of the user, if a feature of the log is made of it."""
    features = log.spec.features.user
    return next(
        (f"user.{name}" for name in features if column_of(log.spec, name, features[name]) == log.spec.user), None
    )


def _shows_of(block: ImpressionBlock, feedback: str, given: list[str], user: str | None, before: int) -> Shows:
    """Return the shown items of a block; `before` impressions come before it."""
    position = block.values("position").astype(np.int64)
    shown = position >= 0
    owner = block.owner[shown]

    def value(name: str) -> NDArray[Any]:
        if name == RANK:
            ranks = block.values("rank").astype(np.int64)[shown]
            ids: Integers = block.values("depth").astype(np.int64)[shown] << 32 | (ranks + 1)
            return ids
        of_item = name == ITEM or name.startswith("item.")
        return block.values(name)[shown] if of_item else flat(block.batch[name])[owner]

    return Shows(
        position=position[shown],
        click=block.values(f"feedback.{feedback}")[shown] > 0,
        request=owner + before,
        cluster=owner + before if user is None else value(user).astype(np.int64),
        resampled="requests" if user is None else "users",
        values={name: value(name) for name in given},
    )


def _joined(parts: list[Shows]) -> Shows:
    return Shows(
        position=np.concatenate([part.position for part in parts]),
        click=np.concatenate([part.click for part in parts]),
        request=np.concatenate([part.request for part in parts]),
        cluster=np.concatenate([part.cluster for part in parts]),
        resampled=parts[0].resampled,
        values={name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values},
    )
