# SPDX-License-Identifier: Apache-2.0
"""Branch records, commits, staged entries and marks as bytes: they decode, damage is found, golden files stay.

`python -m tests.staging.records.test_staging_record` writes the golden files; a change in them is a new format.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.files.checksum import crc32
from compactlib.staging import Commit, Record
from compactlib.staging.commits import decode_commit, encode_commit
from compactlib.staging.record import BranchRecord, decode_branch_record, encode_branch_record
from compactlib.staging.tokens import Staged, decode_staged, encode_staged
from compactlib.staging.values import (
    CommitId,
    MetaRangeId,
    StagingToken,
    branch_key,
    is_commit_id,
    is_staging_token,
    repository_partition,
)

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "staging"
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "staging-records.md"

def token(number: int) -> StagingToken:
    return StagingToken(f"stg-{number:032x}")

def commit_id(number: int) -> CommitId:
    return CommitId(f"{number:064x}")

RECORD = BranchRecord(version=7, commit_id=commit_id(1), staging_token=token(3), sealed_tokens=(token(2), token(1)),
                      compacted_metarange_id=MetaRangeId("ab" * 20), compaction_started_at_ms=1727049616250)
COMMIT = Commit(metarange_id=MetaRangeId("cd" * 20), parents=(commit_id(1), commit_id(2)), generation=4,
                message="übung", metadata={"by": "ann"}, created_at_ms=1727049616250, nonce="00000000000000ff")
STAGED = Staged(Record(b"id", b"data"), b"\1\2\3\4\5\6\7\x08")
TOMBSTONE = Staged(None)
FORMS: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes, str], Any]]] = {
    "staging-branch-v1.bin": (RECORD, encode_branch_record, decode_branch_record),
    "staging-commit-v1.bin": (COMMIT, encode_commit, decode_commit),
    "staging-value-v1.bin": (STAGED, encode_staged, decode_staged),
    "staging-tombstone-v1.bin": (TOMBSTONE, encode_staged, decode_staged),
}

tokens = st.integers(0, 2**128 - 1).map(token)
records = st.builds(
    BranchRecord, version=st.integers(1, 2**63), commit_id=st.none() | st.integers(0, 2**200).map(commit_id),
    staging_token=tokens, compacted_metarange_id=st.none() | st.text("0123456789abcdef", max_size=40).map(MetaRangeId),
    compaction_started_at_ms=st.none() | st.integers(0, 4 * 10**12), sealed_tokens=st.just(())).flatmap(
        lambda record: st.lists(tokens.filter(lambda one: one != record.staging_token), unique=True, max_size=5).map(
            lambda sealed: attrs.evolve(record, sealed_tokens=tuple(sealed))))
commits = st.builds(
    Commit, metarange_id=st.text(max_size=40).map(MetaRangeId), generation=st.integers(1, 2**40), message=st.text(),
    parents=st.lists(st.integers(0, 9).map(commit_id), max_size=2).map(tuple), created_at_ms=st.integers(0, 2**42),
    metadata=st.dictionaries(st.text(), st.text(), max_size=3), nonce=st.text("0123456789abcdef", max_size=16))
entries = st.builds(Staged, st.none() | st.builds(Record, st.binary(max_size=40), st.binary(max_size=40)),
                    st.binary(min_size=8, max_size=8))

@pytest.mark.parametrize("name", FORMS)
def test_the_golden_files_are_read_and_written_as_ever(name: str) -> None:
    value, encode, decode = FORMS[name]
    data = (GOLDEN / name).read_bytes()
    assert decode(data, name) == value
    assert encode(value) == data

@pytest.mark.parametrize("name", ["staging-value-v1.bin"])
def test_the_format_s_page_shows_the_golden_files(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    shown = re.search(rf"`{re.escape(name)}`:\n\n```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert bytes.fromhex(shown[1]) == data

@given(records)
def test_every_record_is_decoded_as_encoded(record: BranchRecord) -> None:
    assert decode_branch_record(encode_branch_record(record), "here") == record

@given(commits)
def test_every_commit_is_decoded_as_encoded(commit: Commit) -> None:
    assert decode_commit(encode_commit(commit), "here") == commit

@given(entries)
def test_every_staged_entry_is_decoded_as_encoded(staged: Staged) -> None:
    assert decode_staged(encode_staged(staged), "here") == staged

@pytest.mark.parametrize("name", FORMS)
def test_any_byte_flipped_or_cut_is_found(name: str) -> None:
    value, encode, decode = FORMS[name]
    data = encode(value)
    for place in range(len(data)):
        for damaged in (data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1:], data[:place]):
            with pytest.raises(CorruptData):
                decode(damaged, "here")

@given(st.sampled_from(sorted(FORMS)), st.binary(max_size=60), st.integers(0, 255), st.integers(0, 40))
def test_bytes_with_a_right_checksum_are_no_licence(name: str, body: bytes, byte: int, place: int) -> None:
    """For any bytes under a good checksum: the error is a named one, or the value can be stored."""
    value, encode, decode = FORMS[name]
    data = bytearray(encode(value)[:-4])
    data[place:place + len(body)] = body
    data.append(byte)
    try:
        found = decode(bytes(data) + struct.pack("<I", crc32(data)), "here")
    except (CorruptData, Unsupported):
        return
    assert decode(encode(found), "again") == found

@pytest.mark.parametrize("name", FORMS)
def test_a_newer_version_is_unsupported(name: str) -> None:
    value, encode, decode = FORMS[name]
    data = bytearray(encode(value)[:-4])
    data[8 if data.startswith(b"CL") else 0] += 1
    with pytest.raises(Unsupported, match="version 2"):
        decode(bytes(data) + struct.pack("<I", crc32(data)), "here")

def test_a_commit_is_named_by_its_content() -> None:
    assert COMMIT.commit_id == attrs.evolve(COMMIT).commit_id
    assert is_commit_id(COMMIT.commit_id)
    assert COMMIT.commit_id != attrs.evolve(COMMIT, nonce="00").commit_id

def test_a_value_without_a_json_form_is_refused() -> None:
    with pytest.raises(InvalidInput):
        encode_commit(attrs.evolve(COMMIT, message=float("inf")))  # type: ignore[arg-type]

@pytest.mark.parametrize("wrong", [
    {"version": 0}, {"commit_id": "head"}, {"staging_token": "main"}, {"sealed_tokens": (token(3),)},
])
def test_a_record_that_contradicts_itself_is_corrupt(wrong: dict[str, Any]) -> None:
    with pytest.raises(CorruptData):
        decode_branch_record(encode_branch_record(attrs.evolve(RECORD, **wrong)), "here")

@pytest.mark.parametrize("name", ["main", "a/b", "ü", "x" * 255, "f" * 63, " spaced out "])
def test_names_of_branches(name: str) -> None:
    assert branch_key(name) == b"branches/" + name.encode()

@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "\0", "\ud800", "f" * 64])
def test_an_invalid_branch_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        branch_key(name)

@pytest.mark.parametrize("name", ["", "-a", "a/b", "ü", "x" * 101])
def test_an_invalid_repository_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        repository_partition(name)

def test_tokens_and_commits_have_distinct_ids() -> None:
    assert is_staging_token(token(1))
    assert not is_staging_token(commit_id(1))
    assert not is_commit_id(token(1))

if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for file_name, (golden, encoder, _) in FORMS.items():
        data = encoder(golden)
        (GOLDEN / file_name).write_bytes(data)
        lines = [data[at:at + 32].hex(" ", 4) for at in range(0, len(data), 32)]
        print(f"`{file_name}`:\n\n```hex\n" + "\n".join(lines) + "\n```\n")  # noqa: T201
