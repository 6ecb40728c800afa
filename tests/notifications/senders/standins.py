"""Stand-ins for Apple's and Google's push providers: real servers on loopback that check what a caller must get right.

    with apns_stand_in(tmp_path) as apple, fcm_stand_in(tmp_path) as google:
        sender = APNSSender(**apple.arguments())
        apple.fail("token1", Fault(410, "Unregistered"), Fault(503))   # one after the other, then 200 again
        apple.fail_all(Fault(instead="silence"))                       # until fail_all(None)
        apple.shown("token1")    # what the device shows: one alert for each collapse id
        apple.seen               # every request in order: token, headers, body, status

A `Fault` may also be `instead` of an answer: "silence", "reset" (the connection), "reset_stream", "goaway" (the stream
was begun), "goaway_before" (it was not), "garbage"; with "hold" the push is shown and answered by `answer_held()`,
before which `go_away(promised)` may say how many of the pushes held back are answered at all.

Apple's stand-in speaks HTTP/2 over TLS and checks the team's token (signature, kid, iss, iat); Google's speaks HTTP/1.1
over TLS, checks the bearer token and hands out access tokens to service accounts at `/token`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from benchmarks.certificates import Certificates, make_certificates, private_pem
from benchmarks.http2 import Http2Server, Instead, Reply, Request
from cryptography.hazmat.primitives.asymmetric import ec
from tests.notifications.senders.https_server import HttpsServer

KEY_ID = "ABC123DEFG"
TEAM_ID = "DEF123GHIJ"
TOPIC = "com.example.chat"
PROJECT = "chat-example"
_OLDEST_TOKEN_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Fault:
    """What a device's request meets: a status with the provider's word for it, or no answer at all."""

    status: int = 500
    reason: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    instead: Instead | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A request and what it was answered; `status` is None when it was not."""

    token: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    path: str
    status: int | None


class _StandIn:
    """Faults by device, and what each device shows."""

    def __init__(self, certificates: Certificates) -> None:
        self.ca_file = certificates.ca_file
        self.seen: list[Seen] = []
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._everywhere: Fault | None = None
        self._alerts: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        self._lock = threading.Lock()

    def fail(self, token: str, *faults: Fault) -> None:
        """Let the next requests for this device fail like this, one after the other."""
        with self._lock:
            self._faults[token].extend(faults)

    def fail_all(self, fault: Fault | None) -> None:
        """Let every request fail like this; None ends it."""
        with self._lock:
            self._everywhere = fault

    def shown(self, token: str) -> list[Mapping[str, Any]]:
        """The alerts that the device shows: of those with one collapse id the newest."""
        with self._lock:
            return list(self._alerts[token].values())

    def _fault(self, token: str) -> Fault | None:
        with self._lock:
            faults = self._faults[token]
            return faults.popleft() if faults else self._everywhere

    def _show(self, token: str, collapse: str, alert: Mapping[str, Any]) -> None:
        with self._lock:
            self._alerts[token][collapse] = alert

    def _note(self, token: str, request: Request, body: Mapping[str, Any], reply: Reply) -> Reply:
        with self._lock:
            status = None if reply.instead else reply.status
            self.seen.append(Seen(token, request.headers, body, request.path, status))
        return reply


