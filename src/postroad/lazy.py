"""Names of a folder that are loaded when they are first used, so that a program loads only the drivers it needs."""

TYPE_CHECKING = False  # as in `typing`, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, homes: "Mapping[str, str]") -> "Callable[[str], Any]":
    """Return the `__getattr__` of a package whose names live in the modules `homes`.

    Args:
        package: The package's `__name__`.
        homes: The names, separated by spaces, under the module that defines them.
    """

    def load(name: str) -> "Any":
        import sys
        from importlib import import_module

        for home, names in homes.items():
            if name in names.split():
                found = getattr(import_module(home), name)
                setattr(sys.modules[package], name, found)
                return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
