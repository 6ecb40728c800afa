"""The API answers what its description says, whatever it is sent."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import hypothesis
import hypothesis.errors
import pytest
import requests
import schemathesis
from schemathesis import GenerationMode
from tests.faults.filled_server import ENDLESS, KNOWN, api as api
from tests.http.api import ADMIN, Api

pytestmark = pytest.mark.slow

REQUESTS = 1_000
EXAMPLES = 7
SECONDS = 2.0
ACCEPTED = ["2xx", "3xx", "400", "401", "403", "404", "409", "429"]
"""What valid data may lead to: a cursor, a name or a graph can be refused although it fits the schema."""
HEADERS = {"Authorization": f"Bearer {ADMIN}"}
QUICKLY = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


class Caller:
    """Sends generated requests and checks each answer."""

    def __init__(self, api: Api) -> None:
        config = schemathesis.Config.from_dict(
            {"checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}}, "seed": 1}
        )
        document = api.client.get("/schema/openapi.json").json()
        self.schema = schemathesis.openapi.from_dict(document, config=config)
        self.url = str(api.client.base_url)
        self.session = requests.Session()
        self.session.trust_env = False
        self.statuses: Counter[int] = Counter()
        self.findings: list[str] = []

    def send(self, operation: Any, mode: GenerationMode, names: dict[str, str] | None) -> None:
        @hypothesis.seed(1)
        @QUICKLY
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode, path_parameters=names, headers=HEADERS))
        def check(case: Any) -> None:
            _hurry(case)
            sent = {"session": self.session}
            answer = case.call(self.url, **sent)
            self.statuses[answer.status_code] += 1
            case.validate_response(answer, headers=HEADERS, transport_kwargs=sent)
            if answer.status_code == 400 and mode.is_positive:
                problem = answer.json()
                assert "field" in problem or problem["type"] == "/errors/not-supported", problem
            if answer.elapsed > SECONDS:
                # The machine may be busy: only what is slow twice is slow.
                assert case.call(self.url, **sent).elapsed <= SECONDS, f"{operation.label} is slow"

        try:
            check()
        except hypothesis.errors.Unsatisfiable:
            # There are routes to which nothing wrong can be sent.
            return
        except (AssertionError, schemathesis.errors.FailureGroup) as error:
            self.findings.append(f"{operation.label}, {mode.value} data: {error}")


def _hurry(case: Any) -> None:
    """Let no request wait for messages or for the end of a task."""
    for fields in (case.body, case.query):
        if isinstance(fields, dict) and "wait" in fields:
            fields["wait"] = 0


def _names(path: str) -> dict[str, str] | None:
    """Return what exists for the names in the path; None unless all of them are known."""
    names = re.findall(r"{(\w+)}", path)
    return {name: KNOWN[name] for name in names} if names and set(names) <= set(KNOWN) else None


@pytest.mark.long
def test_every_answer_to_generated_requests_is_as_described(api: Api) -> None:
    caller = Caller(api)
    results: Any = caller.schema.get_all_operations()
    found = [result.ok() for result in results]
    # What deletes comes last, so that the others find something.
    for operation in sorted(found, key=lambda one: one.method == "delete"):
        if operation.path in ENDLESS:
            continue
        for mode in GenerationMode:
            caller.send(operation, mode, None)
        if (names := _names(operation.path)) is not None:
            caller.send(operation, GenerationMode.POSITIVE, names)

    assert not caller.findings, "\n\n".join(caller.findings)
    assert caller.statuses.total() >= REQUESTS
    assert not [status for status in caller.statuses if status >= 500]
    assert sum(number for status, number in caller.statuses.items() if status < 300) > REQUESTS // 10
