"""Send generated hostile bodies through a service, join what it recorded, and stream the joined log.

Run it as ``PYTHONPATH=tests python -m trials.hostile_loop --bodies 100000``. It prints what became of the bodies, and
ends with code 1 if a process stopped, the service answered with an error of its own, or a day could not be joined or
streamed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from rankfall.serving.recording.record_segments import segments
from support.join_kills import copy_of
from support.served_loops import make_shop, start, stream_line
from support.served_records import ITEMS, random_request, served_spec
from support.services import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

CONNECTIONS = 4
ROUNDS = 3  # the service is killed after each but the last
GROUPS = ("user", "context", "sequences")
NUMBERS = ("0", "-0.0", "-1", "1e10", "1e11", "-1e11", "1e39", "3.5e38", "1.7e308", "1e999", "-1e999", "1e-320", "NaN")
WHOLE = (-1, 0, 3, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**40)
TEXTS = (
    "",
    " ",
    "\0",
    "\ud800",
    "u1",
    "7",
    "-0",
    "1e5",
    "\u202e",
    "\N{PILE OF POO}",
    "a" * 5000,
    "NaN",
    "null",
    "old3",
)
TIMES = (
    "2099-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999-14:00",
    "0001-01-01T00:00:00+14:00",
    "1969-12-31T23:59:59Z",
    "2024-03-31T02:30:00",
    "2024-W03-1",
    "20240113",
)
KEYS = ("id", "request", "item", "kind", "value", "time", "user", "context", "hour", "history", "topic", "k", "x", "\0")


class Raw:
    """A number that is written as it is, although it may be no JSON."""

    def __init__(self, text: str) -> None:
        self.text = text


class Bodies:
    """Generates bodies of /rank and /events; those of events name requests that were answered."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._served: list[tuple[str, list[Any]]] = []

    def note(self, answer: dict[str, Any]) -> None:
        """Take note of an answered request."""
        self._served.append((answer["request"], answer["ids"]))
        del self._served[:-1000]

    def next(self) -> tuple[str, bytes]:
        """Return a path and a body: a valid one, mostly with one change or two."""
        chance = self._chance
        path = "/rank" if chance.random() < 0.5 or not self._served else "/events"
        events = 1 if chance.random() < 0.7 else 5
        content: Any = self._rank() if path == "/rank" else {"events": [self._event() for _ in range(events)]}
        for _ in range(chance.choice((0, 0, 1, 1, 1, 2))):
            content = self._changed(content)
        text = _json(content)
        if chance.random() < 0.01:
            text = text[: chance.randrange(len(text) + 1)]
        return path, text.encode(errors="surrogatepass")

    def _rank(self) -> dict[str, Any]:
        chance = self._chance
        now = time.time_ns() // 1_000_000
        body = random_request(chance, now - chance.choice((0, 1000, 3_000_000)))
        if chance.random() < 0.5:
            del body["time"]
        body["user"]["user"] = f"u{chance.randrange(300)}"
        body |= {"k": chance.choice((1, 5, 10))}
        if chance.random() < 0.7:
            body["request"] = f"r{chance.randrange(10**9)}"
        if chance.random() < 0.1:
            body["bundle"] = "other"
        if chance.random() < 0.1:
            body["candidates"] = [chance.randrange(-2, ITEMS + 5) for _ in range(20)]
        if chance.random() < 0.05:
            body["sequences"]["history"] = [{"item": ITEMS + 37}]  # an item that left the catalogue
        if chance.random() < 0.05:
            body["context"]["hour"] = {"id": chance.choice((0, 1, 3, *WHOLE))}
        return {"requests": [body]} if chance.random() < 0.1 and "bundle" not in body else body

    def _event(self) -> dict[str, Any]:
        chance = self._chance
        request, items = chance.choice(self._served)
        return {
            "id": f"e{chance.randrange(10**6)}",
            "request": request if chance.random() < 0.9 else f"forged{chance.randrange(99)}",
            "item": chance.choice(items or [1]),
            "kind": chance.choice(("click", "seconds", "view", "click")),
            "value": chance.choice((1, 1.0, 0.5, 12, -1, 1e10, 1e9)),
        }

    def _changed(self, content: Any) -> Any:
        """Return content with a hostile value at a random place."""
        chance = self._chance
        if isinstance(content, dict) and content and chance.random() < 0.93:
            key = chance.choice(list(content))
            kind = chance.random()
            if kind < 0.06:
                return {name: value for name, value in content.items() if name != key}
            if kind < 0.14:
                return {**content, chance.choice(KEYS): self._hostile()}
            if kind < 0.2:
                return {**content, key: {"id": chance.choice((0, 1, 3, *WHOLE))}}
            return {**content, key: self._changed(content[key])}
        if isinstance(content, list) and content and chance.random() < 0.9:
            place = chance.randrange(len(content))
            return [*content[:place], self._changed(content[place]), *content[place + 1 :]]
        return self._hostile()

    def _hostile(self) -> Any:
        chance = self._chance
        kind = chance.randrange(8)
        if kind == 0:
            return Raw(chance.choice(NUMBERS))
        if kind == 1:
            return chance.choice(WHOLE)
        if kind == 2:
            return chance.choice(TEXTS)
        if kind == 3:
            near = datetime.now(UTC) + timedelta(minutes=chance.choice((-(10**6), -1500, -70, 50, 70, 1500, 10**6)))
            return chance.choice((*TIMES, near.isoformat(), near.isoformat()))
        if kind == 4:
            return chance.choice((None, True, False, [], {}, [[]], {"id": None}, [None], {"": {}}))
        if kind == 5:
            nested: Any = chance.choice((1, []))
            for _ in range(chance.choice((3, 100, 250, 300))):
                nested = [nested] if chance.random() < 0.5 else {"item": nested}
            return nested
        if kind == 6:
            return [self._hostile() for _ in range(chance.choice((1, 5)))]
        return {chance.choice(KEYS): self._hostile()}


