from __future__ import annotations

from pathlib import Path

import pytest

from postroad.errors import ConfigurationError
from postroad.settings import Settings, load
from postroad.wiring import connect


def _file(folder: Path, text: str) -> Path:
    path = folder / "postroad.toml"
    path.write_text(text)
    return path


def test_without_flags_variables_and_file_the_defaults_stand() -> None:
    settings = load(env={})

    assert settings == Settings()
    assert {item["source"] for item in settings.items()} == {"default"}


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = _file(tmp_path, 'port = 1\nhost = "file.example"\nstage = "file"\n')
    env = {"POSTROAD_PORT": "2", "POSTROAD_HOST": "env.example"}

    settings = load(flags={"port": 3, "host": None}, env=env, file=file)

    assert (settings.port, settings.host, settings.stage, settings.app) == (3, "env.example", "file", "postroad")
    assert [settings.source(key) for key in ("port", "host", "stage", "app")] == ["flag", "env", "file", "default"]


def test_the_file_of_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _file(tmp_path, 'load = ["shop.events"]\nread_only = true\n')
    monkeypatch.chdir(tmp_path)

    settings = load(env={})

    assert (settings.load, settings.read_only) == (("shop.events",), True)


def test_lists_and_truths_are_read_from_variables() -> None:
    env = {"POSTROAD_ALLOWED_HOSTS": "a.example, b.example", "POSTROAD_READ_ONLY": "yes", "POSTROAD_LOAD": ""}

    settings = load(env=env)

    assert settings.allowed_hosts == ("a.example", "b.example")
    assert settings.read_only
    assert settings.load == ()


def test_a_token_is_starred_and_left_out_of_the_text_form() -> None:
    settings = load(env={"POSTROAD_TOKEN": "pr_secret"})

    shown = {item["key"]: item["value"] for item in settings.items()}

    assert settings.token == "pr_secret"
    assert shown["token"] == "***"
    assert "pr_secret" not in repr(settings)


def test_a_token_in_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="token: not accepted") as caught:
        load(env={}, file=_file(tmp_path, 'token = "pr_secret"'))

    assert "token_file" in caught.value.remedy
    assert "pr_secret" not in str(caught.value)


def test_an_unknown_key_in_the_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="prot: not a setting") as caught:
        load(env={}, file=_file(tmp_path, "prot = 1"))

    assert (caught.value.nearest, caught.value.field) == ("port", "prot")


