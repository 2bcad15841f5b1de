"""How often users examine each position: curves estimated from a log, and the propensities that correct clicks.

Users click only what they look at, and they look at the first positions most. The position-based model writes the
probability of a click as examination of the position times attractiveness of the item. The estimators here separate the
two factors; ``docs/concepts/click-bias.md`` says what each of them assumes.
"""

from rankfall.examination.curve import ExaminationCurve, ExaminationPoint
from rankfall.examination.estimate import Method, estimate_examination
from rankfall.examination.shows import Shows, read_shows

__all__ = ["ExaminationCurve", "ExaminationPoint", "Method", "Shows", "estimate_examination", "read_shows"]
