"""Reading the settings: flag before environment before file before default."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from postroad.errors import ConfigurationError
from postroad.settings.names import nearest
from postroad.settings.settings import (
    BY_ENV,
    BY_NAME,
    IN_FILE,
    KNOWN_BESIDES,
    KNOWN_PREFIXES,
    PREFIX,
    TABLES,
    Key,
    Refused,
    Settings,
    Source,
)

FILE_NAME = "postroad.toml"


def load(
    *,
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | str | None = None,
) -> Settings:
    """The settings of this process. A flag of None was not given; without `file` the working directory's is read."""
    environment = os.environ if env is None else env
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    layers: tuple[tuple[Source, dict[str, Any]], ...] = (
        ("file", _from_file(file)),
        ("env", _from_environment(environment)),
        ("flag", _from_flags(flags or {})),
    )
    for source, layer in layers:
        values |= layer
        sources |= dict.fromkeys(layer, source)
    return Settings(
        **values,
        failpoints=environment.get(PREFIX + "FAILPOINTS"),
        sources=sources,
        warnings=tuple(_unknown_variables(environment)),
    )


def default_url(env: Mapping[str, str] | None = None) -> str:
    """The backend that a program which names none opens."""
    return (os.environ if env is None else env).get(PREFIX + "URL") or Settings().url


def default_stage(env: Mapping[str, str] | None = None) -> str:
    """The stage of a program that names none."""
    return (os.environ if env is None else env).get(PREFIX + "STAGE") or Settings().stage


def failpoints(env: Mapping[str, str] | None = None) -> str | None:
    """The failpoints this process was started with."""
    return (os.environ if env is None else env).get(PREFIX + "FAILPOINTS")


def debugging(env: Mapping[str, str] | None = None) -> bool:
    """Whether tracebacks are wanted; known even when the settings cannot be read."""
    return (os.environ if env is None else env).get(PREFIX + "DEBUG", "") not in ("", "0")


def no_color(env: Mapping[str, str] | None = None) -> bool:
    """Whether the user wants no colour anywhere (https://no-color.org)."""
    return bool((os.environ if env is None else env).get("NO_COLOR"))


def _from_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in flags.items() if value is not None}
    return {name: _read(BY_NAME[name], value, f"flag --{name.replace('_', '-')}") for name, value in given.items()}


def _from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    return {
        key.name: _read(key, env[variable], f"variable {variable}")
        for variable, key in BY_ENV.items()
        if env.get(variable) and not _injected(variable, env[variable])
    }


def _injected(variable: str, value: str) -> bool:
    # Platforms that link services announce a service named "postroad" under the name of our own setting.
    return variable == PREFIX + "PORT" and value.startswith("tcp://")


def _unknown_variables(env: Mapping[str, str]) -> Iterator[str]:
    """A warning for each variable that is none of ours; one that was surely meant to be ours is refused."""
    known = {*BY_ENV, *KNOWN_BESIDES}
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in known or variable.startswith(KNOWN_PREFIXES):
            continue
        if (meant := nearest(variable, known)) is not None:
            raise ConfigurationError(
                f"variable {variable} is not a setting",
                field=variable,
                nearest=meant,
                remedy="Rename or unset the variable.",
            )
        yield f"variable {variable} is not a setting of Postroad; it is ignored"


def _from_file(file: Path | str | None) -> dict[str, Any]:
    path = Path(FILE_NAME if file is None else file)
    if file is None and not path.exists():
        return {}
    found = ((_key_of_file(name, path), value) for name, value in _named(_parse(path)))
    return {key.name: _read(key, value, f"file {path}") for key, value in found}


def _named(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a file by their names; those in a table behind its name."""
    for name, value in document.items():
        if isinstance(value, dict) and name in TABLES:
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield name, value


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigurationError(
            f"file {path} cannot be read: {error.strerror}", remedy="Name a readable file with --config."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"file {path} is not UTF-8 text at byte {error.start}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"file {path} is not TOML: {error}",
            remedy='Write one setting a line, such as: port = 8787 or stage = "dev".',
        ) from error


def _key_of_file(name: str, path: Path) -> Key:
    if name == "token":
        raise ConfigurationError(
            f"token: not accepted in file {path}, where others may read it",
            field="token",
            remedy="Set token_file to a file with mode 0600, or the variable POSTROAD_TOKEN.",
        )
    if name not in IN_FILE:
        keys = ", ".join(key for key in IN_FILE if key != "token")
        raise ConfigurationError(
            f"{name}: not a setting (file {path})",
            field=name,
            nearest=nearest(name, IN_FILE),
            remedy=f"The settings are {keys}.",
        )
    return IN_FILE[name]


def _read(key: Key, value: Any, source: str) -> Any:
    try:
        return key.read(value)
    except Refused as refused:
        shown = "the value" if key.secret else repr(value)[:200]
        raise ConfigurationError(
            f"{key.name}: {shown} from {source} is not {refused}",
            field=key.name,
            remedy=f"Give {refused}.",
        ) from None
