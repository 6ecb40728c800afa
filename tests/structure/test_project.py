"""The files of a public project: workflows, templates and the notes of a release; their commands work."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from tests.structure.builds import ROOT, built, clean_environment

from postroad import __version__

__all__ = ["built"]

GITHUB = ROOT / ".github"
WORKFLOWS: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text()) for path in GITHUB.glob("workflows/*.yml")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [found[1] for each in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", each))]
SCHEMAS = {
    "github-workflows": ".github/workflows/*.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "compose-spec": "deploy/compose.yaml",
}
TAG = f"v{__version__}"


def triggers(workflow: str) -> Any:
    """Return when a workflow runs; YAML reads the word `on` as true."""
    return WORKFLOWS[workflow][True]


def commands(*jobs: dict[str, Any]) -> list[str]:
    """Return what the steps of the jobs run, in order."""
    return [step["run"] for job in jobs for step in job.get("steps", []) if "run" in step]


def all_jobs() -> list[dict[str, Any]]:
    return [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]


CHECK_THEM = """
import json, sys
from check_jsonschema import main
for arguments in json.loads(sys.argv[1]):
    if main(arguments, standalone_mode=False):
        sys.exit(f"failed: {arguments}")
"""


@pytest.mark.slow
def test_each_file_has_the_form_that_its_reader_expects() -> None:
    files = {schema: sorted(map(str, ROOT.glob(pattern))) for schema, pattern in SCHEMAS.items()}
    calls = [["--builtin-schema", f"vendor.{schema}", *found] for schema, found in files.items()]

    # In one process: the checker takes seconds to import.
    done = subprocess.run([sys.executable, "-c", CHECK_THEM, json.dumps(calls)], capture_output=True, text=True)

    assert all(files.values())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok --") == len(files)


def test_each_change_is_checked_on_every_python() -> None:
    job = WORKFLOWS["check"]["jobs"]["check"]

    assert set(triggers("check")) == {"push", "pull_request"}
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    assert commands(job) == ["make check PYTHON=python"]


def test_each_night_everything_is_tested_on_the_oldest_and_the_newest_python() -> None:
    job = WORKFLOWS["test"]["jobs"]["test"]
    [night] = triggers("test")["schedule"]

    assert re.fullmatch(r"\d+ [0-5] \* \* \*", night["cron"])
    assert job["strategy"]["matrix"]["python"] == [PYTHONS[0], PYTHONS[-1]]
    assert commands(job) == ["make test PYTHON=python"]


def test_a_release_waits_for_the_tests_and_the_builds() -> None:
    jobs = WORKFLOWS["release"]["jobs"]

    assert triggers("release") == {"push": {"tags": ["v*"]}}
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml"
    assert "workflow_call" in triggers("test")
    assert jobs["publish"]["needs"] == ["test", "build"]


def test_workflows_read_only_unless_a_job_says_so_and_end_in_time() -> None:
    assert {str(workflow["permissions"]) for workflow in WORKFLOWS.values()} == {"{'contents': 'read'}"}
    assert [name for name, job in WORKFLOWS["release"]["jobs"].items() if "permissions" in job] == ["publish"]
    assert all("timeout-minutes" in job for job in all_jobs() if "steps" in job)


def test_no_command_holds_text_that_a_stranger_can_choose() -> None:
    assert [command for command in commands(*all_jobs()) if "${{" in command] == []


@pytest.mark.parametrize("command", [each for each in commands(*all_jobs()) if each.startswith("make ")])
def test_a_target_of_make_takes_what_a_workflow_gives_it(command: str) -> None:
    done = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "tools/environment dev" in done.stdout
    assert "-m pytest" in done.stdout


def unpack(built: Path, place: Path) -> Path:
    """Return the sources as they are when somebody has written the changelog of this version."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    folder = place / archive.name.removesuffix(".tar.gz")
    log = folder / "CHANGELOG.md"
    log.write_text(log.read_text().replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{__version__}]\n"))
    return folder


@pytest.mark.long
@pytest.mark.slow
def test_the_commands_of_a_release_build_try_and_attach_wheel_and_archive(built: Path, tmp_path: Path) -> None:
    folder = unpack(built, tmp_path)
    python = Path(clean_environment(tmp_path / "env"))
    gh = python.parent / "gh"
    gh.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > asked\nfor each in "$4" "$5"; do test -s "$each" || exit 3; done\n')
    gh.chmod(0o755)
    server, owner, name = PROJECT["urls"]["Source"].rsplit("/", 2)
    variables = {
        "GITHUB_REF_NAME": TAG,
        "GITHUB_SERVER_URL": server,
        "GITHUB_REPOSITORY": f"{owner}/{name}",
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        # Bytecode is written at the first import, and most modules are never imported.
        "PIP_COMPILE": "0",
    }

    for command in commands(*WORKFLOWS["release"]["jobs"].values()):
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
        )
        if "No matching distribution" in done.stdout + done.stderr:
            pytest.skip("absent: a package index")
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    asked = (folder / "asked").read_text().split()
    assert asked[:3] == ["release", "create", TAG]
    assert asked[3:5] == [f"dist/postroad-{__version__}-py3-none-any.whl", f"dist/postroad-{__version__}.tar.gz"]
    assert "### Added" in (folder / "notes.md").read_text()


def release_notes(root: Path, *arguments: str) -> str:
    spec = importlib.util.spec_from_file_location("release_notes", ROOT / "tools" / "release_notes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return str(module.notes(root, *arguments))
    except module.Refused as refused:
        return f"refused: {refused}"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The files that the notes of a release are taken from."""
    (tmp_path / "src" / "postroad").mkdir(parents=True)
    (tmp_path / "src" / "postroad" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nSource = "https://host/postroad"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.0] - 2026-01-31\n\n- New.\n\n## [1.1.0]\n\n- Old.\n")
    return tmp_path


def test_the_notes_of_a_release_are_its_section_of_the_changelog(sources: Path) -> None:
    assert release_notes(sources, "v1.2.0", "https://host/postroad") == "- New."


@pytest.mark.parametrize(
    ("tag", "address", "why"),
    [
        ("v1.3.0", "https://host/postroad", "the package is 1.2.0; repair: tag that version"),
        ("1.2.0", "https://host/postroad", "the tag is 1.2.0"),
        ("v1.2.0", "https://host/fork", "https://host/fork releases, and pyproject.toml names https://host/postroad"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused_with_the_repair(sources: Path, tag: str, address: str, why: str) -> None:
    assert why in release_notes(sources, tag, address)


def test_a_version_without_notes_is_refused(sources: Path) -> None:
    (sources / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n- New.\n")

    assert "CHANGELOG.md has no section [1.2.0]" in release_notes(sources, "v1.2.0", "https://host/postroad")


def test_the_templates_ask_for_what_the_rules_of_the_house_need() -> None:
    text = (GITHUB / "PULL_REQUEST_TEMPLATE.md").read_text()

    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets
    assert {"CHANGELOG.md", "docs/"} <= set(re.findall(r"`([^`]+)`", text))
