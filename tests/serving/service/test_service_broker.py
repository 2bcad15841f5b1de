"""A service that records to NATS: answers go on while the server is down, and nothing that it acknowledged is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import rankfall as rf
from support.bundles import platform_bundle
from support.nats_server import NatsServer
from support.records import ids_in
from support.services import eventually, running

if TYPE_CHECKING:
    from pathlib import Path

    from support.services import Client

pytestmark = pytest.mark.service


def test_server_is_killed_and_started_during_load(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    refused: list[int] = []
    ranked: list[str] = []

    def use(client: Client) -> bool:
        """Ask, and report an event; return whether the event was acknowledged."""
        name = str(len(ranked))
        assert client.post("/rank", {"request": name}).code == 200
        ranked.append(name)
        code = client.post("/events", {"events": [{"id": name, "request": name, "item": 7, "kind": "click"}]}).code
        if code == 200:
            acknowledged.append(name)
        else:
            refused.append(code)
        return code == 200

    with NatsServer(tmp_path) as server:
        url = f"nats://{server.address}/shop"
        with running(platform_bundle(), samples=url) as service, service.client() as client:

            def count(result: str) -> int:
                return int(client.metric(f'rankfall_samples_total{{result="{result}"}}'))

            for _ in range(20):
                use(client)
            server.kill()
            eventually(lambda: not use(client) and count("dropped") > 0)
            assert set(refused) == {503}
            server.start()
            written = count("written")
            # Samples and events have connections of their own: wait for both.
            eventually(lambda: use(client) and count("written") > written)
            for _ in range(20):
                use(client)
            eventually(lambda: count("written") + count("dropped") >= len(ranked))
        rf.collect(url, tmp_path / "out", progress=False)
    found = ids_in(tmp_path / "out" / "events")
    assert len(found) == len(set(found))
    assert set(acknowledged) <= set(found)
    sampled = ids_in(tmp_path / "out" / "samples")
    assert len(sampled) == len(set(sampled))
    assert set(sampled) < set(ranked)
    assert set(ranked[-20:]) <= set(sampled)
