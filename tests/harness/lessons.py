# SPDX-License-Identifier: Apache-2.0
"""A check of the report of a conformance suite."""

from __future__ import annotations

from compactlib.testing import PromiseBroken


def check_lesson(failure: PromiseBroken, test: str) -> None:
    """Require the promise, the found behaviour, and the remedy."""
    assert failure.test == test
    told = str(failure).splitlines()
    assert told[0].startswith(test.removeprefix("test_").replace("_", " ") + ": ")
    assert told[0].endswith(".")
    labels = [line.split()[0] for line in told if line.startswith("  ") and line[2] != " "]
    assert labels in (["expected:", "found:", "to"], ["found:", "to"]), told
    assert failure.found
    assert len(failure.advice) > 20
    assert max(map(len, told)) < 700
