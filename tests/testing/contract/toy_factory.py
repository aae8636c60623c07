# SPDX-License-Identifier: Apache-2.0
"""The toy store as the conformance kit sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compactlib.files import Files
from compactlib.testing import CompactionFactory
from tests.harness.toy_lines import MinGarbage
from tests.testing.contract.toy_store import LineStore


class LineStores(CompactionFactory):
    """Makes stores of one kind."""

    def __init__(self, kind: type[LineStore] = LineStore) -> None:
        self.kind = kind

    def open(self, folder: Path, *, files: Files) -> LineStore:
        return self.kind(folder, files=files)

    def fill(self, store: LineStore, number: int) -> tuple[int, ...]:
        numbers = (2 * number + 1, 2 * number + 2)
        for each in numbers:
            store.write(each, [f"# garbage {line}" if line % 3 == 0 else _line(each, line) for line in range(9)])
        return numbers

    def check(self, store: LineStore, acknowledged: Sequence[tuple[int, ...]]) -> None:
        for numbers in acknowledged:
            for each in numbers:
                assert store.read(each) == [_line(each, line) for line in range(9) if line % 3], f"file {each}"

    def policy(self) -> MinGarbage:
        return MinGarbage(min_bytes=2)

    def damage(self, folder: Path) -> bool:
        path = folder / "0001.lines"
        path.write_bytes(b"\x00" + path.read_bytes()[1:])
        return True


def _line(number: int, line: int) -> str:
    return f"file {number}, line {line}"
