# SPDX-License-Identifier: Apache-2.0
"""Invalid keys, values, names, numbers and stored records."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.files.checksum import crc32
from compactlib.kv import EXISTS, Retries
from compactlib.staging import BranchNotFound, StagingOptions
from compactlib.staging.errors import CommitNotFound, MetaRangeNotFound, RangeNotFound
from compactlib.staging.values import CommitId, MetaRangeId, branch_key, repository_partition
from compactlib.staging.view import MAX_LIST_LIMIT
from tests.harness.staging_world import StagingWorld as World, diff, head_contents, missing

PARTITION = repository_partition("main")

@pytest.mark.parametrize("key", [b"", cast("bytes", "text"), cast("bytes", None), b"x" * ((1 << 16) + 1)])
def test_an_invalid_key_is_refused(key: bytes) -> None:
    main = World().branch({"a": "1"})
    for call in (lambda: main.get(key), lambda: main.put(key, b""), lambda: main.delete(key),
                 lambda: main.put_if(key, b"", None), lambda: main.reset_key(key), lambda: main.get_many([key]),
                 lambda: main.head().get(key),
                 lambda: main.delete_if(key, EXISTS), lambda: main.update(key, lambda record: None)):
        with pytest.raises(InvalidInput):
            call()
    assert diff(main) == []


@pytest.mark.parametrize("key", [b"\x00", b"\x00\x00", b"\xff", b"\xff" * 40, b"a\x00b", "ü/ö".encode(), b"x" * 1000])
@pytest.mark.parametrize("data", [b"", b"\x00", bytes(1 << 20)], ids=["0 bytes", "1 byte", "1 MiB"])
def test_any_key_and_any_value_goes_all_the_way(key: bytes, data: bytes) -> None:
    world = World()
    main = world.branch({})
    main.put(key, data)
    assert main.get(key).data == data
    world.compact()
    assert main.get(key).data == data
    main.commit("it")
    assert main.head().get(key).data == main.get(key).data == data
    main.delete(key)
    assert missing(main, key)
    main.reset_prefix(key)
    assert main.list().keys == (key,)


def test_data_that_is_not_bytes_is_refused() -> None:
    main = World().branch({})
    for wrong in ("text", None, 7):
        for call in (lambda wrong=wrong: main.put(b"k", wrong), lambda wrong=wrong: main.put_many({b"k": wrong}),
                     lambda wrong=wrong: main.put_if(b"k", wrong, None)):
            with pytest.raises(TypeError, match="bytes"):
                cast("Any", call)()
    main.put(b"view", cast("bytes", memoryview(b"view")))
    assert main.get(b"view").data == b"view"
    main.reset()
    assert diff(main) == []


@pytest.mark.parametrize("limit", [0, -1, MAX_LIST_LIMIT + 1])
def test_limits_of_pages(limit: int) -> None:
    main = World().branch({"a": "1"})
    for call in (main.list, main.diff, main.head().list):
        with pytest.raises(InvalidInput):
            cast("Any", call)(limit=limit)


def test_limits_of_batches() -> None:
    main = World().branch({})
    many = {b"%d" % number: b"" for number in range(1001)}
    for call in (lambda: main.put_many(many), lambda: main.get_many(many), lambda: main.delete_many(many)):
        with pytest.raises(InvalidInput):
            call()
    main.put_many({})
    main.delete_many([])
    assert main.get_many([]) == {}
    main.put_many(dict(list(many.items())[:1000]))
    assert len(list(main.differences())) == 1000


@pytest.mark.parametrize("ref", ["f" * 64, "nowhere"])
def test_unknown_references(ref: str) -> None:
    world = World()
    main = world.branch({})
    for call in (lambda: main.merge(ref), lambda: main.revert(ref), lambda: main.hard_reset(ref),
                 lambda: main.cherry_pick(ref), lambda: world.repo.at(ref), lambda: world.repo.create_branch("x", ref),
                 lambda: main.hard_reset(ref, discard=True)):
        with pytest.raises((CommitNotFound, BranchNotFound)):
            call()
    with pytest.raises(CommitNotFound):
        world.repo.commit(CommitId("not an id"))


def test_a_metarange_must_exist_before_its_commit() -> None:
    main = World().branch({})
    with pytest.raises(MetaRangeNotFound):
        main.commit_metarange(MetaRangeId("0" * 40), "import")
    assert main.record().commit_id is not None
    assert head_contents(main) == {}


@pytest.mark.parametrize("options", [
    {"max_scanned": 0}, {"max_scanned": 2.5}, {"grace_seconds": -1},
])
def test_settings_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        StagingOptions(**options)


@pytest.mark.parametrize("retries", [
    {"tries": 0}, {"tries": 2.5}, {"tries": float("inf")}, {"first_seconds": -1}, {"longest_seconds": float("nan")},
])
def test_retries_out_of_range(retries: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Retries(**retries)


def rewritten(world: World, change: Callable[[bytearray], None]) -> None:
    """Change the stored record of the branch main, under a right checksum."""
    data = bytearray(world.store.get(PARTITION, branch_key("main")).value[:-4])
    change(data)
    world.store.set(PARTITION, branch_key("main"), bytes(data) + struct.pack("<I", crc32(data)))


def newer(data: bytearray) -> None:
    data[8] = 2


def test_a_record_of_a_newer_release_is_left_alone() -> None:
    world = World()
    main = world.branch({"a": "1"}, staged={"b": "2"})
    rewritten(world, newer)
    before = world.store.get(PARTITION, branch_key("main")).value
    for call in (lambda: main.get(b"a"), lambda: main.put(b"a", b""), lambda: main.commit("x"), main.list, main.reset,
                 lambda: main.merge("main"), lambda: world.repo.delete_branch("main"), world.repo.audit,
                 lambda: main.delete(b"a")):
        with pytest.raises(Unsupported, match="version 2"):
            cast("Any", call)()
    assert world.store.get(PARTITION, branch_key("main")).value == before


def test_a_damaged_record_is_named() -> None:
    world = World()
    main = world.branch({"a": "1"})
    world.store.set(PARTITION, branch_key("main"), b"nothing of ours")
    with pytest.raises(CorruptData, match="branches/main"):
        main.get(b"a")


def test_a_missing_range_is_named_and_no_answer() -> None:
    world = World()
    main = world.branch({"a": "1"}, staged={"b": None})
    before = main.record()
    for key in [info.key for info in world.objects.list("ranges/")]:
        world.objects.delete([key])
    again = World(world.store, world.objects, seed=2).repo.branch("main")
    for call in (lambda: again.get(b"a"), again.list, lambda: again.reset_key(b"a"),
                 lambda: again.put_if(b"a", b"2", None), lambda: again.get_many([b"a"])):
        with pytest.raises(RangeNotFound):
            cast("Any", call)()
    assert main.record() == before
