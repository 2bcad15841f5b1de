"""Settings that all tests share, and the table of witnesses.

A test that compares a function with an independent reference is marked with ``@pytest.mark.witness(kind)``; the
function is the test's parameter `name`, or the marker's second argument. ``pytest --collect-only --correctness=FILE``
writes the table of functions and their witnesses (``make docs-tables``).
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from _pytest.doctest import DoctestItem

from rankfall import register
from support.fuzzing import register_profiles
from support.network import Watch
from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.forks import Forks

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in background jobs; children inherit that
register_profiles()
_NETWORK = Watch()

Witnesses = dict[str, Counter[str]]  # for each function, the number of tests of each kind

# Groups of tests that take longest start first: a group runs on one worker, on which others would wait at the end.
LONGEST_GROUPS = ("ray", "torchrun", "forks", "bench serve", "page")

_collected = pytest.StashKey[list[pytest.Item]]()


@pytest.fixture(autouse=True)
def _registered_components_are_forgotten() -> Iterator[None]:
    """Components that a test or a page of the documentation registers do not reach other tests."""
    before = {kind: set(register.registered(kind)) for kind in register.KINDS}
    yield
    for kind, names in before.items():
        for name in set(register.registered(kind)) - names:
            if not register.registered(kind)[name].is_builtin:
                register.unregister(kind, name)


@pytest.fixture(autouse=True)
def network() -> Iterator[Watch]:
    """What this process connected to on other machines: nothing, whatever a test does."""
    yield _NETWORK
    seen, _NETWORK.seen[:] = list(_NETWORK.seen), []
    assert not seen, f"the test talks to other machines: {seen}"


@pytest.fixture(autouse=True)
def _nothing_is_left_in_the_repository() -> Iterator[None]:
    """Tests write to their own directories; hidden names belong to tools, which run meanwhile."""
    before = set(os.listdir(ROOT))
    yield
    left = {name for name in set(os.listdir(ROOT)) - before if not name.startswith(".")}
    assert not left, f"this test, or one that runs meanwhile, leaves {sorted(left)} in the repository"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--correctness", metavar="FILE", help="write the table of functions and their witnesses to FILE")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_collected] = []


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash[_collected].append(item)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_start)


def _start(item: pytest.Item) -> int:
    """Return the place of a test's group in the order of a run; tests of no group follow as they were collected."""
    marker = item.get_closest_marker("xdist_group")
    return LONGEST_GROUPS.index(marker.args[0]) if marker and marker.args[0] in LONGEST_GROUPS else len(LONGEST_GROUPS)


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.collect()
    gc.freeze()  # a million objects of modules and tests, which each full collection would look through
    path = session.config.getoption("--correctness")
    if path:
        Path(path).write_text(_correctness(session.items))


def pytest_unconfigure() -> None:
    gc.freeze()  # the interpreter ends without a last collection, which would take seconds


@pytest.fixture(scope="session", autouse=True)
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A directory for files that one process of a test run creates and all of them use."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    path.mkdir(exist_ok=True)
    os.environ["RANKFALL_TESTS_SHARE"] = str(path)
    os.environ["XDG_STATE_HOME"] = str(path / "state")  # no test changes which code the user trusts