def test_an_unknown_table_in_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="elsewhere: not a setting"):
        load(env={}, file=_file(tmp_path, "[elsewhere]\nport = 1"))


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("POSTROAD_PROT", "POSTROAD_PORT"),
        ("POSTROAD_LOGLEVEL", "POSTROAD_LOG_LEVEL"),
        ("POSTROAD_DEBG", "POSTROAD_DEBUG"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(variable: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=variable) as caught:
        load(env={variable: "1"})

    assert caught.value.nearest == meant


def test_a_variable_of_the_platform_is_one_warning() -> None:
    settings = load(env={"POSTROAD_SERVICE_HOST": "10.0.0.1", "POSTROAD_PORT": "tcp://10.0.0.1:8787"})

    assert settings.port == 8787
    assert len(settings.warnings) == 1
    assert "POSTROAD_SERVICE_HOST" in settings.warnings[0]


@pytest.mark.parametrize(
    "variable",
    [
        "POSTROAD_DEBUG",
        "POSTROAD_ACTOR",
        "POSTROAD_AUDIT_LOG",
        "POSTROAD_SQS_QUEUE_URL",
        "POSTROAD_TASK_ID",
        "POSTROAD_TASK_TOKEN",
        "POSTROAD_ALERTS_ALLOW_LOOPBACK",
        "POSTROAD_AGENT_RATE",
        "POSTROAD_AGENT_POLLS",
        "POSTROAD_FAILPOINTS",
    ],
)
def test_variables_of_other_parts_are_known(variable: str) -> None:
    assert load(env={variable: "1"}).warnings == ()


@pytest.mark.parametrize(
    ("variable", "value", "form"),
    [
        ("POSTROAD_PORT", "70000", "a whole number from 0 to 65535"),
        ("POSTROAD_PORT", "-1", "a whole number from 0 to 65535"),
        ("POSTROAD_PORT", "\u0668", "a whole number"),
        ("POSTROAD_CONCURRENCY", "0", "a whole number from 1 to 256"),
        ("POSTROAD_READ_ONLY", "perhaps", "true or false"),
        ("POSTROAD_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
        ("POSTROAD_LOG_FORMAT", "xml", "one of auto, console, json"),
        ("POSTROAD_URL", "foo://x", "sqlite:///path"),
        ("POSTROAD_STAGE", "a b", "letters"),
        ("POSTROAD_LOAD", "os;system", "a list of module names"),
        ("POSTROAD_TASK_EVENTS", "maybe", "true or false"),
    ],
)
def test_a_bad_value_names_key_source_value_and_accepted_form(variable: str, value: str, form: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(env={variable: value})

    message = str(caught.value)
    assert all(part in message for part in (variable.removeprefix("POSTROAD_").lower(), variable, repr(value), form))


@pytest.mark.parametrize(
    ("variable", "value", "form"),
    [
        ("POSTROAD_AGENT_RATE", "fast", "a whole number from 0 to 1000000000"),
        ("POSTROAD_AGENT_POLLS", "-1", "a whole number from 0 to 1000000000"),
        ("POSTROAD_ALERTS_ALLOW_LOOPBACK", "maybe", "true or false"),
    ],
)
def test_a_bad_value_of_a_variable_of_some_processes_is_refused_by_all(variable: str, value: str, form: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(env={variable: value})

    assert (str(caught.value), caught.value.field) == (f"variable {variable}: {value!r} is not {form}", variable)


@pytest.mark.parametrize("dsn", ["nonsense", "sqlite:///", "mysql://db/app", "host=db password=secret"])
def test_the_address_of_an_outbox_names_a_database_that_it_knows(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match=r"POSTROAD_OUTBOX_DSN is not postgresql://.* or sqlite:///path") as it:
        load(env={"POSTROAD_OUTBOX_DSN": dsn})

    assert "secret" not in str(it.value)


def test_a_bad_secret_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(env={"POSTROAD_TOKEN": "pr secret"})

    assert "secret" not in str(caught.value)


def test_a_setting_of_a_part_stands_in_its_table_or_its_variable(tmp_path: Path) -> None:
    path = _file(tmp_path, "port = 1\n[agents]\nfunctions = true")

    settings = load(env={}, file=path)
    over = load(env={"POSTROAD_AGENTS_FUNCTIONS": "no"}, file=path)

    assert (settings.port, settings.agents_functions, settings.source("agents_functions")) == (1, True, "file")
    assert (over.agents_functions, over.source("agents_functions")) == (False, "env")
    assert load(env={}, file=_file(tmp_path, "[agents]")).agents_functions is False


@pytest.mark.parametrize(
    ("text", "name", "meant"),
    [
        ("[agents]\nfunctons = true", "agents.functons", "agents.functions"),
        ("agents_functions = true", "agents_functions", "agents.functions"),
        ("task_events = true", "task_events", "tasks.events"),
        ('[tasks]\nqueue = "slow"', "tasks.queue", "tasks.queues"),
        ("agents = 1", "agents", None),
        ("[agent]\nfunctions = true", "agent", None),
    ],
)
def test_a_setting_that_is_misplaced_is_refused_with_the_one_that_was_meant(
    tmp_path: Path, text: str, name: str, meant: str | None
) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}: not a setting") as caught:
        load(env={}, file=_file(tmp_path, text))

    assert caught.value.nearest == meant


TABLES = """
[tasks]
queues = ["tasks", "slow"]
pass_env = ["DATABASE_URL", "SHOP_*"]
child_reuse = 100
kill_grace = "10s"
task_output = "drop"
unknown_grace = 30
events = true

[outbox]
dsn = "postgresql://app:secret@db/app"
topic = "orders"
service = "shop"

[agents]
max_receives = 9
retention = "2d"
visibility = 45
"""


def test_the_tables_of_tasks_outbox_and_agents_are_read(tmp_path: Path) -> None:
    settings = load(env={}, file=_file(tmp_path, TABLES))

    assert settings.task_worker == {
        "queue": ("tasks", "slow"),
        "pass_env": ("DATABASE_URL", "SHOP_*"),
        "child_reuse": 100,
        "kill_grace": 10.0,
        "task_output": "drop",
        "unknown_grace": 30.0,
    }
    assert settings.task_events
    assert (settings.outbox_dsn, settings.outbox_topic, settings.outbox_service) == (
        "postgresql://app:secret@db/app",
        "orders",
        "shop",
    )
    assert settings.agents == {"max_receives": 9, "retention": 172_800.0, "visibility": 45.0}
    shown = {item["key"]: item["value"] for item in settings.items()}
    assert (shown["outbox_dsn"], shown["task_queues"]) == ("***", ["tasks", "slow"])
    assert "secret" not in repr(settings)


def test_variables_and_flags_beat_the_tables(tmp_path: Path) -> None:
    env = {"POSTROAD_TASK_QUEUES": "a,b", "POSTROAD_TASK_EVENTS": "0", "POSTROAD_TASK_KILL_GRACE": "2m"}
    env |= {"POSTROAD_OUTBOX_DSN": "sqlite:///app.db", "POSTROAD_AGENTS_RETENTION": "3600"}

    settings = load(flags={"task_child_reuse": 2}, env=env, file=_file(tmp_path, TABLES))

    assert (settings.task_queues, settings.task_events, settings.task_kill_grace) == (("a", "b"), False, 120.0)
    assert (settings.task_child_reuse, settings.outbox_dsn) == (2, "sqlite:///app.db")
    assert settings.agents_retention == 3_600.0


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("[tasks]\nqueues = [1]", "a list of one or more queue names"),
        ("[tasks]\nqueues = []", "a list of one or more queue names"),
        ('[tasks]\npass_env = ["A B"]', "a list of variables"),
        ('[tasks]\npass_env = ["*"]', "a list of variables"),
        ("[tasks]\nchild_reuse = 0", "a whole number from 1 to 1000"),
        ('[tasks]\nkill_grace = "soon"', "a duration such as 30s or 5m"),
        ("[tasks]\nkill_grace = true", "a duration such as 30s or 5m"),
        ("[tasks]\nunknown_grace = -1", "a duration such as 30s or 5m"),
        ('[tasks]\ntask_output = "loud"', "one of log, inherit, drop"),
        ("[outbox]\ntopic = 1", "the name or ARN of a topic"),
        ("[agents]\nretention = 0", "a duration such as 30s or 5m"),
        ("[agents]\nmax_receives = 1001", "a whole number from 1 to 1000"),
    ],
)
def test_a_bad_value_of_a_part_is_refused_with_what_is_accepted(tmp_path: Path, text: str, form: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(env={}, file=_file(tmp_path, text))

    assert form in str(caught.value)
    assert caught.value.field == f"{text[1:].partition(']')[0]}.{text.partition(chr(10))[2].partition(' ')[0]}"


def test_a_bad_flag_is_named_as_it_was_given() -> None:
    with pytest.raises(ConfigurationError, match="from flag --child-reuse is not a whole number"):
        load(flags={"task_child_reuse": 0}, env={})


def test_a_bad_value_in_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not true or false"):
        load(env={}, file=_file(tmp_path, "[agents]\nfunctions = 7"))


@pytest.mark.parametrize("text", ['port = "abc"', "port = true", "port = 1.5", "port = [1]"])
def test_a_bad_value_in_the_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"port: .* from file .*postroad.toml is not a whole number"):
        load(env={}, file=_file(tmp_path, text))


@pytest.mark.parametrize("text", ["port", "port\t1", "= 1", "port = 1\nport = 2", "[", "a = " + "[" * 5_000])
def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"postroad\.toml is not TOML"):
        load(env={}, file=_file(tmp_path, text))


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "postroad.toml"
    path.write_bytes(b"stage = '\xff'")

    with pytest.raises(ConfigurationError, match="not UTF-8 text at byte 9"):
        load(env={}, file=path)


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load(env={}, file=tmp_path / "elsewhere.toml")


def test_the_password_of_an_endpoint_is_shown_neither_by_the_settings_nor_by_an_error() -> None:
    url = "aws://us-east-1?endpoint_url=http://ann:hunter2@localhost:4566"

    (shown,) = [item["value"] for item in load(flags={"url": url}).items() if item["key"] == "url"]
    with pytest.raises(ConfigurationError) as caught:
        connect(f"{url}&nope=1")

    assert shown == "aws://us-east-1?endpoint_url=http://***@localhost:4566"
    assert "hunter2" not in str(caught.value)
