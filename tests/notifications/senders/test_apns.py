"""APNs: what is sent, what each answer means, and whose token it is sent with."""

from __future__ import annotations

import gc
import hashlib
import logging
import re
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import jwt
import pytest
from benchmarks.certificates import private_pem
from cryptography.hazmat.primitives.asymmetric import ec
from tests.notifications.senders.conftest import PUSH, TOKEN
from tests.notifications.senders.standins import KEY_ID, TEAM_ID, TOPIC, ApnsStandIn, Fault

from postroad.errors import ConfigurationError, InvalidNotification
from postroad.notifications.devices import TokenResult
from postroad.notifications.messages import PushPayload
from postroad.notifications.senders import APNSSender
from postroad.testing import FakeClock

COLLAPSED = hashlib.sha256(b"offline:1").hexdigest()[:32]


def team_token(apple: ApnsStandIn, number: int = -1) -> str:
    return apple.seen[number].headers["authorization"].removeprefix("bearer ")


def test_a_push_reaches_the_device_with_everything_that_apple_asks_for(apple: ApnsStandIn, apns: APNSSender) -> None:
    before = time.time()

    result = apns.send(PUSH, TOKEN, push_id="offline:1")

    seen = apple.seen[0]
    assert result == TokenResult(TOKEN, "sent", 200, "", seen.headers["apns-id"])
    assert seen.path == f"/3/device/{TOKEN}"
    assert {name: seen.headers[name] for name in ("apns-topic", "apns-push-type", "apns-priority")} == {
        "apns-topic": TOPIC,
        "apns-push-type": "alert",
        "apns-priority": "10",
    }
    assert seen.headers["apns-collapse-id"] == COLLAPSED
    assert uuid.UUID(seen.headers["apns-id"]).version == 5
    assert before + 86_399 <= int(seen.headers["apns-expiration"]) <= time.time() + 86_401
    assert seen.body == {
        "aps": {
            "alert": {"title": "New message", "body": "John: Hey!"},
            "sound": "default",
            "thread-id": "conv_456",
        },
        "conversationId": "conv_456",
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sound": None}, {}),
        ({"sound": "ding.caf", "badge": 0}, {"sound": "ding.caf", "badge": 0}),
        ({"threadId": "thread", "data": {"conversationId": "c"}}, {"sound": "default", "thread-id": "thread"}),
    ],
)
def test_a_push_says_what_to_play_count_and_group(
    apple: ApnsStandIn, apns: APNSSender, given: dict[str, Any], told: dict[str, Any]
) -> None:
    apns.send(replace(PUSH, payload=PushPayload("t", "b", **given)), TOKEN, push_id="offline:1")

    assert apple.seen[0].body["aps"] == {"alert": {"title": "t", "body": "b"}, **told}


def test_the_teams_token_names_key_team_and_moment(apple: ApnsStandIn, apns: APNSSender) -> None:
    apns.send(PUSH, TOKEN, push_id="offline:1")

    token = team_token(apple)
    assert jwt.get_unverified_header(token) == {"alg": "ES256", "kid": KEY_ID, "typ": "JWT"}
    claims = jwt.decode(token, options={"verify_signature": False})
    assert set(claims) == {"iss", "iat"}
    assert claims["iss"] == TEAM_ID


def test_a_push_that_is_sent_twice_is_shown_once(apple: ApnsStandIn, apns: APNSSender) -> None:
    apns.send(PUSH, TOKEN, push_id="offline:1")
    apns.send(PUSH, TOKEN, push_id="offline:1")
    apns.send(PUSH, TOKEN, push_id="offline:2")

    ids = [seen.headers["apns-id"] for seen in apple.seen]
    assert len(apple.shown(TOKEN)) == 2
    assert (ids[0] == ids[1], ids[1] == ids[2]) == (True, False)


