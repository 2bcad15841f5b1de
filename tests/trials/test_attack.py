"""The attacks against a stub and against files, the bounds of the attacker, and the whole trial on a small bundle."""

from __future__ import annotations

import asyncio
import filecmp
import json
import random
import shutil
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from benchmarks import services
from benchmarks.answer_check import expected_answers
from benchmarks.load_client import LOST, Outcome
from rankfall.serving.bundle import MOST_IDS
from rankfall.serving.service.settings import BODY_BYTES, LARGE_BODY_BYTES
from support.bundles import platform_bundle
from trials import attack as attack_trial
from trials.attacks import attacker, bad_bundles, duplicate_keys, huge_bodies, pipelining
from trials.attacks.attack_kinds import ATTACKS, KINDS, Attack
from trials.attacks.target import BundleFiles, Tally, Target, Throttle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from benchmarks.services import Service
    from rankfall.serving import Bundle

pytestmark = pytest.mark.xdist_group("bench serve")
OVER_HTTP = [attack for attack in ATTACKS if attack.kind != "bad-bundles"]
REQUEST = b'{"user":{"age":3}}'


@pytest.fixture(scope="module")
def bundle() -> Path:
    return platform_bundle()


# --- attempts -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def stub(*, reads: bool = True) -> AsyncIterator[int]:
    """Yield the port of a service that answers everything with 400, or that reads nothing."""
    open_connections: set[asyncio.Task[Any] | None] = set()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(asyncio.current_task())
        try:
            while (await reader.read(2**16)) if reads else await asyncio.sleep(60, True):
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 200\r\n\r\n" + b"x" * 200)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=2**12)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in open_connections - {None}:
            cast("asyncio.Task[Any]", task).cancel()
        await asyncio.sleep(0)


def target_of(port: int, files: BundleFiles | None = None, *, pace: float = 0.001) -> Target:
    throttle = Throttle(1.0)
    return Target(port, REQUEST, "token", cast("BundleFiles", files), pace, throttle, random.Random(0), Tally())


@pytest.mark.parametrize("attack", OVER_HTTP, ids=lambda attack: f"{attack.kind}-{attack.name}")
def test_attempt_is_bounded_and_counts_what_it_sends(attack: Attack) -> None:
    """One attempt opens a few connections, sends at most some megabytes and ends."""

    async def attempt() -> Tally:
        async with stub() as port:
            target = target_of(port)
            async with asyncio.timeout(30):
                if attack.name == "idle connections":  # the stub never closes a silent connection
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(cast("Any", attack.attempt(target)), 0.05)
                else:
                    await attack.attempt(target)
            return target.tally

    tally = asyncio.run(attempt())
    assert 1 <= tally.connections <= 100
    assert tally.requests <= 2_000
    assert tally.sent_bytes <= 5_000_000
    assert (tally.sent_bytes > 0) == (attack.name != "idle connections")
    assert set(tally.responses) <= {400, LOST}
    never_read = {"GET /health", "POST /rank", "idle connections", "slow readers", "missing rest", "dropped"}
    assert bool(tally.responses) == (attack.name not in never_read)


def test_every_kind_of_attack_is_listed() -> None:
    assert Counter(attack.kind for attack in ATTACKS).keys() == set(KINDS)
    assert {"duplicate-keys", "pipelining", "slow-clients", "huge-bodies", "bad-bundles"} <= set(KINDS)
    assert sum(attack.clients for attack in ATTACKS) < 512  # select() and file descriptors are limited


def test_pipelining_client_stops_when_the_service_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelining, "SECONDS", 1e9)  # a terabyte, without pauses

    async def attempt() -> int:
        async with stub(reads=False) as port:
            target = target_of(port, pace=1e-3)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pipelining.unread_health(target), 0.5)
            return target.tally.sent_bytes

    assert 0 < asyncio.run(attempt()) < 16_000_000  # what the kernel buffers


def test_duplicate_comes_last_and_names_are_unique() -> None:
    def names(body: bytes) -> Counter[str]:
        pairs: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list)
        return Counter(name for name, _ in pairs)

    for size in (duplicate_keys.SMALL, duplicate_keys.LARGE):
        body = duplicate_keys._duplicate_last(size)
        found = names(body)
        assert size - 64 < len(body) <= size
        assert [name for name, count in found.items() if count > 1] == ["last"]
        assert list(found)[-1] == "last"
    assert len(duplicate_keys._duplicate_last(duplicate_keys.SMALL)) <= LARGE_BODY_BYTES
    for name in (b'"n%d":0', b'"\\u003a%d":0'):
        (group,) = json.loads(duplicate_keys._many_names(name), object_pairs_hook=list)
        assert len(dict(group[1])) == len(group[1]) > 40_000


