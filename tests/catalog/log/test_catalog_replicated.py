# SPDX-License-Identifier: Apache-2.0
"""Commands in a host's logs: written to the byte, and never taken for others, whatever bit of them is flipped."""

from __future__ import annotations

from typing import Any

import pytest

from compactlib.catalog.errors import RecordDamaged, RecordTooNew
from compactlib.catalog.log.records import RecordType, seal, seal_fields
from compactlib.catalog.log.replicated import (
    Claim,
    LowestTime,
    ReplicatedCommand,
    decode_command,
    encode_command,
    is_command,
)
from compactlib.errors import InvalidInput

GOLDEN = {
    "434c435401000a00140000007b2274696d65223a36353533363030303030317d9926f618": LowestTime(65_536_000_001),
    "434c435401000800100000007b226e6f6465223a226e3120c3a4227da3739b7d": Claim("n1 ä"),
}


@pytest.mark.parametrize(("written", "command"), GOLDEN.items())
def test_a_command_is_written_to_the_byte(written: str, command: ReplicatedCommand) -> None:
    assert encode_command(command).hex() == written
    assert decode_command(bytes.fromhex(written)) == command
    assert is_command(bytes.fromhex(written))


@pytest.mark.parametrize("command", [LowestTime(65_536_000_001), Claim("n1")])
def test_a_command_with_a_bit_flipped_or_an_end_cut_off_is_refused(command: ReplicatedCommand) -> None:
    data = encode_command(command)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((RecordDamaged, RecordTooNew)):
            decode_command(bytes(flipped))
    for end in range(len(data)):
        with pytest.raises(RecordDamaged):
            decode_command(data[:end])


@pytest.mark.parametrize("data", [
    seal_fields(b"command", RecordType.PUBLISHED, {"time": 0}),
    seal_fields(b"command", RecordType.PUBLISHED, {"time": "now"}),
    seal_fields(b"command", RecordType.PUBLISHED, {"time": 5, "more": 5}),
    seal_fields(b"command", RecordType.TERM, {"node": ""}),
    seal_fields(b"command", RecordType.TERM, {"node": 7}),
    seal_fields(b"command", RecordType.PIN, {"time": 5}),
    seal_fields(b"term", RecordType.TERM, {"node": "a"}),
    seal(b"command", RecordType.TERM, b"[]"),
    b"",
])
def test_what_is_no_command_is_refused(data: bytes) -> None:
    with pytest.raises(RecordDamaged):
        decode_command(data)


@pytest.mark.parametrize(("make", "wrong"), [
    (LowestTime, 0), (LowestTime, "now"), (Claim, ""), (Claim, 7), (encode_command, 5), (is_command, "text"),
    (decode_command, None),
])
def test_what_cannot_be_a_command_is_refused_by_name(make: Any, wrong: object) -> None:
    with pytest.raises(InvalidInput):
        make(wrong)
