"""The files in deploy/: what they contain works, without root and without a Docker of one's own."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from tests.aws.emulators import free_port
from tests.environments import ROOT
from tests.waiting import eventually

from postroad.settings import Settings

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
TOKEN = "t" * 32
Instruction = tuple[str, str]


def dockerfile() -> list[list[Instruction]]:
    """Return the instructions of each stage."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M).replace("\\\n", "")
    lines = [line.partition(" ") for line in text.splitlines() if line.strip()]
    stages: list[list[Instruction]] = []
    for name, _, argument in lines:
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, argument.strip()))
    return stages


BUILD, FINAL = dockerfile()


def only(stage: list[Instruction], name: str) -> str:
    """Return the argument of an instruction that a stage has once."""
    [argument] = [argument for each, argument in stage if each == name]
    return argument


def variables() -> dict[str, str]:
    """Return the variables that the image sets."""
    return dict(pair.split("=", 1) for pair in only(FINAL, "ENV").split())


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(delimiters="=", interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the names of systemd have capitals
    parser.read(DEPLOY / "postroad.service")
    return parser


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["postroad"]


def clean(**added: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")} | added


@contextmanager
def running(command: list[str], directory: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command, and end it if the test did not."""
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def health_of(process: subprocess.Popen[bytes], port: str) -> int:
    assert process.poll() is None, "it has ended"
    return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code


@pytest.mark.slow
def test_the_dockerfile_is_free_of_lint() -> None:
    done = subprocess.run([BIN / "hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_container_is_not_root_and_says_whether_it_is_healthy() -> None:
    names = [name for name, _ in FINAL]

    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", only(FINAL, "USER"))
    assert names.index("USER") > max(index for index, name in enumerate(names) if name in ("RUN", "COPY"))
    assert "/health" in only(FINAL, "HEALTHCHECK")
    assert json.loads(only(FINAL, "ENTRYPOINT")) + json.loads(only(FINAL, "CMD")) == ["postroad", "up"]


def test_the_image_is_built_from_files_that_the_build_may_read() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    ignored, *rules = [line for line in lines if not line.startswith("#")]
    sources = [name for each, argument in BUILD if each == "COPY" for name in argument.split()[:-1]]

    assert {only(stage, "FROM").split()[0] for stage in (BUILD, FINAL)} == {f"python:{newest_python()}-slim"}
    assert ignored == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == set(sources)
    assert all((ROOT / name).exists() for name in sources)


def newest_python() -> str:
    named: list[str] = re.findall(r":: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    return named[-1]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("useradd") is None, reason="only root can make users")
def test_the_command_that_makes_the_user_makes_it_in_an_empty_system(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "shadow", "gshadow"):
        (tmp_path / "etc" / name).touch()
    user = only(FINAL, "USER").partition(":")[0]

    command = re.sub(r"\b(groupadd|useradd)\b", rf"\1 --prefix {tmp_path}", only(FINAL, "RUN"))
    done = subprocess.run(["sh", "-ec", command], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert f"postroad:x:{user}:{user}::/data:" in (tmp_path / "etc" / "passwd").read_text()


@pytest.mark.long
@pytest.mark.slow
def test_the_commands_of_the_dockerfile_install_start_check_and_stop_it(tmp_path: Path) -> None:
    environment = container(tmp_path)
    install_as_in_the_image(tmp_path, environment)
    start = [*json.loads(only(FINAL, "ENTRYPOINT")), *json.loads(only(FINAL, "CMD"))]
    check = json.loads(only(FINAL, "HEALTHCHECK").partition("CMD ")[2])

    def is_healthy() -> bool:
        return subprocess.run(check, env=environment, capture_output=True).returncode == 0

    program = shutil.which(start[0], path=environment["PATH"])
    assert program == str(tmp_path / "opt" / "bin" / "postroad")
    with running([program, *start[1:]], tmp_path / "data", environment) as process:
        eventually(is_healthy, every=0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, (tmp_path / "data" / "log").read_text()
    assert not is_healthy()
    assert (tmp_path / "data" / "postroad.db").exists()


def container(place: Path) -> dict[str, str]:
    """Return the variables of the container, with directories below `place`."""
    set_by_compose = {"POSTROAD_TOKEN": TOKEN, "POSTROAD_ALLOWED_HOSTS": "localhost"}
    assert set(compose()["environment"]) == set(set_by_compose)
    image = {name: value.replace("/data", f"{place}/data") for name, value in variables().items()}
    image["PATH"] = image["PATH"].replace("/opt/postroad", f"{place}/opt").replace("$PATH", os.environ["PATH"])
    return clean(**image, **set_by_compose) | {"POSTROAD_PORT": str(free_port())}


def install_as_in_the_image(place: Path, environment: dict[str, str]) -> None:
    """Copy and run what the first stage copies and runs."""
    (place / "source").mkdir()
    (place / "data").mkdir()
    for argument in (argument for name, argument in BUILD if name == "COPY"):
        *sources, _ = argument.split()
        for name in sources:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, place / "source" / name)
    command = only(BUILD, "RUN").replace("/opt/postroad", f"{place}/opt")
    # Bytecode is written at the first import: pulumi-aws has thousands of modules that nobody imports.
    build = {**environment, "PATH": f"{BIN}:{environment['PATH']}", "PIP_COMPILE": "0"}
    done = subprocess.run(["sh", "-ec", command], cwd=place / "source", env=build, capture_output=True, text=True)
    if "No matching distribution" in done.stderr:
        pytest.skip("absent: a package index")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_container_refuses_to_listen_without_a_token(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    environment = {name: value for name, value in container(tmp_path).items() if name != "POSTROAD_TOKEN"}

    done = subprocess.run([BIN / "postroad", "up"], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 2
    assert "Set POSTROAD_TOKEN" in done.stderr


def test_compose_builds_the_image_keeps_its_data_and_gives_it_time_to_stop() -> None:
    service = compose()

    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert service["volumes"] == [f"data:{only(FINAL, 'VOLUME')}"]
    assert service["ports"] == [f"127.0.0.1:{only(FINAL, 'EXPOSE')}:{variables()['POSTROAD_PORT']}"]
    assert service["environment"]["POSTROAD_TOKEN"].startswith("${POSTROAD_TOKEN:?")
    assert service["stop_grace_period"] == f"{unit()['Service']['TimeoutStopSec']}s"


def test_every_setting_that_they_name_is_one() -> None:
    text = "".join(path.read_text() for path in DEPLOY.iterdir())

    assert set(re.findall(r"\bPOSTROAD_[A-Z_]+", text)) <= {setting["env"] for setting in Settings().items()}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_unit_and_finds_it_confined(tmp_path: Path) -> None:
    copy = tmp_path / "postroad.service"
    copy.write_text((DEPLOY / copy.name).read_text().replace("/opt/postroad/bin", str(BIN)))

    for arguments in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=30"]):
        done = subprocess.run(["systemd-analyze", *arguments, copy], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_unit_starts_it_in_its_directory_and_stops_it_in_time(tmp_path: Path) -> None:
    service = unit()["Service"]
    command = service["ExecStart"].replace("/opt/postroad/bin", str(BIN)).split()
    name, _, url = service["Environment"].partition("=")
    port = str(free_port())
    # What an operator writes into the file of settings.
    environment = clean(**{name: url.replace("/var/lib/postroad", str(tmp_path))}, POSTROAD_PORT=port)

    with running(command, tmp_path, environment) as process:
        eventually(lambda: health_of(process, port) == 200, every=0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(int(service["TimeoutStopSec"])) == 0

    assert (tmp_path / "postroad.db").exists()
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"


def test_the_commands_in_the_head_of_the_unit_make_what_it_starts() -> None:
    head = re.findall(r"^#   (.+)$", (DEPLOY / "postroad.service").read_text(), re.M)
    program = unit()["Service"]["ExecStart"].split()[0]

    assert head[0] == f"sudo python3 -m venv {Path(program).parents[1]}"
    assert head[1] == f'sudo {Path(program).parent}/python -m pip install "postroad[all]"'
    assert head[2] == "sudo cp deploy/postroad.service /etc/systemd/system/"


def test_the_guide_uses_every_file() -> None:
    text = (ROOT / "docs" / "deploying.md").read_text()

    assert [path.name for path in DEPLOY.iterdir() if f"deploy/{path.name}" not in text] == []