def test_many_threads_share_one_connection_and_one_token(apple: ApnsStandIn, apns: APNSSender) -> None:
    tokens = [f"{number:064x}" for number in range(200)]

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda token: apns.send(PUSH, token, push_id="offline:1"), tokens))

    assert [(result.token, result.outcome) for result in results] == [(token, "sent") for token in tokens]
    assert sorted(seen.token for seen in apple.seen) == tokens
    assert apple.connections == 1
    assert len({seen.headers["authorization"] for seen in apple.seen}) == 1


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault(410, "Unregistered"), "dead_token"),
        (Fault(410, "ExpiredToken"), "dead_token"),
        (Fault(400, "BadDeviceToken"), "dead_token"),
        (Fault(400, "DeviceTokenNotForTopic"), "dead_token"),
        (Fault(400, "BadTopic"), "auth"),
        (Fault(400, "MissingTopic"), "auth"),
        (Fault(400, "TopicDisallowed"), "auth"),
        (Fault(403, "BadCertificate"), "auth"),
        (Fault(403, "Forbidden"), "auth"),
        (Fault(403, "MissingProviderToken"), "auth"),
        (Fault(400, "BadPriority"), "permanent"),
        (Fault(404, "BadPath"), "permanent"),
        (Fault(413, "PayloadTooLarge"), "permanent"),
        (Fault(429, "TooManyRequests"), "retry"),
        (Fault(500, "InternalServerError"), "retry"),
        (Fault(503, "ServiceUnavailable"), "retry"),
        (Fault(307, "MovedElsewhere"), "retry"),
    ],
)
def test_every_answer_has_its_outcome(apple: ApnsStandIn, apns: APNSSender, fault: Fault, outcome: str) -> None:
    apple.fail(TOKEN, fault)

    result = apns.send(PUSH, TOKEN, push_id="offline:1")

    assert (result.outcome, result.status, result.reason) == (outcome, fault.status, fault.reason)
    assert len(apple.seen) == 1


@pytest.mark.parametrize("instead", ["reset", "reset_stream", "goaway", "garbage"])
def test_a_connection_that_dies_leaves_a_retry_and_the_next_push_gets_through(
    apple: ApnsStandIn, apns: APNSSender, instead: Any
) -> None:
    apple.fail(TOKEN, Fault(instead=instead))

    failed = apns.send(PUSH, TOKEN, push_id="offline:1")
    after = apns.send(PUSH, TOKEN, push_id="offline:1")

    assert (failed.outcome, failed.status, after.outcome) == ("retry", None, "sent")
    assert failed.reason
    assert len(apple.shown(TOKEN)) == 1


def test_what_apple_says_it_never_began_is_sent_again_at_once(apple: ApnsStandIn, apns: APNSSender) -> None:
    apns.send(PUSH, TOKEN, push_id="offline:1")
    apple.fail(TOKEN, Fault(instead="goaway_before"))

    result = apns.send(PUSH, TOKEN, push_id="offline:2")

    assert result.outcome == "sent"
    assert apple.connections == 2


def test_whatever_happens_to_connections_every_push_has_a_result_and_shows_up_once(
    apple: ApnsStandIn, apns: APNSSender
) -> None:
    tokens = [f"{number:064x}" for number in range(60)]
    troubles: tuple[Any, ...] = ("reset", "goaway", "reset_stream", "goaway_before", "garbage")
    for number, token in enumerate(tokens[::4]):
        apple.fail(token, Fault(instead=troubles[number % len(troubles)]))
    waiting, outcomes = tokens, set[str]()

    with ThreadPoolExecutor(8) as pool:
        while waiting:
            results = list(pool.map(lambda token: apns.send(PUSH, token, push_id="offline:1"), waiting))
            outcomes |= {result.outcome for result in results}
            waiting = [result.token for result in results if result.outcome == "retry"]

    assert outcomes == {"sent", "retry"}
    assert {len(apple.shown(token)) for token in tokens} == {1}


def test_an_answer_that_never_comes_is_a_retry_and_does_not_hold_up_others(apple: ApnsStandIn) -> None:
    apple.fail(TOKEN, Fault(instead="silence"))

    with APNSSender(**apple.arguments(timeout=1.0)) as apns, ThreadPoolExecutor(1) as pool:
        overdue = pool.submit(apns.send, PUSH, TOKEN, push_id="offline:1")
        others = []
        while not overdue.done():
            others.append(apns.send(PUSH, "cd" * 32, push_id="offline:1").outcome)
        after = apns.send(PUSH, TOKEN, push_id="offline:1")

    assert (overdue.result().outcome, overdue.result().reason) == ("retry", "Timeout")
    assert set(others) == {"sent"}
    assert after.outcome == "sent"
    assert apple.connections <= 2


def test_nobody_listening_is_a_retry(apple: ApnsStandIn) -> None:
    with APNSSender(**apple.arguments(base_url="https://127.0.0.1:9")) as apns:
        result = apns.send(PUSH, TOKEN, push_id="offline:1")

    assert (result.outcome, result.status, result.reason) == ("retry", None, "ConnectError")


def test_a_server_that_is_not_vouched_for_gets_nothing(apple: ApnsStandIn) -> None:
    with APNSSender(**apple.arguments(ca_file=None)) as apns:
        result = apns.send(PUSH, TOKEN, push_id="offline:1")

    assert (result.outcome, apple.seen) == ("retry", [])


