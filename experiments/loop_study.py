"""What a cascade learns from its own answers: ten simulated days of the platform of ``rankfall demo --loop``.

    python experiments/loop_study.py OUT --days 10 --seeds 3

Each method begins with the model of the platform's own first days. Every day a bundle answers the simulated users and
draws samples as a service does; samples and events are written to segments, joined to the log and trained on, in one
process. The users and their random numbers are the same for all methods of a seed. Only the first model is exported:
later bundles have PyTorch's models for stages, which takes less time than exporting graphs every day.

==================  ====================================================================================================
never learns        the first model, with the items of each day
samples             learns from samples: 10 items of what each stage dropped, and everything that was answered
samples, weighted   the same with ``weight: inclusion``
full log            learns from all items: what each stage dropped, and everything that was answered
==================  ====================================================================================================

OUT/SEED-METHOD.json has the joint recall and the reward of each day, OUT/summary.md the table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from scipy import stats

import rankfall as rf
from rankfall._config import to_yaml
from rankfall.cascade import Cascade
from rankfall.data import ImpressionLog
from rankfall.data.impressions.encoding import Encoding
from rankfall.encoding import Lookup
from rankfall.loop_demo.loop_days import ANSWERED, LoopFiles, LoopSettings, new_users, stream_config
from rankfall.serving.bundle_files import Items, MemoryFile
from rankfall.serving.export.item_table import load_items
from rankfall.serving.export.onnx_graphs import as_batch, described, inputs_of, request_rules, request_vocabularies
from rankfall.serving.recording.record_segments import EVENT_SCHEMA, EVENTS, SAMPLES, SegmentWriter
from rankfall.serving.recording.recorder import ServedRequest, sample_batches, sample_requests
from rankfall.serving.request_encoder import NO_ITEM, RequestEncoder
from rankfall.serving.service.bundle_slots import model_name
from rankfall.simulation.live_users import request_bodies, request_events
from rankfall.simulation.platform import day_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.cascade import Stage
    from rankfall.serving.bundle import Bundle
    from rankfall.serving.export.item_table import ItemTable
    from rankfall.serving.onnx_stages import Rows, Scores
    from rankfall.serving.request_encoder import EncodedRequests
    from rankfall.simulation.live_users import LivePortion, LiveUsers

MOST_TIES = 0.01  # share of places with another item of an equal score
EVERYTHING = 1000  # items per stage, more than there are
FEATURES = ("time", "user", "sequences")


@dataclass(frozen=True)
class Method:
    """How a cascade learns: the items drawn per stage, None if it never learns, and the weights of items."""

    drawn: int | None
    weight: str | None = None


METHODS = {
    "never learns": Method(None),
    "samples": Method(10),
    "samples, weighted": Method(10, "inclusion"),
    "full log": Method(EVERYTHING),
}


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--requests-per-day", type=int, default=600)
    parser.add_argument("--first-days", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        settings = LoopSettings(
            seed=seed, requests_per_day=options.requests_per_day, first_days=options.first_days, batch=32
        )
        for name in options.methods:
            result = options.out / f"{seed}-{name.replace(', ', '-').replace(' ', '-')}.json"
            if not result.exists():
                days = run_method(options.out, settings, METHODS[name], options.days)
                result.write_text(json.dumps({"seed": seed, "method": name, "days": days}, indent=1))
            (options.out / "summary.md").write_text(summary(options.out))


def run_method(out: Path, settings: LoopSettings, method: Method, days: int) -> list[dict[str, Any]]:
    """Return the figures of each day."""
    files, users = LoopFiles(out / "work"), new_users(settings)
    weight = {} if method.weight is None else {"weight": method.weight}
    _begin(files, out / "-".join(["begin", str(settings.seed), *weight.values()]), settings, users, weight)
    exported = rf.serving.Bundle.load(next(files.bundles.glob("[!.]*")))
    found = []
    for number in range(days):
        begin = time.process_time()
        bundle = torch_bundle(exported, files)
        day, recall, reward = _serve_day(files, users, bundle, method, exported if number == 0 else None)
        files.write_items(users)
        if method.drawn is not None and number < days - 1:
            _learn(files)
        seconds = round(time.process_time() - begin, 1)
        figures = {"recall": float(np.mean(recall)), "reward": float(np.mean(reward))}
        found.append({"day": day, **figures, "cpu_seconds": seconds})
        sys.stderr.write(f"{settings.seed} {method} {found[-1]}\n")
    return found


def _begin(files: LoopFiles, kept: Path, settings: LoopSettings, users: LiveUsers, weight: dict[str, str]) -> None:
    """Make the log of the first days and the model that learned from it, which methods of a seed share."""
    past = list(users.past())
    shutil.rmtree(files.directory, ignore_errors=True)
    if kept.exists():
        shutil.copytree(kept, files.directory)
        return
    files.directory.mkdir()
    files.begin(settings, users, past)
    config = stream_config(files.log, settings)
    config["data"]["length"] = "all"  # lists of the full log are longer than those of samples
    files.config.write_text(to_yaml(config | weight))
    rf.prepare([files.rows], files.log, spec=files.spec, items=files.items, requests=files.requests, progress=False)
    _train(files, bundles=1, items=files.catalogue)
    shutil.copytree(files.directory, kept)


class TorchStage:
    """A stage of a bundle that is computed by PyTorch."""

    def __init__(self, stage: Stage, items: ItemTable) -> None:
        self.name, self.quota = stage.name, stage.quota
        self._model, self._items = stage.model, items

    @torch.no_grad()
    def score(self, requests: EncodedRequests, rows: Rows) -> Scores:
        """Return the scores of items, -inf for -1."""
        features = {name: values[np.maximum(rows, 0)] for name, values in self._items.features.items()}
        tensors = {name: torch.from_numpy(array) for name, array in (requests.arrays | features).items()}
        scores: Scores = self._model(as_batch(tensors)).numpy()
        return np.where(rows == NO_ITEM, np.float32(-np.inf), scores)

    def search(self, requests: EncodedRequests, *, scored: bool) -> tuple[Rows, Scores | None]:
        """Return the best of all items, in ascending order."""
        scores = self.score(requests, np.broadcast_to(np.arange(len(self._items)), (len(requests), len(self._items))))
        for row, excluded in zip(scores, requests.exclude, strict=True):
            row[excluded] = -np.inf
        rows = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, : self.quota], axis=1)
        return rows, np.take_along_axis(scores, rows, axis=1)


def torch_bundle(exported: Bundle, files: LoopFiles) -> Bundle:
    """Return the exported bundle with the newest weights, and the items of the day."""
    (run,) = (files.stream / "runs").iterdir()
    stages = Cascade.load(run / "checkpoints" / "last.safetensors").eval().stages
    features = described(stages[0]).features
    names = [f"item.{feature.name}" for feature in features.of("item")]
    log = ImpressionLog.load(files.log)
    encoding, table = Encoding.of_log(log), load_items(files.catalogue, log, features, names)
    content = pa.BufferOutputStream()
    with pa.ipc.new_file(content, table.table().schema) as writer:
        writer.write_table(table.table())
    bundle = copy(exported)
    bundle.items = Items(MemoryFile(files.catalogue, content.getvalue().to_pybytes()))
    bundle.stages = [TorchStage(stage, table) for stage in stages]
    inputs = dict.fromkeys(name for stage in stages for name in inputs_of(stage))
    rules = request_rules(encoding, features, list(inputs))
    known = {name: Lookup.of(values, name=name) for name, values in request_vocabularies(encoding, rules).items()}
    bundle._requests = RequestEncoder(rules, known, bundle.items)
    return bundle


def _train(files: LoopFiles, **export: Any) -> None:
    result = rf.stream(
        files.config,
        files.stream,
        resume=True,
        **export,
        progress=False,
        on_notice=lambda text: None,
    )
    for failure in [*result.failed, *result.refused]:
        raise ValueError(f"{failure.method}, {failure.run}: {failure.message}")


def _learn(files: LoopFiles) -> None:
    """Join the day and train on it."""
    rf.join(
        files.records,
        files.log,
        spec=files.spec,
        items=files.items,
        close=True,
        parity=0,  # only the first model has files
        grow=True,
        progress=False,
        on_notice=lambda text: None,
    )
    _train(files)


def _serve_day(
    files: LoopFiles, users: LiveUsers, bundle: Bundle, method: Method, exported: Bundle | None
) -> tuple[str, list[float], list[int]]:
    """Answer the requests of a day, and record them and the reactions; compare with what was exported, if given."""
    recall: list[float] = []
    reward: list[int] = []
    samples, events = (SegmentWriter(files.records / kind) for kind in (SAMPLES, EVENTS))
    while True:
        portion = users.arrive()
        answers, served = _answer(bundle, users, portion)
        if exported is not None and (_answer(exported, users, portion)[0] != answers).mean() > MOST_TIES:
            raise ValueError("the exported bundle answers differently than PyTorch")
        reactions = users.react(portion, answers)
        recall += reactions.recall.tolist()
        reward += reactions.reward.tolist()
        received = int(portion.requests.time[-1])
        if method.drawn is not None:
            for batch in sample_batches(served, [method.drawn] * len(bundle.stages)):
                samples.write(batch)
            reported = [event for of_request in request_events(portion, reactions) for event in of_request]
            events.write(_event_batch(reported, received))
        if portion.is_last:
            break
    samples.close()
    events.close()
    return day_name(portion.day), recall, reward


def _answer(
    bundle: Bundle, users: LiveUsers, portion: LivePortion
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], list[ServedRequest]]:
    bodies = request_bodies(users.platform, portion.requests, ANSWERED)
    features = [{name: body[name] for name in FEATURES} for body in bodies]
    encoded = bundle.encode(features, k=ANSWERED, exclude=[body["exclude"] for body in bodies])
    ids = [body["request"] for body in bodies]
    sampled, seeds = sample_requests(ids, 1.0, b"loop study")
    rankings = bundle.run(encoded, sampled=sampled).rankings
    model, received = model_name(bundle.manifest), int(portion.requests.time[-1])
    served = [
        ServedRequest(request, body["time"], received, model, bundle, of_request, ranking.trail, seed, 0)
        for request, body, of_request, ranking, seed in zip(
            ids, bodies, features, rankings, seeds.tolist(), strict=True
        )
    ]
    return np.array([ranking.ids for ranking in rankings], np.int32), served


def _event_batch(events: Sequence[dict[str, Any]], received: int) -> pa.RecordBatch:
    rows = [{**event, "item": str(event["item"]), "value": float(event["value"])} for event in events]
    columns = {name: [row[name] for row in rows] for name in EVENT_SCHEMA.names[:-1]}
    columns["received"] = [received] * len(rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in EVENT_SCHEMA], schema=EVENT_SCHEMA
    )


def summary(out: Path) -> str:
    """Return the means over days and seeds, and the lead of each method over "never learns" with its interval."""
    found = [json.loads(path.read_text()) for path in sorted(out.glob("[0-9]*-*.json"))]
    lines = [
        "| method | seeds | joint recall | reward | last day: joint recall | reward |",
        "|---|---|---|---|---|---|",
    ]
    for name in METHODS:
        runs = [one for one in found if one["method"] == name]
        if runs:
            means = [_over_seeds(runs, key, slice(None)) for key in ("recall", "reward")]
            last = [_over_seeds(runs, key, slice(-1, None)) for key in ("recall", "reward")]
            lines.append(f"| {name} | {len(runs)} | {' | '.join([*means, *last])} |")
    lines += ["", "| difference | seeds | joint recall | reward |", "|---|---|---|---|"]
    pairs = [("samples", "never learns"), ("full log", "never learns"), ("samples", "full log")]
    for one, other in [*pairs, ("samples, weighted", "samples")]:
        both = [
            (a, b)
            for a in found
            for b in found
            if a["method"] == one and b["method"] == other and a["seed"] == b["seed"]
        ]
        if both:
            cells = [_difference(both, key) for key in ("recall", "reward")]
            lines.append(f"| {one} - {other} | {len(both)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _over_seeds(runs: Sequence[dict[str, Any]], key: str, days: slice) -> str:
    values = [np.mean([day[key] for day in run["days"][days]]) for run in runs]
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def _difference(both: Sequence[tuple[dict[str, Any], dict[str, Any]]], key: str) -> str:
    """Return the mean difference over days and seeds, with a 95 % interval over seeds (paired t-test).

    Days after the first, which all methods answer with a model that has learned nothing yet. The days of a seed are
    not independent, so they count as one value.
    """
    values = np.array([_mean(a, key) - _mean(b, key) for a, b in both])
    if len(values) < 2:
        return f"{values.mean():+.3f}"
    error = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.3f} [{values.mean() - error:+.3f}, {values.mean() + error:+.3f}]"


def _mean(run: dict[str, Any], key: str) -> float:
    return float(np.mean([day[key] for day in run["days"][1:]]))


if __name__ == "__main__":
    main()
