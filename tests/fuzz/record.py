"""Plugin of pytest for the long mode: shares of the time, another order in each round, and a record of every property.

The record has one JSON object per line: ``{"property": name, "started": true}`` when a property starts, and its cases,
seconds and outcome when it ends. A property that starts and does not end has ended the process.
"""

from __future__ import annotations

import functools
import json
import math
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-record", metavar="FILE", help="append a record of every property to FILE")
    parser.addoption(
        "--fuzz-until", metavar="SECONDS", type=float, help="divide the time until then among the properties"
    )
    parser.addoption("--fuzz-order", metavar="SEED", type=int, help="seed of the order of the properties")
    parser.addoption("--fuzz-done", metavar="FILE", help="names of properties that ran before, one per line")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    files = sorted({item.path for item in items})  # their tests stay together, as they share fixtures
    random.Random(config.getoption("--fuzz-order")).shuffle(files)
    done = set(Path(config.getoption("--fuzz-done")).read_text().splitlines())  # the others come first
    items.sort(key=lambda item: (item.nodeid in done, files.index(item.path)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    left = item.config.getoption("--fuzz-until") - time.time()
    if left < 0:
        pytest.skip("the time is over")
    items = item.session.items
    if (function := getattr(item, "function", None)) is not None and hasattr(function, "hypothesis"):
        share = left / (len(items) - items.index(item))
        function.hypothesis.inner_test = _shared(function.hypothesis.inner_test, share)
    _append(item, started=True)


def _shared(check: Callable[..., None], seconds: float) -> Callable[..., None]:
    """Return a property that ends these seconds after its first case starts, except to make a failing case smaller.

    Its attribute `cases` is the number of cases that ran.
    """
    end, failed = math.inf, False

    @functools.wraps(check)
    def run(*arguments: Any, **named: Any) -> None:
        nonlocal end, failed
        end = min(end, time.monotonic() + seconds)
        run.__dict__["cases"] += 1
        try:
            check(*arguments, **named)
        except Exception:
            failed = True
            raise
        if time.monotonic() > end and not failed:
            pytest.skip("its share of the time is over")  # which ends the property

    run.__dict__["cases"] = 0
    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" or report.failed:
        _append(item, cases=_cases(item, report), seconds=report.duration, outcome=report.outcome)
    return report


def _cases(item: pytest.Item, report: pytest.TestReport) -> int:
    handle = getattr(getattr(item, "function", None), "hypothesis", None)
    ran = getattr(getattr(handle, "inner_test", None), "cases", None)
    return int(str(dict(report.user_properties).get("cases", 0) if ran is None else ran))


def _append(item: pytest.Item, **content: Any) -> None:
    with Path(item.config.getoption("--fuzz-record")).open("a") as file:
        file.write(json.dumps({"property": item.nodeid, **content}) + "\n")