@pytest.mark.parametrize(("text", "seconds"), [("120", 120.0), ("soon", None), ("-1", None), ("9" * 40, None)])
def test_the_wait_that_apple_asks_for_is_kept(
    apple: ApnsStandIn, apns: APNSSender, text: str, seconds: float | None
) -> None:
    apple.fail(TOKEN, Fault(429, "TooManyRequests", {"retry-after": text}))

    result = apns.send(PUSH, TOKEN, push_id="offline:1")

    assert (result.outcome, result.retry_after) == ("retry", seconds)


def test_a_wait_may_be_given_as_a_date(apple: ApnsStandIn) -> None:
    clock = FakeClock(datetime.now(UTC).replace(microsecond=0))
    date = format_datetime(clock.now() + timedelta(seconds=90), usegmt=True)
    apple.fail(TOKEN, Fault(503, "Shutdown", {"retry-after": date}))

    with APNSSender(**apple.arguments(clock=clock)) as apns:
        result = apns.send(PUSH, TOKEN, push_id="offline:1")

    assert result.retry_after == 90.0


@pytest.mark.parametrize(
    ("timestamp", "since"),
    [
        (1_705_314_600_500, datetime(2024, 1, 15, 10, 30, 0, 500_000, tzinfo=UTC)),
        (10**30, None),
        ("yesterday", None),
        (True, None),
        (None, None),
    ],
)
def test_a_dead_token_says_since_when(
    apple: ApnsStandIn, apns: APNSSender, timestamp: object, since: datetime | None
) -> None:
    apple.fail(TOKEN, Fault(410, "Unregistered", body={"timestamp": timestamp}))

    result = apns.send(PUSH, TOKEN, push_id="offline:1")

    assert (result.outcome, result.dead_since) == ("dead_token", since)


def test_the_teams_token_is_used_for_fifty_minutes(apple: ApnsStandIn) -> None:
    clock = FakeClock(datetime.now(UTC))

    with APNSSender(**apple.arguments(clock=clock)) as apns:
        for pause in (0, 49 * 60, 2 * 60):
            clock.advance(pause)
            apns.send(PUSH, TOKEN, push_id="offline:1")

    tokens = [team_token(apple, number) for number in range(3)]
    assert (tokens[0] == tokens[1], tokens[1] == tokens[2]) == (True, False)


@pytest.mark.parametrize("reason", ["ExpiredProviderToken", "InvalidProviderToken"])
def test_a_refused_team_gets_one_new_token_and_one_more_try(apple: ApnsStandIn, apns: APNSSender, reason: str) -> None:
    apple.fail(TOKEN, Fault(403, reason))

    healed = apns.send(PUSH, TOKEN, push_id="offline:1")

    assert healed.outcome == "sent"
    assert [seen.status for seen in apple.seen] == [403, 200]
    assert team_token(apple, 0) != team_token(apple, 1)


def test_a_team_that_stays_refused_is_an_auth_and_renewed_at_most_every_twenty_minutes(apple: ApnsStandIn) -> None:
    clock = FakeClock(datetime.now(UTC))
    apple.fail_all(Fault(403, "InvalidProviderToken"))

    with APNSSender(**apple.arguments(clock=clock)) as apns:
        results = []
        for pause in (0, 19 * 60, 60):
            clock.advance(pause)
            results.append(apns.send(PUSH, TOKEN, push_id="offline:1"))

    assert {(each.outcome, each.status, each.reason) for each in results} == {("auth", 403, "InvalidProviderToken")}
    used = [team_token(apple, number) for number in range(len(apple.seen))]
    assert [used.index(token) for token in used] == [0, 1, 1, 1, 4]


def test_threads_that_are_refused_together_make_one_new_token(apple: ApnsStandIn) -> None:
    clock = FakeClock(datetime.now(UTC))
    tokens = [f"{number:064x}" for number in range(8)]

    with APNSSender(**apple.arguments(clock=clock)) as apns, ThreadPoolExecutor(8) as pool:
        apns.send(PUSH, TOKEN, push_id="offline:1")
        apple.refused_teams = {team_token(apple)}
        clock.advance(21 * 60)
        results = list(pool.map(lambda token: apns.send(PUSH, token, push_id="offline:2"), tokens))

    assert {result.outcome for result in results} == {"sent"}
    assert len({seen.headers["authorization"] for seen in apple.seen}) == 2


@pytest.mark.parametrize(
    "token", ["a/b", "../x", "..", ".", "a\r\nx: y", "a\n", "", "a b", "a?b", "a%2fb", "tök", "a#b"]
)
def test_what_is_no_device_token_never_reaches_a_url(apple: ApnsStandIn, apns: APNSSender, token: str) -> None:
    with pytest.raises(InvalidNotification, match="token"):
        apns.send(PUSH, token, push_id="offline:1")

    assert apple.seen == []


