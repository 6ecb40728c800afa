"""Encrypted payloads: unreadable in the table, bound to their row, opened by any key at hand."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.outbox.fixtures import OutboxFixture, an_event, postgres_fixture, sqlite_fixture

from postroad.errors import ConfigurationError, MessageTooLarge, Undecryptable
from postroad.outbox import AesGcmCipher, DomainEvent, Outbox

OLD, NEW = bytes(range(32)), bytes(range(32, 64))


@pytest.fixture
def cipher() -> AesGcmCipher:
    return AesGcmCipher({"k1": OLD, "k2": NEW}, current="k2")


@pytest.fixture(params=["postgresql", "sqlite"])
def sealed(request: pytest.FixtureRequest, tmp_path: Path, cipher: AesGcmCipher) -> Iterator[OutboxFixture]:
    """An outbox with a cipher on each database in turn."""
    if request.param == "postgresql":
        fixture = postgres_fixture(request.getfixturevalue("postgres_dsn"), cipher=cipher)
    else:
        fixture = sqlite_fixture(tmp_path / "app.db", cipher=cipher)
    yield fixture
    fixture.outbox.close()


def stored(fixture: OutboxFixture, event: DomainEvent) -> DomainEvent:
    value = fixture.run("SELECT payload FROM outbox WHERE event_id = ?", str(event.event_id))[0][0]
    return DomainEvent.from_json(value if isinstance(value, str) else json.dumps(value))


def test_only_the_payload_is_sealed_and_it_opens_again(sealed: OutboxFixture) -> None:
    event = sealed.add(tenant_id="acme", payload={"card": "4111"})

    found = stored(sealed, event)

    assert found.payload.keys() == {"$enc"}
    assert found.payload["$enc"].keys() == {"kid", "n", "ct"}
    assert found.payload["$enc"]["kid"] == "k2"
    assert (found.key, found.tenant_id, found.type) == (event.key, "acme", event.type)
    assert sealed.outbox.opened(found) == event


def test_every_seal_has_a_nonce_of_its_own(sealed: OutboxFixture) -> None:
    seals = [stored(sealed, sealed.add(key={"k": str(n)})).payload["$enc"] for n in range(3)]

    assert len({seal["n"] for seal in seals}) == 3
    assert len(base64.b64decode(seals[0]["n"])) == 12


@pytest.mark.parametrize("change", [{"tenant_id": "other"}, {"type": "t"}, {"event_id": an_event().event_id}])
def test_a_seal_moved_to_another_row_does_not_open(sealed: OutboxFixture, change: dict[str, object]) -> None:
    found = stored(sealed, sealed.add(tenant_id="acme"))

    with pytest.raises(Undecryptable):
        sealed.outbox.opened(replace(found, **change))  # type: ignore[arg-type]  # one of three fields


@pytest.mark.parametrize(
    "seal",
    [{"kid": "k9", "n": "", "ct": ""}, {"kid": "k1", "n": "é", "ct": ""}, {"kid": "k1", "n": "", "ct": ""}, {}, 3],
)
def test_an_unknown_key_or_a_broken_seal_does_not_open(cipher: AesGcmCipher, seal: object) -> None:
    with pytest.raises(Undecryptable):
        cipher.opened(an_event(payload={"$enc": seal}))


def test_a_seal_of_an_older_key_opens(cipher: AesGcmCipher) -> None:
    event = an_event()
    old = replace(event, payload=AesGcmCipher({"k1": OLD}, current="k1").sealed(event, b'{"n":1}'))

    assert cipher.opened(old) == event


def test_a_readable_payload_stays_as_it_is(cipher: AesGcmCipher) -> None:
    event = an_event()

    assert cipher.opened(event) is event
    assert Outbox.sqlite().opened(event) is event


def test_without_keys_a_seal_does_not_open(sealed: OutboxFixture) -> None:
    found = stored(sealed, sealed.add())

    with pytest.raises(Undecryptable, match="no key file"):
        Outbox.sqlite().opened(found)


def test_the_limit_is_that_of_the_readable_event(sealed: OutboxFixture) -> None:
    room = 262_144 - len(an_event(payload={"a": ""}).to_json()) - 10
    with sealed.connection() as connection:
        sealed.outbox.add(connection, an_event(payload={"a": "x" * room}))
        with pytest.raises(MessageTooLarge):
            sealed.outbox.add(connection, an_event(payload={"a": "x" * (room + 20)}))


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def key_file(**keys: bytes) -> str:
    return json.dumps({"current": next(iter(keys)), "keys": {k: base64.b64encode(v).decode() for k, v in keys.items()}})


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    event = an_event()
    cipher = AesGcmCipher.from_file(write(tmp_path / "keys.json", key_file(k1=OLD, k2=NEW)))

    assert cipher.current == "k1"
    assert cipher.opened(replace(event, payload=cipher.sealed(event, b'{"n":1}'))) == event


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "keys.json", key_file(k1=OLD), mode)

    with pytest.raises(ConfigurationError, match="0600"):
        AesGcmCipher.from_file(path)


@pytest.mark.parametrize("text", ["", "[]", '{"current":"k1"}', '{"current":"k1","keys":{"k1":"s3cret!"}}'])
def test_a_key_file_that_cannot_be_read_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        AesGcmCipher.from_file(write(tmp_path / "keys.json", text))

    assert "s3cret" not in str(refused.value)
    assert refused.value.field == "keyfile"


def test_a_missing_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        AesGcmCipher.from_file(tmp_path / "none.json")


def test_keys_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ConfigurationError) as short:
        AesGcmCipher({"k1": b"short"}, current="k1")
    with pytest.raises(ConfigurationError) as missing:
        AesGcmCipher({"k1": OLD}, current="k2")

    assert (short.value.field, missing.value.field) == ("keys", "current")
