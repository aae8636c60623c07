# SPDX-License-Identifier: Apache-2.0
"""The compaction log's file to the byte (L3), and damage (L4)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore.compaction.progress.compaction_file import (
    LOG_NAME,
    CompactionFile,
    close_log,
    read_log,
    write_log,
)
from compactlib.blobstore.compaction.progress.compaction_format import (
    MAGIC,
    VERSION,
    StoredLog,
    decode_log,
    encode_log,
    encode_step,
)
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog
from compactlib.blobstore.model.names import SegmentName
from compactlib.errors import CorruptData, StorageError, Unsupported
from compactlib.files import LocalFiles
from compactlib.files.checksum import crc32
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.blobstore.compaction.progress.compaction_logs import at_all_phases, begun, with_step
from tests.tools.faults.plan import FailingFiles

GOLDEN = Path(__file__).parents[3] / "promises" / "golden" / "blobstore"
FILES = LocalFiles()


# --------------------------------------------------------------------------------------------------------- the file


def in_steps(logs: Sequence[CompactionLog]) -> bytes:
    """The bytes of a file that was begun with the first of these and led through the others."""
    data = encode_log(logs[0])
    for log in logs[1:]:
        data = with_step(data, log)
    return data


def straight_on() -> list[CompactionLog]:
    """The steps of one compaction, none left out, nothing given up."""
    logs = at_all_phases()
    return [*logs[:6], logs[7], logs[8]]


def test_the_bytes_of_each_phase() -> None:
    for place, log in enumerate(at_all_phases()):
        path = GOLDEN / f"compaction-log-v4-{place}.bin"
        assert decode_log(path.read_bytes(), str(path)).log == log
        assert encode_log(log) == path.read_bytes()


def test_the_bytes_of_steps_are_read() -> None:
    path = GOLDEN / "compaction-log-v4-steps.bin"
    stored = decode_log(path.read_bytes(), str(path))
    assert (stored.log, stored.steps, stored.torn_bytes) == (straight_on()[-1], 7, 0)
    assert in_steps(straight_on()) == path.read_bytes()


def test_a_file_is_led_on_in_steps(tmp_path: Path) -> None:
    logs = straight_on()
    (tmp_path / LOG_NAME).write_bytes(encode_log(logs[2]))
    assert read_log(tmp_path) == logs[2]
    file = CompactionFile(FILES, tmp_path)
    for log in logs[3:]:
        file.write(log)
    assert (tmp_path / LOG_NAME).read_bytes() == in_steps(logs[3:])


def test_each_flipped_or_missing_byte_is_damage_or_the_step_before() -> None:
    logs = straight_on()
    data, whole = in_steps(logs), encode_log(logs[0])
    last = len(in_steps(logs[:-1]))
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1
        if place < last:
            with pytest.raises((CorruptData, Unsupported)):
                decode_log(bytes(broken), "COMPACTION")
        else:
            # What is left of a step that was never finished looks like this, too.
            assert decode_log(bytes(broken), "COMPACTION").log == logs[-2]
        if place < len(whole):
            with pytest.raises(CorruptData):
                decode_log(data[:place], "COMPACTION")
        else:
            assert decode_log(data[:place], "COMPACTION").log in logs


def test_each_flipped_or_missing_byte_of_a_file_without_steps_is_damage() -> None:
    data = (GOLDEN / f"compaction-log-v{VERSION}-4.bin").read_bytes()
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1
        with pytest.raises((CorruptData, Unsupported)):
            decode_log(bytes(broken), "COMPACTION")
        with pytest.raises(CorruptData):
            decode_log(data[:place], "COMPACTION")


@given(st.binary(max_size=300))
def test_a_body_under_a_valid_crc_that_makes_no_sense_is_damage(body: bytes) -> None:
    head = (MAGIC + VERSION.to_bytes(4, "little") + crc32(body, 0).to_bytes(4, "little")
            + len(body).to_bytes(8, "little"))
    with contextlib.suppress(CorruptData):
        decode_log(head + body, "COMPACTION").log.audit()


@given(st.binary(max_size=300))
def test_anything_behind_the_last_step_is_a_step_that_was_never_finished(tail: bytes) -> None:
    logs = straight_on()
    stored = decode_log(in_steps(logs) + tail, "COMPACTION")
    assert (stored.log, stored.torn_bytes) == (logs[-1], len(tail))


def test_a_step_of_another_file_or_place_does_not_count() -> None:
    logs = straight_on()
    data = in_steps(logs)
    other = [attrs.evolve(log, number=8) for log in logs]
    foreign = in_steps(other[:4])[len(in_steps(other[:3])):]
    assert decode_log(in_steps(logs[:3]) + foreign, "x").log == logs[2]
    twice = data[len(in_steps(logs[:-1])):]
    assert decode_log(data + twice, "x").log == logs[-1]


def test_a_step_is_as_long_as_its_cycle_whatever_came_before() -> None:
    names_of_victims = tuple(SegmentName(number, 0) for number in range(300))
    log = begun(victims=names_of_victims)
    stored = StoredLog.whole(log, encode_log(log))
    lengths = set()
    for name in names_of_victims:
        copying = log.start_copy((name,), None, (), 1)
        log = copying.start_commit(0, 2).start_cleanup(3).end_cycle(4)
        for step in (copying, log):
            data = encode_step(stored, step)
            assert data is not None
            lengths.add(len(data))
            stored = attrs.evolve(stored, log=step)
    assert max(lengths) < 500


def test_a_later_version_is_not_damage() -> None:
    data = bytearray(encode_log(begun()))
    data[8] = VERSION + 1
    with pytest.raises(Unsupported, match="upgrade"):
        decode_log(bytes(data), "COMPACTION")


@pytest.mark.parametrize("fail_at", [8, 9])
@pytest.mark.parametrize("short_write", [False, True])
def test_after_a_step_that_the_disk_refused_the_file_is_begun_anew(fail_at: int, short_write: bool,
                                                                   tmp_path: Path) -> None:
    logs = straight_on()
    # Five changes begin the file, and two append each step.
    file = CompactionFile(FailingFiles(fail_at=fail_at, short_write=short_write), tmp_path)
    file.write(logs[0])
    file.write(logs[1])
    with pytest.raises(StorageError):
        file.write(logs[2])
    assert read_log(tmp_path) == logs[2 if fail_at == 9 else 1]
    file.write(logs[3])
    assert (tmp_path / LOG_NAME).read_bytes() == encode_log(logs[3])
    file.write(logs[4])
    assert read_log(tmp_path) == logs[4]


def test_the_file_is_whole_or_not_there_at_any_crash(tmp_path: Path) -> None:
    logs = at_all_phases()

    def work(folder: Path, files: RecordingFiles) -> None:
        file = CompactionFile(files, folder)
        for log in (*logs[:6], logs[7], logs[8]):
            file.write(log)
            files.acknowledge(log)
        close_log(files, folder, logs[8])

    def check(folder: Path, acknowledged: Any) -> None:
        found = read_log(folder)
        if found is not None and acknowledged:
            assert logs.index(found) >= logs.index(acknowledged[-1])
        if found is None and acknowledged:
            assert acknowledged[-1] == logs[8], "it goes only when it is over"

    checked = explore_crashes(record(tmp_path, work), check)
    assert checked > 10


# ----------------------------------------------------------------------------------------------------------- its end


@pytest.mark.parametrize("ended", [straight_on()[-1], begun().drop()], ids=["committed", "dropped"])
def test_a_compaction_that_is_over_leaves_no_file(ended: CompactionLog, tmp_path: Path) -> None:
    write_log(FILES, tmp_path, ended)
    close_log(FILES, tmp_path, ended)
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__" and sys.argv[1:] == ["write"]:
    for number, sample in enumerate(at_all_phases()):
        (GOLDEN / f"compaction-log-v{VERSION}-{number}.bin").write_bytes(encode_log(sample))
    (GOLDEN / f"compaction-log-v{VERSION}-steps.bin").write_bytes(in_steps(straight_on()))
