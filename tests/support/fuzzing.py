"""Generated cases: their number in the short and in the long mode, and the limits of a single case.

``make test`` runs every property with the profile "short": few cases, the same ones in every run, so that only a change
of the code changes the outcome. ``make fuzz`` runs them with the profile "long": more cases, from a new seed per round.
"""

from __future__ import annotations

import faulthandler
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT, LONG = "short", "long"
LONG_FACTOR = 10  # cases of a property in a round of the long mode, for each one of the short mode
CASE_SECONDS = 300  # a case that takes longer never ends, also on a busy machine
OPEN_CASES = "RANKFALL_FUZZ_CASES"  # environment variable: directory of cases that have not ended well


def register_profiles() -> None:
    """Register both profiles and choose the short one; ``--hypothesis-profile=long`` chooses the other."""
    settings.register_profile(SHORT, deadline=None, derandomize=True)  # a test may be slow on a busy machine
    settings.register_profile(LONG, deadline=None, print_blob=True)
    settings.load_profile(SHORT)


def is_long() -> bool:
    """Return whether the long mode runs."""
    return settings.get_current_profile_name() == LONG


def cases(short: int) -> settings:
    """Return settings with this number of cases in the short mode, and a multiple of it in the long mode."""
    return settings(
        max_examples=short * LONG_FACTOR if is_long() else short,
        phases=tuple(Phase)
        if is_long()
        else (Phase.explicit, Phase.generate),  # the long mode makes failing cases small
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )


@contextmanager
def one_case(name: str, content: bytes) -> Iterator[None]:
    """Context of one case: it ends the process if the case never ends, and keeps the case if it does not end well.

    Hypothesis repeats the smallest failing case last, so that this is the one that remains in the directory. If the
    process dies, the case that ended it remains.

    Args:
        name: The kind of the case, a directory of the corpus.
        content: The case, as a file of the corpus holds it.
    """
    kept = Path(os.environ[OPEN_CASES]) / name if OPEN_CASES in os.environ else None
    if kept is not None:
        kept.write_bytes(content)
    faulthandler.dump_traceback_later(CASE_SECONDS, exit=True, file=2)  # standard error, also if pytest captures it
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
    if kept is not None:
        kept.unlink()
