"""Every public function is compared with an independent reference (a witness)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rankfall import data, losses, metrics, objectives, ops
from rankfall.commands.methods import METHODS, find_methods

if TYPE_CHECKING:
    from collections import Counter

    from rankfall.register import Kind


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_has_a_witness(kind: Kind, witnesses: dict[str, Counter[str]]) -> None:
    without = [method.name for method in find_methods(kind) if not witnesses.get(method.name)]
    assert without == []


def test_every_witness_refers_to_a_public_name(witnesses: dict[str, Counter[str]]) -> None:
    public = {*ops.__all__, *losses.__all__, *objectives.__all__, *metrics.__all__, *data.__all__}
    assert set(witnesses) - public == set()
