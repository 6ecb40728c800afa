"""What is no mistake of the person at the terminal, or has a remedy of its own; tests/faults has the mistakes."""

from __future__ import annotations

import os
import sys

import pytest
from tests.cli.terminal import Postroad


@pytest.mark.parametrize("name", ["POSTROAD_SERVICE_HOST", "POSTROAD_PORT"])
def test_what_a_platform_injects_is_no_obstacle(name: str, postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:8787")

    outcome = postroad("config", "check")

    assert outcome.code == 0
    assert len(outcome.err.splitlines()) <= 1


def test_a_missing_extra_names_the_command_that_installs_it(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)

    outcome = postroad("queue", "list", "--url", "aws://eu-central-1")

    assert outcome.code == 2
    assert "pip install 'postroad[aws]'" in outcome.err
