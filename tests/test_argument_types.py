"""Public functions of the API, of data and of bundles, and `Ranker`, with values that nobody should pass.

A call succeeds, or an error of the usual types names the argument or the file. Each argument of each function receives
each hostile value while all others have ordinary ones.
"""

from __future__ import annotations

import inspect
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rankfall as rf
from rankfall import serving
from rankfall._errors import checked
from support.bundles import platform_bundle
from support.services import requests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOSTILE: dict[str, Any] = {
    "nothing": None,
    "an integer": -1,
    "a huge integer": 10**30,
    "not a number": math.nan,
    "a complex number": 1j,
    "a NUL character": "\0",
    "bytes": b"bytes",
    "an empty list": [],
    "a list of nothing": [None],
    "a dictionary": {1: 2},
    "an object": object(),
    "a class": int,
    "an array": np.array([]),
    "a function": lambda: None,
}
FAILS: dict[str, dict[str, Any]] = {  # functions of the API, with arguments for which they soon find a missing file
    "clean": {"directories": "missing"},
    "collect": {"url": "missing", "out": "out"},
    "compare": {"config": "missing.yaml", "out": "out"},
    "diagnose": {"run": "missing"},
    "evaluate": {"run": "missing"},
    "export": {"run": "missing", "out": "out"},
    "join": {"directory": "missing", "out": "out", "spec": "missing.yaml"},
    "plan": {"run": "missing"},
    "prepare": {"source": "missing", "out": "out", "layout": "recflow"},
    "report": {"directory": "missing"},
    "reproduce": {"name": "missing"},
    "simulate": {"out": "out", "preset": "missing"},
    "stream": {"config": "missing.yaml", "out": "out"},
    "train": {"config": "missing.yaml", "out": "out"},
    "tune": {"config": "missing.yaml", "out": "out"},
}


def refusal(call: Callable[[], Any], *names: str) -> str | None:
    """Return what is wrong with how a call ends, or None."""
    try:
        call()
    except (ValueError, TypeError, OSError) as error:
        text = str(error)
        return None if any(name in text for name in names) else f"{type(error).__name__} without a name: {text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("name", FAILS)
def test_functions_of_the_api(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(rf, name)
    quiet = {"progress": False} if "progress" in inspect.signature(function).parameters else {}
    wrong = []
    for argument, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        for what, value in HOSTILE.items():
            if callable(value) and argument in ("progress", "on_notice", "on_day", "stop"):
                continue
            arguments = {**quiet, **FAILS[name], argument: value}
            given = (arguments.pop("directories"),) if "directories" in arguments else ()
            call = lambda given=given, arguments=arguments: function(*given, **arguments)  # noqa: E731
            problem = refusal(call, f"{argument}:", "missing", f"{argument}=", f"'{argument}'", "unknown")
            wrong += [f"{argument} is {what}: {problem}"] if problem else []
    assert wrong == []
    assert os.listdir(tmp_path) == []  # nothing was written


def test_api_is_complete() -> None:
    functions = {name for name in rf.api.__all__ if inspect.isfunction(getattr(rf.api, name))}
    assert functions == set(FAILS)


def test_data_and_bundles(log: Path, data: Path) -> None:
    lists, opened = rf.data.RankingData.load(data), rf.data.ImpressionLog.load(log)
    bundle = serving.Bundle.load(platform_bundle())
    day = next(iter(opened.days))
    calls: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "ImpressionLog.load": (rf.data.ImpressionLog.load, {"path": log, "verify": False}),
        "ImpressionLog.choose": (opened.choose, {"names": [day]}),
        "ImpressionLog.vocabulary": (opened.vocabulary, {"table": "missing"}),
        "ImpressionLoader": (
            rf.data.ImpressionLoader,
            {"log": opened, "days": [day], "batch": 4, "seed": 0, "window": 8, "negatives": 0, "prefetch": 0}
            | {"rank": 0, "world": 1, "shuffle": True, "drop_last": False},
        ),
        "RankingData.load": (rf.data.RankingData.load, {"path": data, "verify": False}),
        "RankingData.scaling": (lists.scaling, {"train": list(lists.manifest["splits"])[:1]}),
        "Moments.of": (rf.data.Moments.of, {"features": np.ones((2, 3))}),
        "Bundle.load": (serving.Bundle.load, {"path": platform_bundle(), "threads": 1, "shared": None}),
        "Bundle.rank": (bundle.rank, {"requests": requests()[0], "k": 1, "candidates": None, "exclude": None}),
        "Bundle.score": (bundle.score, {"requests": requests()[0], "candidates": [1]}),
    }
    wrong = []
    for name, (function, ordinary) in calls.items():
        function(**ordinary) if name != "ImpressionLog.vocabulary" else None
        for argument in ordinary:
            for what, value in HOSTILE.items():
                call = lambda function=function, arguments={**ordinary, argument: value}: function(**arguments)  # noqa: E731
                problem = refusal(call, argument, argument.removesuffix("s"), "path:", "days:", "split:")
                wrong += [f"{name}, {argument} is {what}: {problem}"] if problem else []
    assert wrong == []


def test_ranker() -> None:
    draw = np.random.default_rng(0)
    features, labels, groups = draw.random((8, 2)), draw.integers(0, 3, 8), [4, 4]
    wrong = []
    for argument in inspect.signature(rf.Ranker).parameters:
        if argument in ("loss", "compile", "verbose"):  # a function is a loss; compiling takes seconds; truth values
            continue
        for what, value in HOSTILE.items():

            def call(argument: str = argument, value: Any = value) -> object:
                return rf.Ranker(**{"epochs": 1, "patience": None, argument: value}).fit(features, labels, groups)

            problem = refusal(call, argument)
            wrong += [f"{argument} is {what}: {problem}"] if problem else []
    assert wrong == []


def test_arguments_of_unknown_types_are_not_checked() -> None:
    @checked
    def function(one: complex | None, two: int = 0) -> tuple[complex | None, int]:
        return one, two

    assert function(1j, np.int64(3)) == (1j, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="two: found True, expected an integer"):
        function(None, True)
    with pytest.raises(TypeError, match="missing a required argument: 'one'"):
        function()  # type: ignore[call-arg]
