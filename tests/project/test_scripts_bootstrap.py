# SPDX-License-Identifier: Apache-2.0
"""When the environment is made anew: its fingerprint, and whether it belongs to the chosen Python."""

from __future__ import annotations

import pytest

from scripts.bootstrap import fingerprint, fits

CONFIG = """home = /usr/bin
include-system-site-packages = false
version = 3.11.7
executable = /usr/bin/python3.11
"""


def test_the_fingerprint_depends_on_the_content_of_every_lock_and_on_the_python() -> None:
    prints = {
        fingerprint([b"a", b"b"], "3.11"), fingerprint([b"a", b"c"], "3.11"), fingerprint([b"c", b"b"], "3.11"),
        fingerprint([b"ab", b""], "3.11"), fingerprint([b"b", b"a"], "3.11"), fingerprint([b"a", b"b"], "3.12"),
    }
    assert len(prints) == 6
    assert fingerprint([b"a", b"b"], "3.11") == fingerprint([b"a", b"b"], "3.11")


@pytest.mark.parametrize(("config", "version", "expected"), [
    (CONFIG, "3.11", True),
    (CONFIG, "3.12", False),
    (CONFIG, "3.1", False),
    ("version_info = 3.13.0\n", "3.13", True),
    ("", "3.11", False),
])
def test_an_environment_fits_the_python_that_it_was_made_by(config: str, version: str, *, expected: bool) -> None:
    assert fits(config, version) is expected
