# SPDX-License-Identifier: Apache-2.0
"""The staging sensor's replay: the real sensor counts, and a policy trades compactions for what listings pass over."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from compactlib.errors import InvalidInput
from compactlib.kv import MemoryStore
from compactlib.lab import BranchModel, CsvTrace, replay
from compactlib.objects import MemoryObjects
from compactlib.staging import AlwaysPolicy, CommittedRanges, CompactionSensor, PressurePolicy, Repository

BASE = BranchModel(base_keys=300)


@pytest.fixture
def trace(tmp_path: Path) -> CsvTrace:
    """Two generations of 300 keys, the older one deleted from the front while it is listed."""
    random = Random(2)
    lines = ["time,op,key,size"]
    lines += [f"0,put,{key},1" for key in range(300)]
    lines += [f"1,read,{random.randrange(300)},1" for _ in range(5)]
    lines += [line for key in range(250) for line in (f"2,delete,{key},", "2,read,0,1")]
    (tmp_path / "trace.csv").write_text("\n".join(lines) + "\n")
    return CsvTrace(tmp_path / "trace.csv")


def deletes(number: int) -> PressurePolicy:
    """Deletes alone count."""
    return PressurePolicy(deletes=number, sealed_tokens=1 << 40, tombstones_listed=1 << 40)


def test_a_delete_stages_a_tombstone_whatever_the_layers_hold(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,op,key,size\n0,delete,b,\n1,put,a,5\n2,delete,a,\n3,delete,a,\n")
    total = replay(CsvTrace(tmp_path / "t.csv"), deletes(10), BranchModel(tombstone_bytes=2)).total
    assert (total.user_bytes, total.used_bytes, total.live_bytes) == (5 + 3 * 2, 4, 0)


@pytest.mark.parametrize("threshold", [1, 3, 4])
def test_sensor_counts_the_deletes_of_a_replay_as_those_of_a_branch(tmp_path: Path, threshold: int) -> None:
    (tmp_path / "t.csv").write_text("time,op,key,size\n0,put,a,1\n1,delete,a,\n2,delete,a,\n3,delete,b,\n")
    total = replay(CsvTrace(tmp_path / "t.csv"), deletes(threshold), BranchModel()).total
    sensor = CompactionSensor(deletes(threshold))
    repository = Repository(MemoryStore(), CommittedRanges(MemoryObjects()), sensor=sensor)
    branch = repository.create_branch("main")
    compactions = 0
    branch.put(b"a", b"1")
    for key in (b"a", b"a", b"b"):
        branch.delete(key)
        for _ in sensor.take():
            repository.compact(branch=branch, policy=AlwaysPolicy(window_seconds=0))
            compactions += 1
    assert total.compactions == compactions


def test_a_tombstone_over_nothing_rewrites_no_range(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,op,key,size\n0,read,a,1\n1,put,b,7\n2,delete,c,\n3,delete,b,\n")
    settings = BranchModel(base_keys=1, base_bytes=10, range_keys=5)
    total = replay(CsvTrace(tmp_path / "t.csv"), deletes(2), settings).total
    assert (total.compactions, total.copied_bytes, total.used_bytes) == (1, 0, 10)


def test_an_emptied_range_is_freed_and_counts_when_written_again(tmp_path: Path) -> None:
    """The only range is emptied, filled and emptied again; each delete compacts, and so does the end of the second."""
    (tmp_path / "t.csv").write_text("time,op,key,size\n0,put,a,1\n1,put,b,1\n2,delete,a,\n3,delete,b,\n4,put,a,1\n"
                                    "5,put,b,1\n6,delete,a,\n")
    total = replay(CsvTrace(tmp_path / "t.csv"), deletes(1), BranchModel(range_keys=5)).total
    assert total.compactions == 3
    # b comes with the first, goes with the second and comes again with the third: one range more than at the start.
    assert total.freed_segments == -1
    assert total.victims == 1


def test_bytes_of_one_compaction(tmp_path: Path) -> None:
    """Base: keys 0 to 9 of 10 bytes in ranges of 5; key 0 is replaced at 1 s, key 1 deleted at 2 s, compacted then."""
    (tmp_path / "t.csv").write_text("time,op,key,size\n0,read,a,1\n1,put,a,30\n2,delete,b,\n")
    settings = BranchModel(base_keys=10, base_bytes=10, tombstone_bytes=2, range_keys=5)
    total = replay(CsvTrace(tmp_path / "t.csv"), deletes(1), settings).total
    assert (total.user_bytes, total.victims, total.compactions) == (32, 1, 1)
    assert total.copied_bytes == 3 * 10 + 30
    assert total.used_bytes == total.live_bytes == 9 * 10 - 10 + 30
    assert total.listed_keys == 10


@pytest.mark.parametrize("threshold", [1, 10, 100])
def test_the_sooner_a_branch_is_compacted_the_less_listings_pass_over(trace: CsvTrace, threshold: int) -> None:
    eager = replay(trace, deletes(threshold), BASE)
    lazy = replay(trace, deletes(threshold * 2), BASE)
    assert eager.total.compactions == 250 // threshold
    assert eager.total.passed_tombstones < lazy.total.passed_tombstones
    assert replay(trace, deletes(threshold), BASE) == eager


def test_listed_tombstones_trigger_compactions(trace: CsvTrace) -> None:
    report = replay(trace, PressurePolicy(deletes=1 << 40, tombstones_listed=500), BASE)
    assert report.total.compactions > 1
    assert report.total.read_amplification > 1
    assert "compactions" in repr(report)


def test_a_page_has_a_key() -> None:
    with pytest.raises(InvalidInput, match="page_keys is 0"):
        BranchModel(page_keys=0)