class ApnsStandIn(_StandIn):
    """Apple's provider for one team and one topic."""

    def __init__(self, certificates: Certificates, **limits: int) -> None:
        super().__init__(certificates)
        key = ec.generate_private_key(ec.SECP256R1())
        self.key = private_pem(key)
        self.refused_teams: set[str] = set()
        self._public = key.public_key()
        self._server = Http2Server(certificates, self._answer, **limits)
        self.start, self.stop, self.hang_up = self._server.start, self._server.stop, self._server.hang_up
        self.go_away, self.answer_held = self._server.go_away, self._server.answer_held

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def connections(self) -> int:
        return self._server.connections

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """What an APNSSender needs to send here."""
        mine = {"key": self.key, "key_id": KEY_ID, "team_id": TEAM_ID, "topic": TOPIC}
        return {**mine, "base_url": self.url, "ca_file": self.ca_file, **changes}

    def _answer(self, request: Request) -> Reply:
        token = request.path.removeprefix("/3/device/")
        body = json.loads(request.body)
        return self._note(token, request, body, self._reply(token, request, body))

    def _reply(self, token: str, request: Request, body: dict[str, Any]) -> Reply:
        wrong = self._wrong(request, body) or self._wrong_team(request)
        fault = wrong or self._fault(token)
        if fault is None or fault.instead == "hold":
            self._show(token, request.headers["apns-collapse-id"], body["aps"]["alert"])
            instead = None if fault is None else fault.instead
            return Reply(200, {"apns-id": request.headers["apns-id"]}, instead=instead)
        answer = json.dumps({"reason": fault.reason, **(fault.body or {})}).encode()
        return Reply(fault.status, {"apns-id": request.headers["apns-id"], **fault.headers}, answer, fault.instead)

    def _wrong(self, request: Request, body: dict[str, Any]) -> Fault | None:
        headers = request.headers
        if headers[":method"] != "POST" or not request.path.startswith("/3/device/"):
            return Fault(404, "BadPath")
        if headers.get("apns-topic") != TOPIC:
            return Fault(400, "DeviceTokenNotForTopic")
        if (headers.get("apns-push-type"), headers.get("apns-priority")) != ("alert", "10"):
            return Fault(400, "InvalidPushType")
        if set(body["aps"]["alert"]) != {"title", "body"} or len(request.body) > 4096:
            return Fault(413, "PayloadTooLarge")
        return None

    def _wrong_team(self, request: Request) -> Fault | None:
        scheme, _, team = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or team in self.refused_teams:
            return Fault(403, "ExpiredProviderToken")
        try:
            claims = jwt.decode(team, self._public, algorithms=["ES256"], options={"verify_iat": False})
        except jwt.InvalidTokenError:
            return Fault(403, "InvalidProviderToken")
        if (
            jwt.get_unverified_header(team)["kid"] != KEY_ID
            or set(claims) != {"iss", "iat"}
            or claims["iss"] != TEAM_ID
        ):
            return Fault(403, "InvalidProviderToken")
        return Fault(403, "ExpiredProviderToken") if abs(time.time() - claims["iat"]) > _OLDEST_TOKEN_SECONDS else None


class FcmStandIn(_StandIn):
    """Google's provider for one project, and its tokens for service accounts."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(certificates)
        self.access_tokens = {"access-1"}
        self.token_fault: Fault | None = None
        self._server = HttpsServer(certificates, self._answer)
        self.start, self.stop = self._server.start, self._server.stop

    @property
    def url(self) -> str:
        return self._server.url

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """What an FCMSender needs to send here."""
        mine: dict[str, Any] = {"project_id": PROJECT, "base_url": self.url, "ca_file": self.ca_file}
        return {**mine, **(changes or {"token_provider": lambda: "access-1"})}

    def _answer(self, request: Request) -> Reply:
        if request.path == "/token":
            return self._grant()
        body = json.loads(request.body)
        token = body["message"]["token"]
        return self._note(token, request, body, self._reply(token, request, body["message"]))

    def _grant(self) -> Reply:
        if self.token_fault is not None:
            body = json.dumps({"error": self.token_fault.reason}).encode()
            return Reply(self.token_fault.status, {"content-type": "application/json"}, body)
        access = f"access-{len(self.access_tokens) + 1}"
        self.access_tokens.add(access)
        body = json.dumps({"access_token": access, "expires_in": 3599, "token_type": "Bearer"}).encode()
        return Reply(200, {"content-type": "application/json"}, body)

    def _reply(self, token: str, request: Request, message: dict[str, Any]) -> Reply:
        fault = self._wrong(request, message) or self._fault(token)
        if fault is None:
            self._show(token, message["android"]["notification"]["tag"], message["notification"])
            return Reply(200, {}, json.dumps({"name": f"projects/{PROJECT}/messages/0:1"}).encode())
        answer = fault.body or {"error": {"code": fault.status, "status": fault.reason, "message": "refused"}}
        return Reply(fault.status, fault.headers, json.dumps(answer).encode(), fault.instead)

    def _wrong(self, request: Request, message: dict[str, Any]) -> Fault | None:
        if request.path != f"/v1/projects/{PROJECT}/messages:send":
            return Fault(404, "NOT_FOUND")
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.access_tokens:
            return Fault(401, "UNAUTHENTICATED")
        if set(message) != {"token", "notification", "data", "android", "apns", "webpush"}:
            return Fault(400, "INVALID_ARGUMENT")
        return None


@contextmanager
def apns_stand_in(directory: Path, **limits: int) -> Iterator[ApnsStandIn]:
    """Apple's provider, with its certificates in this directory; `streams` and `window` are what it allows."""
    stand_in = ApnsStandIn(make_certificates(_folder(directory, "apns")), **limits)
    stand_in.start()
    try:
        yield stand_in
    finally:
        stand_in.stop()


@contextmanager
def fcm_stand_in(directory: Path) -> Iterator[FcmStandIn]:
    """Google's provider, with its certificates in this directory."""
    stand_in = FcmStandIn(make_certificates(_folder(directory, "fcm")))
    stand_in.start()
    try:
        yield stand_in
    finally:
        stand_in.stop()


def _folder(directory: Path, name: str) -> Path:
    folder = directory / name
    folder.mkdir(exist_ok=True)
    return folder
