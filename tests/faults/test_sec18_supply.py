"""SEC18: what Postroad is made of can be listed, looked up and locked by hash."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def supply() -> Any:
    spec = importlib.util.spec_from_file_location("supply", ROOT / "tools" / "supply.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sec18_the_bill_of_materials_names_every_dependency(supply: Any, tmp_path: Path) -> None:
    options = ["--of", "JSON", "-o", str(tmp_path / "sbom.json")]
    lines = supply.requirements()
    subprocess.run(
        [Path(sys.executable).parent / "cyclonedx-py", "requirements", "-", *options],
        input="\n".join(lines),
        text=True,
        check=True,
    )

    bill = json.loads((tmp_path / "sbom.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = {re.split(r"[^A-Za-z0-9_-]", each)[0] for each in project["dependencies"]}
    assert {f"{each['name']}=={each['version']}" for each in bill["components"]} == set(lines)
    assert direct | {"boto3", "psycopg", "litestar", "httpx"} <= {each["name"] for each in bill["components"]}


def test_sec18_a_lock_has_the_hash_of_everything_that_is_downloaded(supply: Any) -> None:
    report = {
        "install": [
            {
                "metadata": {"name": "apsw", "version": "3.51"},
                "download_info": {"archive_info": {"hashes": {"sha256": "ab" * 32}}},
            },
            {"metadata": {"name": "postroad", "version": "0.1"}, "download_info": {"dir_info": {}}},
        ]
    }

    assert supply.locked(report) == f"apsw==3.51 --hash=sha256:{'ab' * 32}\n"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}]}', 1, "a 1: CVE-1"),
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', 0, "1 packages audited, 0 with"),
        ('{"dependencies": [{"name": "a", "skip_reason": "not found"}]}', 0, "not audited: 1 of 1"),
        ("", 0, "not audited: the database cannot be reached"),
    ],
)
def test_sec18_an_audit_fails_for_a_weakness_and_says_what_it_could_not_look_up(
    supply: Any, capsys: pytest.CaptureFixture[str], answer: str, code: int, said: str
) -> None:
    assert supply.report(answer, "connection refused") == code
    assert said in capsys.readouterr().out


def test_sec18_the_policy_says_how_to_report_and_how_to_check() -> None:
    policy = (ROOT / "SECURITY.md").read_text()

    assert "Report a vulnerability" in policy
    assert all(f"`make {target}`" in policy for target in ("sbom", "audit", "lock"))
