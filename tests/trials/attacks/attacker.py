"""The process that attacks a service: it repeats all attempts of the chosen kinds until it is told to end."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import module_environment
from benchmarks.load_client import LOST
from trials.attacks.attack_kinds import ALWAYS_ALLOWED, ATTACKS
from trials.attacks.target import BundleFiles, Tally, Target, Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trials.attacks.attack_kinds import Attack

NO_ANSWER = -1  # instead of a status code: an attempt did not end in time
_ATTEMPT_SECONDS = 60.0
_MOST_NOTES = 20
_END_SECONDS = 30.0


@dataclass(frozen=True)
class Job:
    """Which service is attacked, and how."""

    port: int
    request: str  # body of a valid request
    token: str
    watched: str  # see BundleFiles
    served: str
    original: str
    bad: list[str]
    kinds: list[str]
    seconds: float  # after which the attack ends by itself
    cpu_share: float  # of one core, at most
    pace: float = 1.0  # see Target
    seed: int = 0


@dataclass
class Outcome:
    """What the attacks have done."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)  # by kind and name

    def add(self, other: Outcome) -> None:
        """Add the counts of another attack."""
        self.seconds += other.seconds
        self.cpu_seconds += other.cpu_seconds
        for kind, by_name in other.tallies.items():
            for name, tally in by_name.items():
                mine = self.tallies.setdefault(kind, {}).setdefault(name, Tally())
                for key in ("attempts", "connections", "requests", "sent_bytes", "received_bytes"):
                    setattr(mine, key, getattr(mine, key) + getattr(tally, key))
                for code, count in tally.responses.items():
                    mine.respond(code, count)
                mine.notes = list(dict.fromkeys(mine.notes + tally.notes))[:_MOST_NOTES]

    def forbidden(self) -> Iterator[str]:
        """Yield the responses and effects that a service must not show."""
        for attack in ATTACKS:
            tally = self.tallies.get(attack.kind, {}).get(attack.name, Tally())
            wrong = {
                code: count
                for code, count in tally.responses.items()
                if code not in attack.allowed and code not in ALWAYS_ALLOWED
            }
            for code, count in sorted(wrong.items()):
                got = f"no response within {_ATTEMPT_SECONDS:.0f} s" if code == NO_ANSWER else f"the status code {code}"
                yield f"{attack.kind} ({attack.name}): {count:,} requests had {got}"
            yield from (f"{attack.kind} ({attack.name}): {note}" for note in tally.notes)


# --- starting the process -----------------------------------------------------------------------------------------


@contextmanager
def attacking(job: Job) -> Iterator[Callable[[], Outcome]]:
    """Attack in another process; yield a function that ends the attack and returns its outcome."""
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch, "job.json"), Path(scratch, "outcome.json")
        files[0].write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", "trials.attacks.attacker", *map(str, files)]
        with Path(scratch, "errors.txt").open("w+") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=module_environment()
            )
            assert process.stdout is not None
            process.stdout.readline()  # it has begun, or ended with an error
            try:
                yield lambda: _end(process, Path(errors.name), files[1])
            finally:
                process.kill()
                process.communicate()


def _end(process: subprocess.Popen[str], errors: Path, outcome: Path) -> Outcome:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        raise OSError(f"the attacker did not end within {_END_SECONDS:.0f} s") from None
    if process.returncode:
        raise OSError(f"the attacker ended with {process.returncode}: {errors.read_text()[-2000:]}")
    return _read(outcome)


def _read(path: Path) -> Outcome:
    found = json.loads(path.read_text())
    for by_name in found["tallies"].values():
        for name, about in by_name.items():
            responses = {int(code): count for code, count in about["responses"].items()}
            by_name[name] = Tally(**about | {"responses": responses})
    return Outcome(**found)


# --- in the process -----------------------------------------------------------------------------------------------


async def _attack(job: Job) -> Outcome:
    """Run all clients until the time is over or the process is signalled to end."""
    throttle, outcome = Throttle(job.cpu_share), Outcome()
    files = BundleFiles(Path(job.watched), Path(job.served), Path(job.original), [Path(path) for path in job.bad])
    clients = []
    for place, attack in enumerate(one for one in ATTACKS if one.kind in job.kinds):
        tally = outcome.tallies.setdefault(attack.kind, {}).setdefault(attack.name, Tally())
        dice = random.Random(f"{job.seed} {place}")
        target = Target(job.port, job.request.encode(), job.token, files, job.pace, throttle, dice, tally)
        clients += [asyncio.create_task(_repeat(attack, target, n)) for n in range(attack.clients)]
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print("attacking", flush=True)  # noqa: T201  # the process that started this one waits for it
    watching = asyncio.create_task(ended.wait())
    done, _ = await asyncio.wait([watching, *clients], timeout=job.seconds, return_when=asyncio.FIRST_COMPLETED)
    outcome.cpu_seconds, outcome.seconds = throttle.used
    for task in (watching, *clients):
        task.cancel()
    await asyncio.gather(watching, *clients, return_exceptions=True)
    for task in done - {watching}:
        task.result()  # clients only end with an error
    return outcome


async def _repeat(attack: Attack, target: Target, number: int) -> None:
    """Make attempts until this is cancelled; clients of the same attack begin one after another."""
    await target.pause(attack.every * number / attack.clients)
    tally = target.tally
    while True:
        tally.attempts += 1
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                await attack.attempt(target)
        except TimeoutError:
            tally.respond(NO_ANSWER)
        except ConnectionError:  # the service has closed or refused the connection, as it may
            tally.respond(LOST)
        await target.pause(attack.every)


def main(job: Path, outcome: Path) -> None:
    """Run the job of a file and write its outcome."""
    found = asyncio.run(_attack(Job(**json.loads(job.read_text()))))
    outcome.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
