"""What the staging area answers besides results; leaves of the library's tree."""

from __future__ import annotations

from compactlib.errors import Busy, Conflict, CorruptData, InvalidInput, NotFound, Unsupported

# ------------------------------------------------------------------------------------------- the committed layer


class UnsortedKeys(InvalidInput):
    """Keys that must ascend strictly do not. Sort them and leave out repetitions; nothing was published.

    Attributes:
        previous: the key before.
        found: the key that does not lie above it.
    """

    def __init__(self, *, previous: bytes, found: bytes) -> None:
        super().__init__(f"key {found[:100]!r} comes after {previous[:100]!r}; keys must ascend strictly, each once")
        self.previous = previous
        self.found = found


class NilValue(InvalidInput):
    """A record to be stored is no record: a range holds no tombstones, and an identity is never `None`.

    Attributes:
        key: whose.
    """

    def __init__(self, *, key: bytes, found: str) -> None:
        super().__init__(f"key {key[:100]!r} comes with {found} where a record with an identity was expected")
        self.key = key
        self.found = found


class RangeNotFound(NotFound):
    """A metarange names a range whose file is gone. It was collected while it was still in use, or was lost.

    Attributes:
        range_id: which range.
        path: where its file should be.
    """

    def __init__(self, *, range_id: str, path: str) -> None:
        super().__init__(f"the file {path!r} of range {range_id} is missing; if the branch moved on meanwhile, read "
                         f"its record again, else restore the file from a copy")
        self.range_id = range_id
        self.path = path


class MetaRangeNotFound(NotFound):
    """There is no metarange of this id.

    Attributes:
        metarange_id: which metarange.
        path: where its file should be.
    """

    def __init__(self, *, metarange_id: str, path: str) -> None:
        super().__init__(f"the file {path!r} of metarange {metarange_id} is missing; if the branch moved on meanwhile, "
                         f"read its record again, else restore the file from a copy")
        self.metarange_id = metarange_id
        self.path = path


class DamagedRange(CorruptData):
    """A range or metarange file does not hold what its id promises. Restore it from a copy; nothing was returned."""


class NewerFormat(Unsupported):
    """A range or metarange file was written by a newer release. Read it with that release.

    Attributes:
        path: the file.
        version: its version.
        newest: the newest version that this release reads.
    """

    def __init__(self, *, path: str, version: int, newest: int) -> None:
        super().__init__(f"{path!r} has version {version}, and this release reads versions up to {newest}; "
                         f"read it with the release that wrote it")
        self.path = path
        self.version = version
        self.newest = newest


class MergeConflict(Conflict):
    """Both sides of a merge changed the same keys, each in its own way. Choose a strategy, or mend one side.

    Attributes:
        keys: the first of them, at most 100.
    """

    def __init__(self, message: str, *, keys: tuple[bytes, ...]) -> None:
        super().__init__(message)
        self.keys = keys


class BeingCollected(Busy):
    """A file that was about to be used again is being deleted by a garbage collection at this moment. Try again.

    Attributes:
        id: of the range or metarange.
    """

    def __init__(self, *, id: str) -> None:  # noqa: A002 - the field's name everywhere
        super().__init__(f"{id} is being deleted by a garbage collection right now; try again in a moment")
        self.id = id
