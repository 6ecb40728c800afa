"""How an adapter says, in one line, where its store is known to differ from a conformance suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest


class Differences:
    """The root of every conformance suite: a rule named in `known_differences` is skipped with its reason."""

    known_differences: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in cls.known_differences:
            if not name.startswith("test_") or not callable(getattr(cls, name, None)):
                raise TypeError(f"{cls.__name__}.known_differences: {name!r} is no rule of this suite")

    @pytest.fixture(autouse=True)
    def _skip_known_differences(self, request: pytest.FixtureRequest) -> None:
        reason = self.known_differences.get(request.node.originalname)
        if reason is not None:
            pytest.skip(f"known to differ: {reason}")