def test_largest_body_is_valid() -> None:
    body = huge_bodies._with_excluded(REQUEST)
    assert len(body) == BODY_BYTES
    content = json.loads(body)
    assert content["user"] == {"age": 3}
    assert MOST_IDS / 2 < len(set(content["exclude"])) == len(content["exclude"]) <= MOST_IDS


# --- bad bundles ----------------------------------------------------------------------------------------------------


@pytest.fixture
def files(bundle: Path, tmp_path: Path) -> BundleFiles:
    original, watched = bundle, tmp_path / "watched"
    shutil.copytree(original, watched / "served")
    shutil.copytree(original, tmp_path / "bad")
    return BundleFiles(watched, watched / "served", original, [tmp_path / "bad"])


def differing(files: BundleFiles) -> list[str]:
    """Return the files of the served bundle that differ from the original."""
    names = bad_bundles._files(files.original)
    return [name for name in names if not filecmp.cmp(files.original / name, files.served / name, shallow=False)]


@pytest.mark.parametrize("attempt", [bad_bundles.overwritten, bad_bundles.truncated])
def test_served_bundle_is_damaged_in_place_and_restored(attempt: Any, files: BundleFiles) -> None:
    inodes = {name: (files.served / name).stat().st_ino for name in bad_bundles._files(files.served)}

    async def attack(pace: float) -> list[str]:
        task = asyncio.create_task(attempt(target_of(0, files, pace=pace)))
        await asyncio.sleep(0.01)
        damaged = differing(files)
        if pace:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return damaged

    assert len(asyncio.run(attack(1000.0))) == 1
    assert differing(files) == []  # also if the attack is cancelled
    asyncio.run(attack(0.0))
    assert differing(files) == []
    assert inodes == {name: (files.served / name).stat().st_ino for name in bad_bundles._files(files.served)}


@pytest.mark.parametrize("attempt", [bad_bundles.appearing, bad_bundles.half_written])
def test_bundle_appears_in_the_watched_directory_and_is_removed(attempt: Any, files: BundleFiles) -> None:
    async def attack() -> set[str]:
        task = asyncio.create_task(attempt(target_of(0, files, pace=0.02)))
        seen = set()
        while not task.done():
            seen |= {path.name for path in files.watched.iterdir()}
            await asyncio.sleep(0.005)
        task.result()
        return seen

    assert len(asyncio.run(attack()) - {"served"}) == 1
    assert [path.name for path in files.watched.iterdir()] == ["served"]
    assert differing(files) == []


# --- the attacker ---------------------------------------------------------------------------------------------------


def test_throttle_waits_until_the_cpu_time_is_back_at_its_share() -> None:
    times = {"wall": 100.0, "cpu": 5.0}
    throttle = Throttle(0.25, wall=lambda: times["wall"], cpu=lambda: times["cpu"])
    times |= {"wall": 101.0, "cpu": 6.0}
    assert throttle.used == (1.0, 1.0)
    assert throttle.delay() == 3.0  # 1 s is a quarter of 4 s, of which 1 s has passed
    times["wall"] = 104.0
    assert throttle.delay() == 0.0
    times["wall"] = 200.0
    assert throttle.delay() == 0.0


def test_responses_that_no_attack_may_get_are_reported() -> None:
    name = "65 KB, the last"
    first = attacker.Outcome(1.0, 0.1, {"duplicate-keys": {name: Tally(connections=2, responses={400: 5, 503: 1})}})
    assert list(first.forbidden()) == []
    tally = Tally(connections=3, responses={400: 1, 200: 2, 500: 4, attacker.NO_ANSWER: 1}, notes=["odd"])
    first.add(attacker.Outcome(2.0, 0.2, {"duplicate-keys": {name: tally}}))
    assert first.tallies["duplicate-keys"][name].responses == {400: 6, 503: 1, 200: 2, 500: 4, attacker.NO_ANSWER: 1}
    assert first.tallies["duplicate-keys"][name].connections == 5
    assert (first.seconds, first.cpu_seconds) == pytest.approx((3.0, 0.3))
    assert list(first.forbidden()) == [
        f"duplicate-keys ({name}): 1 requests had no response within 60 s",
        f"duplicate-keys ({name}): 2 requests had the status code 200",
        f"duplicate-keys ({name}): 4 requests had the status code 500",
        f"duplicate-keys ({name}): odd",
    ]


# --- the report -----------------------------------------------------------------------------------------------------


