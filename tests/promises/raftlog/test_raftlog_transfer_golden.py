# SPDX-License-Identifier: Apache-2.0
"""The frames of a transfer are byte for byte those of the golden file, and of the page that describes them."""

from __future__ import annotations

from pathlib import Path

from compactlib.raftlog import StoreOptions, open_log
from tests.harness.snapshot_line import Ended, transfer

GOLDEN = Path(__file__).parents[1] / "golden" / "raftlog" / "transfer.bin"
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "raftlog-transfer.md"


def conversation(folder: Path) -> Ended:
    """A follower that has applied entry 3 gets snapshot 20."""
    with (open_log(folder / "leader", StoreOptions(background=False)) as leader,
          open_log(folder / "follower", StoreOptions(background=False)) as follower):
        leader.append((index, 1 if index < 11 else 3, b"entry %d" % index) for index in range(1, 21))
        leader.snapshot(20, [3, 17, 18], [b"the state"])
        follower.append((index, 1, b"entry %d" % index) for index in range(1, 4))
        return transfer(leader, follower, applied=3)


def test_frames_are_those_of_the_golden_file(tmp_path: Path) -> None:
    assert b"".join(frame.data for frame in conversation(tmp_path).frames) == GOLDEN.read_bytes()


def test_frame_on_the_page_matches_the_sent_bytes(tmp_path: Path) -> None:
    block = PAGE.read_text().partition("```hex\n")[2].partition("```")[0]
    shown = bytes.fromhex("".join(line[6:] for line in block.splitlines()))
    assert [shown] == [frame.data for frame in conversation(tmp_path).frames if frame.kind == "entries"]
