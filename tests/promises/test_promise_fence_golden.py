# SPDX-License-Identifier: Apache-2.0
"""Fences of this format open for ever, and the same calls write the same records.

`python -m tests.promises.test_promise_fence_golden` writes the golden file again: a change in it is another version of
the format, or a mistake.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from random import Random

import pytest

from compactlib.errors import CompactlibError, CorruptData
from compactlib.fences import Commitment, Fence, FencedOff, FileFence, KVFence, OtherLog
from compactlib.kv import MemoryStore

GOLDEN = Path(__file__).parent / "golden" / "fences" / "fences.json"
PAGE = Path(__file__).parents[2] / "docs" / "formats" / "fence.md"
PARTITION = b"fences"
KINDS = ("folder", "store")


def worked(fence: Fence) -> None:
    """What some calls of every kind leave."""
    fence.admit("old", 3)
    fence.commit("old", 3, b"3")
    fence.raise_floor(5)
    fence.admit("idle", 7)
    fence.admit("log", 40)
    fence.commit("log", 40, b"files")
    fence.admit("log", 41)


def written(kind: str, folder: Path) -> dict[str, str]:
    if kind == "folder":
        worked(FileFence(folder / "fence", log="log 1"))
        return {path.name: path.read_bytes().hex() for path in (folder / "fence").iterdir() if path.name != "LOCK"}
    store = MemoryStore()
    worked(KVFence(store, log="log 1", rng=Random(1)))
    return {entry.key.decode(): bytes(entry.value).hex() for entry in store.scan(PARTITION)}


def opened(kind: str, records: dict[str, str], folder: Path, log: str = "log 1") -> Fence:
    if kind == "folder":
        (folder / "kept").mkdir()
        for name, record in records.items():
            (folder / "kept" / name).write_bytes(bytes.fromhex(record))
        return FileFence(folder / "kept", log=log)
    store = MemoryStore()
    for name, record in records.items():
        store.set(PARTITION, name.encode(), bytes.fromhex(record))
    return KVFence(store, log=log)


def kept(kind: str) -> dict[str, str]:
    records: dict[str, str] = json.loads(GOLDEN.read_text())[kind]
    return records


@pytest.mark.parametrize("kind", KINDS)
def test_same_calls_write_the_same_records(kind: str, tmp_path: Path) -> None:
    assert written(kind, tmp_path) == kept(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_golden_records_hold(kind: str, tmp_path: Path) -> None:
    fence = opened(kind, kept(kind), tmp_path)
    assert fence.committed("log") == Commitment(40, b"files")
    assert fence.committed("old") is None
    for resource, token in (("log", 40), ("idle", 6), ("old", 4)):
        with pytest.raises(FencedOff):
            fence.admit(resource, token)
    assert fence.admit("log", 41).token == 41


@pytest.mark.parametrize("kind", KINDS)
def test_golden_records_belong_to_their_log(kind: str, tmp_path: Path) -> None:
    with pytest.raises(OtherLog):
        opened(kind, kept(kind), tmp_path, log="log 2").admit("log", 50)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_any_record_is_found(kind: str, tmp_path: Path) -> None:
    for number, (name, record) in enumerate(kept(kind).items()):
        damaged = bytearray.fromhex(record)
        damaged[-1] ^= 1
        place = tmp_path / str(number)
        place.mkdir()
        try:
            fence = opened(kind, {**kept(kind), name: damaged.hex()}, place)
            for resource in ("log", "idle"):
                fence.admit(resource, 50)
        except CompactlibError as error:
            assert isinstance(error, CorruptData), name
        else:
            raise AssertionError(f"{name} is damaged, and nothing was raised")


def test_page_shows_the_record_of_the_golden_folder() -> None:
    block = re.search(r"```text\n(434c4645.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    assert "".join(block[1].split()) in kept("folder").values()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps({kind: written(kind, Path(scratch)) for kind in KINDS}, indent=1) + "\n")
