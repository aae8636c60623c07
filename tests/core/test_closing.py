# SPDX-License-Identifier: Apache-2.0
"""An object that could not be completed is closed, and the first error is raised."""

from __future__ import annotations

import pytest

from compactlib._closing import closed_on_failure
from compactlib.errors import StorageError


@pytest.mark.parametrize("error", [ValueError("first"), KeyboardInterrupt("first")])
def test_first_error_is_raised_if_the_close_fails_too(error: BaseException) -> None:
    class Unfinished:
        closes = 0

        def close(self) -> None:
            self.closes += 1
            raise StorageError(operation="close", path="a file", errno=5)

    unfinished = Unfinished()
    with pytest.raises(type(error), match="first") as raised, closed_on_failure(unfinished):
        raise error
    assert unfinished.closes == 1
    assert "close a file" in raised.value.__notes__[0]
