# SPDX-License-Identifier: Apache-2.0
"""Both range formats through the kit that hosts may use for theirs; and the kit finds a format that is wrong."""

from __future__ import annotations

import hashlib

import pytest

from compactlib.staging import PlainFormat
from compactlib.staging.committed.formats.rows import Rows
from compactlib.staging.model.values import RangeId
from compactlib.testing import check_range_format


class Careless(PlainFormat):
    """Does not look whose file it is."""

    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        """See `RangeFormat.decode`."""
        own = hashlib.blake2b(data[16:], digest_size=20, person=b"compactlib.range").hexdigest()
        return super().decode(data, RangeId(own), path)


def test_the_kit_runs_without_pytest_and_finds_a_careless_format() -> None:
    assert len(check_range_format(PlainFormat())) == 8
    with pytest.raises(AssertionError):
        check_range_format(Careless())