@pytest.fixture(scope="session", autouse=True)
def _graphs_are_traced_once(shared_directory: None) -> Iterator[None]:
    if "rankfall.serving.export.write_bundle" not in sys.modules:  # no collected test exports
        yield
        return
    from support.graphs import traced_once

    with traced_once():
        yield


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared lists with a planted ranking. Tests must not change them."""
    from support.planted import plant

    return plant(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small log of random impressions. Tests must not change it."""
    from support.logs import random_log

    return random_log(tmp_path_factory.mktemp("random") / "log", impressions=32).path


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes that have imported torch; tests of the group "forks" share them."""
    from support.forks import Forks

    with Forks(tmp_path_factory.mktemp("forks")) as started:
        yield started


@pytest.fixture
def witnesses(request: pytest.FixtureRequest) -> Witnesses:
    """The witnesses of every function, also of tests that are not run; the whole suite must be collected."""
    items = request.config.stash[_collected]
    missing = set(Path(__file__).parent.rglob("test_*.py")) - {item.path for item in items}
    if missing:
        pytest.skip(f"only a part of the tests was collected, not {sorted(path.name for path in missing)[0]}")
    return _witnesses(items)


def _witnesses(items: list[pytest.Item]) -> Witnesses:
    found: Witnesses = {}
    for item in items:
        for marker in item.iter_markers("witness"):
            kind, *function = marker.args
            found.setdefault(function[0] if function else _function_of(item), Counter())[kind] += 1
    return found


def _function_of(item: pytest.Item) -> str:
    """The function in the parameter `name`, which may continue with the variant that is tested."""
    callspec = getattr(item, "callspec", None)
    name = str(callspec.params["name"]) if callspec is not None and "name" in callspec.params else ""
    match = re.match(r"\w+", name)
    if match is None:
        raise pytest.UsageError(f"{item.nodeid} has a witness, but neither a parameter `name` nor a second argument")
    return match[0]


def _correctness(items: list[pytest.Item]) -> str:
    from rankfall.commands.methods import METHODS, find_methods

    found = _witnesses(items)
    methods = {kind: find_methods(kind) for kind in METHODS}
    doctests = sum(isinstance(item, DoctestItem) for item in items)
    counts = [
        f"| {len(methods['operator'])} | operators |",
        f"| {len(methods['loss'])} | losses |",
        f"| {len(methods['objective'])} | objectives of a cascade |",
        f"| {len(methods['metric'])} | metrics and tests of significance |",
        f"| {len(items) - doctests} | test cases |",
        f"| {sum(sum(of.values()) for of in found.values())} | of them compared with an independent witness |",
        f"| {doctests} | examples in doc strings, which are run as tests |",
    ]
    sections = [_section(kind, [method.name for method in of], found) for kind, of in methods.items()]
    return "\n".join([_INTRODUCTION, "| count | of |", "|---:|---|", *counts, "", *sections])


def _section(kind: str, names: list[str], found: Witnesses) -> str:
    title = {"operator": "Operators", "loss": "Losses", "objective": "Objectives", "metric": "Metrics"}[kind]
    kinds = sorted({one for name in names for one in found.get(name, ())})
    head = [f"## {title}\n", f"| | {' | '.join(kinds)} |", f"|---|{'---:|' * len(kinds)}"]
    rows = [
        f"| `{name}` | {' | '.join(str(found.get(name, Counter())[one] or '') for one in kinds)} |" for name in names
    ]
    return "\n".join([*head, *rows, ""])


_INTRODUCTION = """\
# Correctness

Each public function is compared with independent references, called witnesses. The tables show the number of test
cases per function and witness. `make docs-tables` generates this page from the tests; `make test` fails if a public
function has no witness.

| witness | reference |
|---|---|
| *brute force* | the formula in Python loops |
| *hand* | a value derived by hand |
| *gradcheck* | finite differences |
| *rax*, *scikit-learn*, *ir-measures*, *scipy* | another library |
| *bisection*, *quadratic program*, *derivation* | another way to compute the same number |
| *limit* | the hard metric or mask as the temperature tends to 0 |
| *simulation* | random data with known variances |
| *mask equivalence* | padding does not change the result |
| *permutation* | reordered items |
| *extremes* | scores of 1e4, ties, one item, empty lists, k >= n |
| *compile* | `torch.compile` in one graph |
| *meta device* | no assumption about the device |
| *stand-in device* | as a CPU on a [stand-in for a GPU](../concepts/distributed-training.md#devices) |
| *shapes and types* | all numbers of dimensions and dtypes |
"""
