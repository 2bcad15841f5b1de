"""A batch of impressions with the scores of all stages: what every measurement of a cascade reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rankfall.data.impressions.loader import Impressions

    ScoreBatch = Callable[[Impressions], "ScoredBatch"]


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """Impressions and the scores of their items by all stages, on the CPU.

    Lists that were measured over all items of a catalogue do not hold all of them: they hold the items that the first
    stage ranks best, at least as many as it keeps, and all relevant items. The funnel of such lists is exact, since no
    other item passes the first stage. Figures of a later stage alone are not.

    Attributes:
        batch: The impressions, with the lists that were scored.
        scores: Scores ``(B, N)`` of each stage.
        ranked: Number of items ``(B,)`` that the first stage ranked, including those that the lists do not hold.
        complete: Whether the lists hold every item that the first stage ranked.
    """

    batch: Impressions
    scores: Sequence[Tensor]
    ranked: Tensor
    complete: bool = True

    @classmethod
    def of_lists(cls, batch: Impressions, scores: Sequence[Tensor]) -> ScoredBatch:
        """Return a batch whose lists hold every item that was ranked."""
        return cls(batch, scores, batch.mask.sum(-1))
