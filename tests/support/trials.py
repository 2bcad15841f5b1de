"""Parameters of tests that only `make test-all` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


def trial(*values: Any) -> ParameterSet:
    """Values of a parametrised test which `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.trial)
