"""Addresses of backends: `sqlite:///path`, `memory://`, `aws://region[?endpoint_url=…&stage=…]`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from postroad.errors import ConfigurationError
from postroad.settings import adapter

DEFAULT_URL = "sqlite:///postroad.db"
_OPTIONS = {
    "sqlite": frozenset[str](),
    "memory": frozenset[str](),
    "aws": frozenset(("endpoint_url", "stage", "bucket", "table")),
}
_REGION = re.compile(r"[a-z0-9-]+")
_ESCAPES = str.maketrans({"%": "%25", "?": "%3F", "#": "%23"})
_FORMS = "sqlite:///path, memory:// or aws://region[?endpoint_url=…&stage=…&bucket=…&table=…]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A backend's address, taken apart; that of an adapter of a third party is its `place` as a whole."""

    scheme: str
    place: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file of an embedded backend."""
        return Path(self.place)

    @property
    def file(self) -> Path | None:
        """The embedded file that is opened for it, if one is; an adapter of a third party stands on the default one."""
        if self.scheme in ("memory", "aws"):
            return None
        return self.path if self.scheme == "sqlite" else parse(DEFAULT_URL).path


def file_url(path: Path) -> str:
    """The address of an embedded file, which `parse` reads back as the same path."""
    return "sqlite:///" + str(path).translate(_ESCAPES)


def parse(url: str) -> Address:
    """Take an address apart, or refuse it naming the remedy."""
    if not isinstance(url, str):
        raise _refused(repr(url), "is not text")
    if not url.isprintable():
        raise _refused(repr(url), "holds a character that cannot be printed")
    parts = _split(url)
    if parts.scheme not in _OPTIONS:
        if adapter(parts.scheme) is None:
            raise _refused(url, f"has an unknown scheme {parts.scheme!r}")
        return Address(scheme=parts.scheme, place=url)
    if url.endswith("?"):
        raise _refused(url, "ends with '?' and names no option", "If it belongs to the name, write %3F. ")
    try:
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise _refused(url, f"has a query that cannot be read: {error}") from None
    for name in options:
        if name not in _OPTIONS[parts.scheme]:
            raise _refused(url, f"has an unknown option {name!r}")
    if not options.get("endpoint_url", "https://").startswith(("http://", "https://")):
        raise _refused(url, "has an endpoint_url that is neither http:// nor https://")
    return Address(scheme=parts.scheme, place=_PLACES[parts.scheme](url, parts.netloc, parts.path), options=options)


def _split(url: str) -> SplitResult:
    """Take it apart without losing anything: what stands behind a '#' belongs to a file's name, or to nothing."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "sqlite":
            return urlsplit(url.replace("#", "%23"))
    except ValueError as error:
        raise _refused(url, f"cannot be read: {error}") from None
    if "#" in url and parts.scheme in _OPTIONS:
        raise _refused(url, "has a '#', which means nothing there")
    return parts


def _sqlite_place(url: str, host: str, path: str) -> str:
    if host or not path.startswith("/") or len(path) < 2:
        raise _refused(url, "names no file: three slashes stand before the path")
    place = unquote(path[1:], errors="surrogateescape")
    if not place.isprintable():
        raise _refused(url, "holds a character that cannot be printed")
    if place.startswith(":memory:"):
        raise _refused(url, "would be lost with this process; memory:// says so")
    return place


def _memory_place(url: str, host: str, path: str) -> str:
    if host or path:
        raise _refused(url, "names a place, which memory does not have")
    return ""


def _aws_place(url: str, host: str, path: str) -> str:
    if path.strip("/"):
        raise _refused(url, "has a path; only the region stands before the options")
    if host and _REGION.fullmatch(host) is None:
        raise _refused(url, f"names {host!r}, which is no region")
    return host


_PLACES = {"sqlite": _sqlite_place, "memory": _memory_place, "aws": _aws_place}


def _refused(url: str, why: str, remedy: str = "") -> ConfigurationError:
    return ConfigurationError(f"url: {url} {why}", field="url", remedy=f"{remedy}Use {_FORMS}.")
