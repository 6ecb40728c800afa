"""Write docs/errors.md from the error classes."""

from __future__ import annotations

from pathlib import Path

from postroad import errors

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
_HEAD = """# Errors

Every error Postroad raises derives from `PostroadError` and lives in `postroad.errors`. Its `slug`, HTTP `status` and
`remedy` are the same in Python, on the command line, in the HTTP API and here. This page is made by `make errors`.

"""


def page() -> str:
    """Return the content of the page."""
    return _HEAD + _tree() + "".join(_section(error) for error in _all())


def _all() -> list[type[errors.PostroadError]]:
    found = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.PostroadError)
    ]
    return sorted(found, key=lambda error: error.slug)


def _tree() -> str:
    drawing = str(errors.__doc__).split("\n\n")[1]
    return f"```text\n{_dedent(drawing)}\n```\n"


def _dedent(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.strip("\n").splitlines())


def _section(error: type[errors.PostroadError]) -> str:
    parent = error.__mro__[1].__name__
    kind = "" if parent == "Exception" else f" A kind of `{parent}`."
    what = f"`{error.__name__}`, status {error.status}. {_sentence(error)}{kind}"
    return f"\n## {error.slug}\n\n{what}\n\n**Remedy:** {error.remedy}\n"


def _sentence(error: type[errors.PostroadError]) -> str:
    return str(error.__doc__).split("\n\n")[0].strip()


if __name__ == "__main__":
    PAGE.write_text(page())