def test_data_cannot_replace_what_apple_reads(apple: ApnsStandIn, apns: APNSSender) -> None:
    payload = PushPayload("t", "b")
    object.__setattr__(payload, "data", {"aps": "x"})

    apns.send(replace(PUSH, payload=payload), TOKEN, push_id="offline:1")

    assert apple.seen[0].body == {"aps": {"alert": {"title": "t", "body": "b"}, "sound": "default"}}


def test_a_push_may_ask_to_be_thrown_away_when_the_device_is_off(apple: ApnsStandIn) -> None:
    with APNSSender(**apple.arguments(expires_in=0)) as apns:
        apns.send(PUSH, TOKEN, push_id="offline:1")

    assert apple.seen[0].headers["apns-expiration"] == "0"


def other_keys() -> list[str]:
    pem = private_pem(ec.generate_private_key(ec.SECP256R1()))
    return ["", "secret-key", pem[:-40], private_pem(ec.generate_private_key(ec.SECP384R1())), pem.replace("A", "/")]


@pytest.mark.parametrize("number", range(5))
def test_what_is_no_p256_key_is_refused_and_never_shown(number: int) -> None:
    key = other_keys()[number]

    with pytest.raises(ConfigurationError, match="key: is not a P-256 private key in PEM") as refused:
        APNSSender(key=key, key_id=KEY_ID, team_id=TEAM_ID, topic=TOPIC)

    assert refused.value.field == "key"
    assert refused.value.__cause__ is None
    assert not key or key not in f"{refused.value!r} {refused.value.remedy}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key_id", ""),
        ("key_id", "a\r\nb"),
        ("team_id", 7),
        ("topic", "a b"),
        ("timeout", 0),
        ("timeout", float("nan")),
        ("expires_in", -1),
        ("expires_in", 1.5),
        ("base_url", "http://api.push.apple.com"),
        ("base_url", "https://user:pass@api.push.apple.com"),
        ("base_url", "api.push.apple.com"),
        ("base_url", None),
        ("ca_file", "/nowhere/ca.pem"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_by_its_name(field: str, value: object) -> None:
    arguments: dict[str, Any] = {"key": private_pem(ec.generate_private_key(ec.SECP256R1())), "key_id": KEY_ID}

    with pytest.raises(ConfigurationError, match=f"^{field}: ") as refused:
        APNSSender(**{**arguments, "team_id": TEAM_ID, "topic": TOPIC, field: value})

    assert refused.value.field == field
    assert "pass@" not in str(refused.value)


def test_neither_sender_nor_result_shows_key_or_token(apple: ApnsStandIn, apns: APNSSender) -> None:
    result = apns.send(PUSH, TOKEN, push_id="offline:1")

    secret = re.sub(r"-----[^-]+-----|\s", "", apple.key)
    shown = f"{apns!r} {apns} {result!r} {vars(apns)}"
    assert TOKEN not in shown
    assert secret[:20] not in shown


def test_no_library_logs_tokens_or_credentials(
    apple: ApnsStandIn, apns: APNSSender, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    apns.send(PUSH, TOKEN, push_id="offline:1")

    # The stand-in's own decoding is not the sender's.
    logged = " ".join(record.getMessage() for record in caplog.records if record.threadName != "http2-server")
    assert TOKEN not in logged
    assert team_token(apple) not in logged
    assert "John" not in logged


@pytest.mark.parametrize("module", ["postroad.notifications.senders.http2", "jwt"])
def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigurationError, match="is not installed") as refused:
        APNSSender(key="", key_id=KEY_ID, team_id=TEAM_ID, topic=TOPIC)

    assert "postroad[push]" in refused.value.remedy


def test_a_forgotten_sender_takes_its_thread_along(apple: ApnsStandIn) -> None:
    apns = APNSSender(**apple.arguments())
    apns.send(PUSH, TOKEN, push_id="offline:1")
    mine = [thread for thread in threading.enumerate() if thread.name == "postroad-push"]

    del apns
    gc.collect()

    assert mine
    assert not any(thread.is_alive() for thread in mine)


def test_a_closed_sender_says_so_and_closing_twice_changes_nothing(apple: ApnsStandIn, apns: APNSSender) -> None:
    apns.send(PUSH, TOKEN, push_id="offline:1")

    apns.close()
    apns.close()

    with pytest.raises(ConfigurationError, match="closed"):
        apns.send(PUSH, TOKEN, push_id="offline:1")


def test_closing_answers_what_is_under_way(apple: ApnsStandIn) -> None:
    apple.fail(TOKEN, Fault(instead="silence"))
    apns = APNSSender(**apple.arguments())

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(apns.send, PUSH, TOKEN, push_id="offline:1")
        while not apple.seen:
            time.sleep(0.005)
        apns.close()

    assert (waiting.result().outcome, waiting.result().reason) == ("retry", "Closed")