def test_windows_are_pooled() -> None:
    """101 answers of 0 to 100 ms in two windows; the middle one takes 50 ms, and 1 % take 99 ms or more."""
    first = Outcome(seconds=2.0, sent=60, unsent=1, latency={200: [float(time) for time in range(50)], 503: [1.0]})
    second = Outcome(seconds=3.0, sent=54, latency={200: [float(time) for time in range(50, 101)], LOST: [1.0, 1.0]})
    first.verdicts, second.verdicts = {"same": 50}, {"same": 50, "wrong": 1}
    found = attack_trial.honest([first, second])
    assert (found.p50, found.p99, found.slowest) == (50.0, 99.0, 100.0)
    assert (found.asked, found.answered, found.refused, found.failed) == (105, 101, 1, 3)
    assert found.verdicts == {"same": 100, "wrong": 1}
    assert found.seconds == 5.0
    assert found.sent_share == 114 / 105


def test_service_that_uses_too_much_memory_is_killed(tmp_path: Path) -> None:
    class Growing:
        exit_code: int | None = None
        megabytes = 100.0

        def memory(self) -> tuple[float, float]:
            return self.megabytes, self.megabytes

        def kill(self) -> None:
            self.exit_code = -9

    service, steps = Growing(), list[str]()
    settings = attack_trial.Settings(memory_limit=500.0)
    unused = cast("Any", None)
    plan = attack_trial._Plan(
        cast("Service", service), 0, unused, unused, settings, 10.0, lambda step, done, total: steps.append(step)
    )
    plan._watch(1, attacked=True, seconds=3.0)
    assert plan.problems == []
    service.megabytes = 501.0
    plan._watch(1, attacked=True, seconds=4.0)
    assert service.exit_code == -9
    assert plan.problems == ["the service used 501 MB and was killed, 4 s after the window began"]
    assert steps == ["window 2 of 20, under attack, 100 MB", "window 2 of 20, under attack, 501 MB"]
    plan.run()  # no further window
    plan.end_under_attack()
    assert plan.windows == []


# --- the trial ----------------------------------------------------------------------------------------------------


@pytest.mark.trial
@pytest.mark.service
@pytest.mark.parametrize("proxy", ["--no-proxy", "--proxy"])
def test_attacked_service_gives_right_answers_and_planted_errors_are_found(
    bundle: Path, proxy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The expected answer to one of eight requests is changed, so that exactly its answers are wrong."""

    def planted(of: Bundle, *rest: Any) -> list[dict[str, Any]]:
        first, *others = expected_answers(of, *rest)
        return [{**first, "scores": [score + 1 for score in first["scores"]]}, *others]

    if proxy == "--proxy" and shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    monkeypatch.setattr(services, "POOL", 8)
    monkeypatch.setattr(services, "expected_answers", planted)
    monkeypatch.setattr(attack_trial, "MOST_REFUSED", 1.0)  # whatever else the machine does
    monkeypatch.setattr(attack_trial, "SENT", 0.0)
    options = "--minutes", "0.02", "--window", "1.2", "--rate", "0.1", "--cpu-share", "1", "--finding", "0.5"
    assert attack_trial.main([str(bundle), *options, "--pace", "0.1", proxy]) == 1
    found = json.loads(capsys.readouterr().out)
    for of in (found["quiet"], found["attacked"]):
        wrong, answered = of["verdicts"]["wrong"], of["answered"]
        assert 0 < wrong <= answered / 8 + 1
        assert of["verdicts"] == {"same": answered - wrong, "wrong": wrong}
        assert of["failed"] == 0
    assert {row["kind"] for row in found["attacks"]} == set(KINDS)
    assert all(row["attempts"] > 0 for row in found["attacks"])
    assert [window["attacked"] for window in found["windows"]] == [False, True]
    assert found["p99_ratio"] == found["attacked"]["p99"] / found["quiet"]["p99"]
    assert found["memory"] is None or 0 < found["memory"]["start"] <= found["memory"]["most"]
    assert found["end_seconds"] > 0
    assert found["tracebacks"] == 0
    quoted = [text for text in found["problems"] if text.startswith("for example")]
    assert all(text.startswith("for example wrong, request 0: ") for text in quoted)
    assert len(found["problems"]) == 2 + len(quoted)  # in the quiet window, and under attack


def test_unknown_kind_is_refused(bundle: Path) -> None:
    settings = attack_trial.Settings(kinds=("pipelinning",))
    with pytest.raises(ValueError, match=r"found pipelinning, allowed are .*pipelining"):
        attack_trial.measure(bundle, settings, on_step=lambda step, done, total: None)
