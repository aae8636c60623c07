# SPDX-License-Identifier: Apache-2.0
"""A disk each of whose changes is one step of an actor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from compactlib.files.disk import Files, StrPath
from tests.tools.faults.files_in_front import FilesInFront
from tests.tools.interleave.access import Access, cell
from tests.tools.interleave.stage import Stage


class SteppedFiles(FilesInFront):
    """A `Files` in front of another one; each change is one step of the actor. Reads are none.

    Args:
        files: carries the changes out; the local disk if not given. Use a `RecordingFiles` and `explore_crashes` in the
            check for a power failure after each run.
        stage: whose actors use it.
    """

    def __init__(self, files: Files | None, stage: Stage) -> None:
        super().__init__(files)
        self._stage = stage

    @contextlib.contextmanager
    def step(self, operation: str, path: StrPath, *, target: StrPath | None = None,
             half: Callable[[], object] | None = None, grows: bool = False) -> Iterator[None]:
        """See `FilesInFront.step`: wait for the actor's turn."""
        # One cell for the whole disk: readers do not say what they read, so no two changes may be exchanged.
        name = str(target or path).rpartition("/")[2]
        self._stage.step(Access(f"{operation} {name}", (cell("disk", "", writes=True),)))
        yield

    def __repr__(self) -> str:
        return f"SteppedFiles({self._files!r})"
