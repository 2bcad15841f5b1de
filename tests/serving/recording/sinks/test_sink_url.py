"""URLs of sinks: what they name, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.serving.recording.sinks import BrokerUrl, parse_sink


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("logs/today", Path("logs/today")),
        ("file:///a%20b/c", Path("/a b/c")),
        ("nats://h/S", BrokerUrl("nats", ("h:4222",), "S")),
        (
            "nats://me:p%40ss@h:1,[::1]:2/S",
            BrokerUrl("nats", ("h:1", "[::1]:2"), "S", "me", "p@ss"),
        ),
        ("kafka://a,b:1/t.x?properties=f", BrokerUrl("kafka", ("a:9092", "b:1"), "t.x", query={"properties": "f"})),
    ],
)
def test_targets(target: str, expected: Path | BrokerUrl) -> None:
    assert parse_sink(target) == expected


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "found '', expected a directory, nats:"),
        ("http://h/x", "found http://h/x, expected a directory"),
        ("file://elsewhere/x", "expected file:///DIR"),
        ("nats://h:4222", "found '' as stream, expected 1 to 255 letters"),
        ("nats://h/a.b", "found 'a.b' as stream"),
        ("nats://h:99999/s", "found 'h:99999' as server, expected HOST:PORT"),
        ("nats://h:x/s", "found 'h:x' as server"),
        ("nats:///s", "found '' as server"),
        ("nats://h,/s", "found '' as server"),
        ("kafka://h/..", r"found '\.\.' as topic"),
        ("kafka://h/t?acks=0", "found acks after the path, expected properties"),
        ("kafka://h/t?x", "is not a URL"),
        ("nats://[::1/s", "is not a URL"),
        ("kafka://me:secret@h/t", "Kafka takes no user in its URL"),
    ],
)
def test_what_is_refused(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        parse_sink(target)
    assert "secret" not in str(refused.value)


def test_password_is_not_shown() -> None:
    url = parse_sink("nats://me:secret@h/S")
    assert str(url) == "nats://h:4222/S"
    assert "secret" not in repr(url)
    with pytest.raises(ValueError, match="nats://h/a") as refused:
        parse_sink("nats://me:secret@h/a/b")
    assert "secret" not in str(refused.value)
