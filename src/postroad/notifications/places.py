"""Where queues and the database of a worker are."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from postroad.connections.database import dialect_of, path_of
from postroad.errors import ConfigurationError
from postroad.queues.spec import check_name
from postroad.settings import data_path


def queue_name(text: str, *, field: str) -> str:
    """The name of a queue that is given by its name or its URL."""
    name = urlsplit(text).path.rpartition("/")[2] if "://" in text else text
    return check_name(name, field=field)


def refuse_engine_file(backend_url: str, database_url: str, *, field: str = "url") -> None:
    """Refuse a database in the engine's own file: two SQLite libraries on one file would damage it."""
    dialect, engine = dialect_of(database_url), data_path(backend_url)
    if engine is None or dialect != "sqlite":
        return
    own = Path(path_of(database_url))
    if _is_same(engine, own):
        raise ConfigurationError(
            f"{field}: {own} is the backend's own file {engine}", field=field,
            remedy="Name another file; the backend's is its own.",
        )  # fmt: skip


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.absolute().resolve() == other.absolute().resolve()
