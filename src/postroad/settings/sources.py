"""Settings are read from flags, the environment, a file and defaults, in this order of precedence."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from postroad.errors import ConfigurationError
from postroad.settings.environment import Environment, Variable, agent_polls, agent_rate, alerts_allow_loopback
from postroad.settings.settings import BY_ENV, BY_NAME, IN_FILE, KNOWN, PREFIX, TABLES, Key, Refused, Settings, Source


def load(
    *, flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, file: Path | str | None = None
) -> Settings:
    """Read the settings of this process: a flag wins over the environment, which wins over the file.

    Args:
        flags: Values by name of setting; None means that the flag was not given.
        env: The environment, by default that of the process.
        file: The file, by default `postroad.toml` in the working directory if it exists.

    Raises:
        ConfigurationError: A value is not accepted, or a name is not that of a setting; it names the key, the value
            and where it came from.

    Example:
        settings = load(flags={"port": 8080})
    """
    environment = os.environ if env is None else env
    # Only some processes use these, but a bad value should not wait for one of them.
    for read in (agent_rate, agent_polls, alerts_allow_loopback):
        read(environment)
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    layers: tuple[tuple[Source, dict[str, Any]], ...] = (
        ("file", _from_file(file)),
        ("env", _from_environment(environment)),
        ("flag", {name: _read(BY_NAME[name], value, f"flag --{BY_NAME[name].flag}") for name, value in given.items()}),
    )
    for source, layer in layers:
        values |= layer
        sources |= dict.fromkeys(layer, source)
    return Settings(
        **values, failpoints=failpoints(environment), sources=sources, warnings=tuple(_unknown_variables(environment))
    )


def default_url() -> str:
    """Return the backend of a program that names none."""
    return Variable(PREFIX + "URL")() or Settings().url


def default_stage() -> str:
    """Return the stage of a program that names none."""
    return Variable(PREFIX + "STAGE")() or Settings().stage


def failpoints(env: Environment = None) -> str | None:
    """Return the failpoints that this process was started with; an empty text removes all."""
    return (os.environ if env is None else env).get(PREFIX + "FAILPOINTS")


def debugging() -> bool:
    """Return whether the user wants tracebacks; this works even if the settings cannot be read."""
    return Variable(PREFIX + "DEBUG")() not in (None, "0")


def no_color() -> bool:
    """Return whether the user wants no colour anywhere (https://no-color.org), or has a terminal without colours."""
    return Variable("NO_COLOR")() is not None or Variable("TERM")() == "dumb"


def _from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    values = {variable: env[variable] for variable in BY_ENV if env.get(variable)}
    # Platforms that link services announce a service named "postroad" under the name of our own setting.
    if values.get(PREFIX + "PORT", "").startswith("tcp://"):
        del values[PREFIX + "PORT"]
    return {
        BY_ENV[variable].name: _read(BY_ENV[variable], value, f"variable {variable}")
        for variable, value in values.items()
    }


def _unknown_variables(env: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable that is not ours; refuse one that is a misspelt name of ours."""
    known = {*BY_ENV, *KNOWN}
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in known:
            continue
        if (meant := nearest(variable, known)) is not None:
            why = f"variable {variable} is not a setting"
            raise ConfigurationError(why, field=variable, nearest=meant, remedy="Rename or unset the variable.")
        yield f"variable {variable} is not a setting of Postroad; it is ignored"


def _from_file(file: Path | str | None) -> dict[str, Any]:
    path = Path("postroad.toml" if file is None else file)
    if file is None and not path.exists():
        return {}
    found = ((_key_of_file(name, path), value) for name, value in _named(_parse(path)))
    return {key.name: _read(key, value, f"file {path}", named=key.in_file) for key, value in found}


def _named(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a file with their names, which begin with that of the table they are in."""
    for name, value in document.items():
        if isinstance(value, dict) and name in TABLES.values():
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
        remedy = 'Write one setting a line, such as: port = 8787 or stage = "dev".'
        raise ConfigurationError(f"file {path} is not TOML: {error}", remedy=remedy) from error


def _key_of_file(name: str, path: Path) -> Key:
    if name == "token":
        raise ConfigurationError(
            f"token: not accepted in file {path}, where others may read it",
            field="token",
            remedy="Set token_file to a file with mode 0600, or the variable POSTROAD_TOKEN.",
        )
    if name not in IN_FILE:
        keys = ", ".join(key for key in IN_FILE if key != "token")
        why = f"{name}: not a setting (file {path})"
        raise ConfigurationError(why, field=name, nearest=nearest(name, IN_FILE), remedy=f"The settings are {keys}.")
    return IN_FILE[name]


def _read(key: Key, value: Any, source: str, *, named: str | None = None) -> Any:
    try:
        return key.read(value)
    except Refused as refused:
        shown, name = "the value" if key.secret else repr(value)[:200], named or key.name
        raise ConfigurationError(
            f"{name}: {shown} from {source} is not {refused}", field=name, remedy=f"Give {refused}."
        ) from None


def nearest(name: str, candidates: Iterable[str], *, letters: int = 2) -> str | None:
    """Return the candidate at most `letters` typing errors away from `name`, the closest first, or None."""
    found: list[tuple[int, str]] = []
    for other in candidates:
        if abs(len(name) - len(other)) <= letters:
            errors = _distance(name.casefold(), other.casefold())
            if errors <= letters and errors < len(name):
                found.append((errors, other))
    return min(found)[1] if found else None


def _distance(one: str, other: str) -> int:
    """Count the letters to insert, drop, change or swap with their neighbour (optimal string alignment)."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, opposite in enumerate(other, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != opposite))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == opposite:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]
