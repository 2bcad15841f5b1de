"""All commands that write files, each with small input, for runs with faults."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankfall.serving.recording.record_segments import EVENT_SCHEMA, EVENTS, SAMPLES, SegmentWriter, sample_schema

if TYPE_CHECKING:
    from pathlib import Path

STAGES: list[dict[str, Any]] = [
    {"name": "retrieval", "quota": 20, "model": {"kind": "two_tower", "dim": 2, "hidden": [4]}},
    {"name": "ranking", "quota": 10, "model": {"kind": "mlp", "dim": 2, "hidden": [4]}},
]
SCRATCH = "scratch"  # directory for temporary files and states
DAYS = ("2024-01-13", "2024-01-14", "2024-01-15")


@dataclass(frozen=True)
class Command:
    """A command of the table.

    Attributes:
        name: Name in the table.
        line: Its arguments; paths are relative to the directory that it runs in.
        needs: Names of the commands whose output it reads or replaces.
        again: Arguments after a fault, if they are different.
        out: What it writes.
        done: Part of the message of the next run if the fault came after everything was written.
        whole: Whether `out` gets its name when it is complete, and is then replaced only with ``--force``.
        cheap: Whether samples of its faults are larger.
    """

    name: str
    line: str
    needs: tuple[str, ...] = ()
    again: str | None = None
    out: str = "out"
    done: str | None = None
    whole: bool = False
    cheap: bool = False

    @property
    def arguments(self) -> list[str]:
        """Its arguments as a list."""
        return self.line.split()

    @property
    def repeated(self) -> list[str]:
        """Its arguments after a fault as a list."""
        return (self.again or self.line).split()


SIMULATE = "simulate log --preset tiny --days 3 --requests-per-day 6"
COMMANDS = (
    Command("simulate", SIMULATE, out="log", whole=True),
    Command("simulate --force", f"{SIMULATE} --seed 1 --force", ("simulate",), out="log", whole=True),
    Command(
        "simulate --layout recflow",
        "simulate rec --preset recflow-like --layout recflow --days 1 --requests-per-day 2",
        out="rec",
        whole=True,
    ),
    Command(
        "simulate shows",
        "simulate shows --preset tiny --days 1 --requests-per-day 110",
        out="shows",
        whole=True,
    ),
    Command("init", "init shop.csv --out drafts", out="drafts", cheap=True),
    Command(
        "prepare rows", "prepare rows shop.csv --spec drafts/spec.yaml --out rows", ("init",), out="rows", whole=True
    ),
    Command(
        "prepare rows --append",
        "prepare rows next.csv --append rows",
        ("init", "prepare rows"),
        out="rows",
        done="rows already has the day 2024-01-16",
    ),
    Command(
        "prepare rows --append --grow",
        "prepare rows next.csv --append rows --grow",
        ("init", "prepare rows"),
        out="rows",
        done="rows already has the day 2024-01-16",
    ),
    Command(
        "prepare letor",
        "prepare letor train=a.txt valid=b.txt test=c.txt --out lists",
        out="lists",
        whole=True,
        cheap=True,
    ),
    Command(
        "prepare recflow",
        "prepare recflow rec --out recflow",
        ("simulate --layout recflow",),
        out="recflow",
        whole=True,
    ),
    Command(
        "train cascade", "train cascade.yaml --out run", ("simulate",), "train cascade.yaml --out run --resume", "run"
    ),
    Command("train --force", "train cascade.yaml --out run --seed 3 --force", ("simulate", "train cascade"), out="run"),
    Command(
        "train ranker",
        "train ranker.yaml --out ranker",
        ("prepare letor",),
        "train ranker.yaml --out ranker --resume",
        "ranker",
    ),
    Command("evaluate", "evaluate run --diagnose --figures figures", ("simulate", "train cascade"), out="run"),
    Command(
        "plan", "plan run --cost retrieval=0 --cost ranking=1", ("simulate", "train cascade"), out="run", cheap=True
    ),
    Command(
        "report", "report run --out page.html", ("simulate", "train cascade", "evaluate"), out="page.html", cheap=True
    ),
    Command("export", "export run --out bundle", ("simulate", "train cascade"), out="bundle", whole=True),
    Command(
        "export --force",
        "export run --out bundle --force",
        ("simulate", "train cascade", "export"),
        out="bundle",
        whole=True,
    ),
    Command(
        "examination",
        "examination shows --feedback realshow --method naive --resamples 2 --out curve.json",
        ("simulate shows",),
        out="curve.json",
        whole=True,
        cheap=True,
    ),
    Command("join", "join records --spec join.yaml --items goods.csv --out joined --parity 0 --close", out="joined"),
    Command("compare", "compare compare.yaml --out compared --jobs 1", ("prepare letor",), out="compared"),
    Command("tune", "tune tune.yaml --out search --trials 2 --jobs 1", ("prepare letor",), out="search"),
    Command(
        "stream",
        "stream stream.yaml --out stream --bundles 1 --jobs 1",
        ("simulate",),
        "stream stream.yaml --out stream --bundles 1 --jobs 1 --resume",
        "stream",
    ),
    Command("reproduce", "reproduce arf-table1 --quick --out reproduced", out="reproduced"),
    Command("demo", "demo --quick --out demo", (), "demo --quick --out demo --force", "demo"),
    Command("clean", "clean", out=".", cheap=True),
)


def reduce_work(graphs: Path) -> None:
    """Let the commands of this process do less of the work that writes nothing, for runs with many faults.

    A demonstration simulates few requests. The graph of a model is traced once; further commands read it in `graphs`.
    """
    import onnx
    import torch

    from rankfall import demo

    demo.QUICK = demo.Size(days=3, requests_per_day=8, epochs=1, batch=8, seeds=1)
    graphs.mkdir()
    export = torch.onnx.export

    def traced_once(model: Any, inputs: Any, **options: Any) -> Any:
        digest = hashlib.sha256(repr((model, options["input_names"], options["output_names"])).encode())
        for tensor in model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        graph = graphs / digest.hexdigest()
        if not graph.exists():
            program = export(model, inputs, **options)
            assert program is not None
            graph.write_bytes(program.model_proto.SerializeToString())
        return SimpleNamespace(model_proto=onnx.load(graph))

    torch.onnx.export = traced_once  # type: ignore[assignment]  # the keywords that the package uses


def write_inputs(directory: Path) -> None:
    """Write the data and configurations that commands read."""
    (directory / SCRATCH).mkdir()
    draw = random.Random(0)
    for name in "abc":
        (directory / f"{name}.txt").write_text(_letor(draw, 4))
    _write_shop(directory, draw)
    _write_records(directory, draw)
    training = {"epochs": 2, "batch": 8}
    data = {"path": "log", "train": DAYS[0], "valid": DAYS[1], "test": DAYS[2], "negatives": 2}
    cascade = {"data": data, "relevant": 5, "stages": STAGES, "objective": {"name": "bce"}, "training": training}
    lists = {"path": "lists", "train": "train", "valid": "valid", "test": "test"}
    ranker = {
        "data": lists,
        "model": {"kind": "mlp", "hidden": [4]},
        "loss": {"name": "softmax_loss"},
        "training": training,
    }
    methods = {"softmax": {}, "ranknet": {"loss": {"name": "ranknet_loss"}}, "ridge": {"kind": "ridge"}}
    stream = {**cascade, "data": {"path": "log", "negatives": 2}, "training": {"batch": 8}, "methods": {"bce": {}}}
    contents = {
        "cascade": cascade,
        "ranker": ranker,
        "compare": {**ranker, "methods": methods, "seeds": [0]},
        "tune": {**ranker, "search": {"optimizer.lr": {"low": 0.01, "high": 0.1}}},
        "stream": stream,
    }
    for name, content in contents.items():
        (directory / f"{name}.yaml").write_text(json.dumps(content))


def write_leftovers(directory: Path) -> None:
    """Write what a process leaves that dies while it replaces a directory, for the command `clean`."""
    for name in (".log.00000000.unfinished", ".old.00000000.replaced"):
        (directory / name).mkdir()
        (directory / name / "part").write_text("content")
    (directory / ".file.00000000.tmp").write_text("half")


def _letor(draw: random.Random, queries: int) -> str:
    lines = []
    for query in range(queries):
        for _ in range(5):
            values = " ".join(f"{feature}:{draw.random():.3f}" for feature in range(1, 4))
            lines.append(f"{draw.randint(0, 2)} qid:{query} {values}")
    return "\n".join(lines) + "\n"


def _write_shop(directory: Path, draw: random.Random) -> None:
    """Write a log of three days, and one of the day after them."""
    for name, days, requests in (("shop", DAYS, range(12)), ("next", ("2024-01-16",), range(12, 16))):
        lines = ["request,user,time,item,stage,rank,clicked,price"]
        for request in requests:
            time = f"{days[request % len(days)]}T{request:02}:00:00"
            for rank, item in enumerate(draw.sample(range(30), 6), 1):
                stage = ("ranked", "shown")[rank < 4]
                lines.append(f"{request},{request % 5},{time},{item},{stage},{rank},{int(rank == 1)},{item * 1.5}")
        (directory / f"{name}.csv").write_text("\n".join(lines) + "\n")


def _write_records(directory: Path, draw: random.Random) -> None:
    """Write what a service records on two days, and the spec of the log that is made of it."""
    samples: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for number in range(8):
        time = 1_705_140_000_000 + number * 12_000_000
        items = draw.sample(range(9), 4)
        short = {
            "request": f"r{number}",
            "time": time,
            "received": time + 5,
            "sampled": True,
            "model": "m",
            "bundle": "b",
        }
        lists = {"item": items, "stage": [1, 1, 0, 0], "rank": [0, 1, 3, 2], "score": [0.5] * 4, "inclusion": [1.0] * 4}
        samples.append({**short, **lists, "body": json.dumps({"user": {"user": number % 3}})})
        event = {"id": "e", "request": f"r{number}", "item": str(items[0]), "kind": "click", "value": 1.0}
        events.append({**event, "time": time + 9, "received": time + 10})
    for kind, schema, records in ((SAMPLES, sample_schema(pa.int64()), samples), (EVENTS, EVENT_SCHEMA, events)):
        writer = SegmentWriter(directory / "records" / kind)
        writer.write(pa.RecordBatch.from_pylist(records, schema))
        writer.close()
    spec = {
        "request": "request",
        "item": "item",
        "time": "time",
        "stage": "stage",
        "stages": [{"name": "dropped"}, {"name": "answered"}],
        "relevant": "answered",
        "feedback": ["click"],
        "features": {
            "user": {"user": {"kind": "categorical", "vocabulary": True}},
            "item": {"price": {"kind": "dense", "standardise": True}},
        },
    }
    (directory / "join.yaml").write_text(json.dumps(spec))
    (directory / "goods.csv").write_text("item,price\n" + "".join(f"{item},{item}.5\n" for item in range(9)))