def _json(content: Any) -> str:
    if isinstance(content, Raw):
        return content.text
    if isinstance(content, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_json(value)}" for key, value in content.items()) + "}"
    if isinstance(content, list):
        return "[" + ",".join(map(_json, content)) + "]"
    return json.dumps(content, ensure_ascii=bool(hash(str(content)) % 2))


def send(service: Program, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Send bodies over one connection; return the numbers of answers, and bodies that got an error of the service."""
    bodies, codes = Bodies(seed), Counter[str]()
    failed: list[str] = []
    with service.client() as client:
        for _ in range(count):
            path, body = bodies.next()
            answer = client.post(path, body)
            codes[f"{path} {answer.code}"] += 1
            if answer.code >= 500:
                failed.append(f"{path} {answer.code} {answer.body[:200]!r} for {body[:500]!r}")
            elif answer.code == 200 and path == "/rank":
                for one in answer.json.get("rankings", [answer.json]):
                    bodies.note(one)
    return codes, failed


def main(count: int, seed: int, place: Path) -> list[str]:
    """Run the loop; return what went wrong."""
    shop = make_shop(place / "shop")
    records, log = place / "records", copy_of(place / "shop", place / "log")
    codes, failed = Counter[str](), list[str]()
    began = time.monotonic()
    for number in range(ROUNDS):
        options = ("--other", shop.other, "--samples", records, "--threads", "1", "--deadline", "30000")
        with Program(shop.bundle, *options) as service:
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                shares = [
                    count * (part + 1) // (ROUNDS * CONNECTIONS) - count * part // (ROUNDS * CONNECTIONS)
                    for part in range(number * CONNECTIONS, (number + 1) * CONNECTIONS)
                ]
                seeds = [seed + number * CONNECTIONS + part for part in range(CONNECTIONS)]
                for of_part, wrong in pool.map(lambda given: send(service, *given), zip(shares, seeds, strict=True)):
                    codes += of_part
                    failed += wrong
            if service.process.poll() is not None:
                failed.append(f"the service ended with {service.process.returncode}")
            elif number == ROUNDS - 1 and (ended := service.end())[0] != 0:
                failed.append(f"the service ended with {ended[0]}: {ended[1][-500:]}")
    seconds = time.monotonic() - began
    _say(f"bodies: {sum(codes.values()):,} in {seconds:.0f} s, {ROUNDS - 1} kills of the service")
    for name, number in sorted(codes.items()):
        _say(f"  {name}: {number:,}")
    return failed + _join_and_stream(
        shop.join_line(records, log, "--close", "--grow", "--parity", "1", "--json"), records, log, place
    )


def _join_and_stream(line: list[str], records: Path, log: Path, place: Path) -> list[str]:
    """Join and stream; print what was joined, and return what went wrong."""
    code, out, errors = _finished(line)
    recorded = {kind: _recorded(records / kind) for kind in ("samples", "events")}
    _say(", ".join(f"{kind} recorded: {number:,}" for kind, number in recorded.items()))
    if code:
        return [f"join ended with {code}: {errors[-2000:]}"]
    result = json.loads(out)
    for report in result["days"]:
        names = ("requests", "sampled", "items", "events", "checked", "capped", "unsampled_events", "repeated_requests")
        _say(f"joined {report['day']}: " + ", ".join(f"{name} {report[name]:,}" for name in names))
        for reason, number in report["apart"].items():
            _say(f"  set apart, {reason}: {number:,}, such as {report['apart_because'][reason][0][:160]}")
        late = {name: sum(report[f"late_{name}"].values()) for name in ("requests", "events")}
        _say(f"  late: {late['requests']:,} requests of {len(report['late_requests'])} days, {late['events']:,} events")
    _say(f"  open: {result['waiting']}, late after the last day: {sum(result['late'].values()):,}")
    counted = sum(result["late"].values()) + sum(
        report["requests"] + report["repeated_requests"] + sum(report["late_requests"].values())
        for report in result["days"]
    )
    # In the hour before midnight some times are of the next day, which stays open; later ones count when received.
    times = [
        zip(*(batch[name].to_pylist() for name in ("time", "received")), strict=True)
        for batch in _batches(records / "samples")
    ]
    days = [time if time - received <= timedelta(hours=1) else received for time, received in chain(*times)]
    zone = ZoneInfo(served_spec().zone)
    waiting = sum(str(day.astimezone(zone).date()) in result["waiting"] for day in days)
    if set(result["waiting"].values()) - {"it is in the future"} or counted + waiting != recorded["samples"]:
        return [f"{recorded['samples']:,} samples were recorded, the reports count {counted:,}, and {waiting:,} wait"]
    if not any(report["items"] for report in result["days"]):
        return ["no row was joined"]
    code, _, errors = _finished(stream_line(log, place / "stream"))
    _say(f"stream ended with {code}")
    return [f"stream ended with {code}: {errors[-2000:]}"] if code else []


def _recorded(directory: Path) -> int:
    return sum(map(len, _batches(directory)))


def _batches(directory: Path) -> Iterator[pa.RecordBatch]:
    return (batch for segment in segments(directory) for batch in segment.batches())


def _finished(line: list[str]) -> tuple[int, str, str]:
    process = start(line)
    out, errors = process.communicate()
    return process.returncode, out, errors


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        problems = main(given.bodies, given.seed, Path(directory))
    for problem in problems[:20]:
        _say(f"PROBLEM: {problem}")
    _say(f"problems: {len(problems)}")
    sys.exit(1 if problems else 0)
