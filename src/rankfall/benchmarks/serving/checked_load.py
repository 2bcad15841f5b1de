"""Requests for a service whose answers are all compared with those of its bundles."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rankfall.benchmarks.serving.answer_check import expected_answers, model_name, wrong_unexpected_items
from rankfall.benchmarks.serving.bench_bundles import requests_like_examples
from rankfall.benchmarks.serving.load_generator import Job, drive, write_bodies
from rankfall.serving import Bundle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rankfall.benchmarks.serving.bench_bundles import OnStep
    from rankfall.benchmarks.serving.load_generator import Outcome

POOL = 2048  # different requests
CLIENTS = 32  # for finding the largest rate


class CheckedLoad:
    """Requests and their expected answers, which are computed without a service and stored in files.

    Args:
        paths: Directories of the bundles that may be served; the first one has the examples for the requests.
        directory: Receives the files.
        on_step: Called with the name of the step, the completed and the total amount.

    Attributes:
        models: Paths of the bundles by the name of their model.
        bodies: File with the requests.
        requests: The requests.
        expected: File with the expected answers, see AnswerChecker.
    """

    def __init__(self, paths: Sequence[Path], directory: Path, *, on_step: OnStep) -> None:
        self.bodies, self.expected = directory / "bodies.jsonl", directory / "expected.json"
        bundles = [Bundle.load(path) for path in paths]
        self.requests = requests_like_examples(bundles[0], POOL)
        write_bodies(self.bodies, self.requests)
        expected: dict[str, Any] = {}
        done = 0

        def on_requests(count: int) -> None:
            nonlocal done
            on_step("computing the expected answers", done := done + count, len(paths) * POOL)

        for bundle in bundles:
            name = model_name(bundle.manifest)
            if name in expected:
                raise ValueError(f"bundle: {bundle.path} is the same as {paths[0]}, expected two different bundles")
            expected[name] = expected_answers(bundle, self.requests, on_requests)
        self.expected.write_text(json.dumps(expected))
        self.models = dict(zip(expected, paths, strict=True))

    def job(self, port: int, seconds: float, **how: Any) -> Job:
        """Return a job that sends the requests to a service and checks the answers."""
        return Job(port, str(self.bodies), seconds, expected=str(self.expected), **how)

    def largest_rate(self, port: int, seconds: float) -> float:
        """Return the answers per second of a closed loop; they are checked as they are under load."""
        found = drive(self.job(port, seconds, clients=CLIENTS, warm_up=seconds / 4))
        if not found.in_time:
            raise OSError(f"the service answered no request: {found.quoted}")
        return found.in_time / found.seconds

    def verify_unexpected(self, outcome: Outcome) -> None:
        """Let the bundles score unexpected items; count answers with different scores as wrong."""
        if not outcome.unexpected:
            return
        bundles = {name: Bundle.load(path) for name, path in self.models.items()}
        for why in wrong_unexpected_items(bundles, self.requests, outcome.unexpected):
            outcome.verdicts["tied"] -= 1
            outcome.verdicts["wrong"] = outcome.verdicts.get("wrong", 0) + 1
            outcome.quote(f"wrong, {why}")
