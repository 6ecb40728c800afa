"""`postroad.testing` is loaded by programs that have no pytest; only the suites need it."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None
from postroad.testing import FakeClock, assert_idempotent
from postroad.errors import ConfigurationError
try:
    from postroad.testing import QueueConformance
except ConfigurationError as error:
    print(error.message, error.remedy, sep="|")
"""


def test_without_pytest_a_suite_says_what_to_install_and_the_rest_works() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYTEST], capture_output=True, text=True, timeout=60)

    assert done.stderr == ""
    assert done.stdout == (
        "postroad.testing.QueueConformance runs under pytest, which is not installed|pip install pytest\n"
    )
