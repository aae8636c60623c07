# SPDX-License-Identifier: Apache-2.0
"""What the data source compactlib.staging plans and reads, without a session."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import InvalidInput, NotFound, Stale
from compactlib.kv import MemoryStore, SqliteStore
from compactlib.kv.errors import NotAStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.outcome import Done
from compactlib.spark.sources.staging import (
    MAX_BATCH_ROWS,
    BranchPart,
    KeyRange,
    StagingSource,
    StagingSourceOptions,
    plan_parts,
    read_part,
)
from compactlib.staging import BranchNotFound, CommittedRanges, ParquetFormat, PlainFormat, Repository, SplitRule
from compactlib.staging.committed.formats.rows import RangeFormat
from compactlib.staging.errors import CommitNotFound, DamagedRange, MetaRangeNotFound
from tests.spark.sources.branches import expected_rows, row_of, seal
from tests.staging.world import NOW

SMALL_RANGES = SplitRule(raggedness=4)


def memory_repo(range_format: RangeFormat | None = None, rule: SplitRule = SMALL_RANGES) -> Repository:
    repo = Repository(MemoryStore(), CommittedRanges(MemoryObjects(), rule=rule, range_format=range_format))
    repo.create_branch("main")
    return repo


def options(**asked: Any) -> StagingSourceOptions:
    given: dict[str, Any] = {"branch": "main", "tombstones": True, "partition_bytes": 1, **asked}
    return StagingSourceOptions(folder="unused", **given)


def rows(repo: Repository, wanted: StagingSourceOptions, parts: list[BranchPart] | None = None,
         ) -> list[dict[str, Any]]:
    planned = plan_parts(repo, wanted) if parts is None else parts
    return [row for part in planned for batch in read_part(repo, part, wanted) for row in batch.to_pylist()]


def without(found: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in found]


def fill(repo: Repository, low: int, high: int, value: bytes = b"value") -> None:
    repo.branch("main").put_many({key(number): value + b" %d" % number for number in range(low, high)})


def key(number: int) -> bytes:
    return b"path/%05d" % number


@pytest.fixture(params=["plain", "parquet"])
def repo(request: pytest.FixtureRequest) -> Repository:
    """A commit, a compaction above it that changed, added and removed, a sealed token and a staging token."""
    repo = memory_repo(PlainFormat() if request.param == "plain" else ParquetFormat())
    main = repo.branch("main")
    fill(repo, 0, 60)
    main.commit("first")
    fill(repo, 10, 14, b"compacted")
    main.delete_many([key(number) for number in range(20, 24)])
    main.put(b"path/00020x", b"only compacted")
    assert isinstance(repo.compact(), Done)
    fill(repo, 30, 33, b"sealed")
    main.delete_many([key(number) for number in (33, 34, 35)])
    seal(repo, "main")
    fill(repo, 32, 35, b"staged")
    main.delete(key(0))
    main.delete(key(30))
    main.put(b"zz/behind", b"")
    return repo


class TestRows:
    def test_they_are_what_the_branch_answers(self, repo: Repository) -> None:
        found = rows(repo, options())
        assert found == expected_rows(repo, "main")
        assert {row["state"] for row in found} == {"committed", "compacted", "sealed", "staged"}
        assert [row["key"] for row in found if row["deleted"]] == list(map(key, (0, 30, 35)))

    def test_without_tombstones_they_are_the_listing(self, repo: Repository) -> None:
        found = rows(repo, options(tombstones=False))
        assert [(row["key"], row["identity"], row["value"]) for row in found] == [
            (entry.key, entry.record.identity, entry.record.data) for entry in repo.branch("main").entries()
            if entry.record is not None]
        assert found == without([row for row in expected_rows(repo, "main") if not row["deleted"]], "deleted")

    def test_without_values(self, repo: Repository) -> None:
        assert rows(repo, options(payload=False)) == without(expected_rows(repo, "main"), "value")

    def test_head_and_a_commit_are_committed(self, repo: Repository) -> None:
        commit = repo.branch("main").status().commit_id
        assert commit is not None
        wanted = without([row_of(name, record, "committed") for name, record in repo.at(commit).records()], "deleted")
        for ref in ("main", commit):
            assert rows(repo, options(branch=None, at=ref, tombstones=False)) == wanted
        metarange = repo.at(commit).metarange_id
        assert rows(repo, options(branch=None, metarange=metarange, tombstones=False)) == wanted

    def test_a_branch_without_a_commit(self) -> None:
        repo = memory_repo()
        assert rows(repo, options()) == []
        repo.branch("main").put(b"a", b"1")
        assert [(row["key"], row["state"]) for row in rows(repo, options())] == [(b"a", "staged")]
        assert plan_parts(repo, options(branch=None, at="main", tombstones=False)) == []

    def test_many_staged_entries_are_laid_over_some_at_a_time(self) -> None:
        repo = memory_repo(ParquetFormat(), SplitRule())
        main = repo.branch("main")
        for at in range(0, 4000, 1000):
            main.put_many({key(number): b"old" for number in range(5 * at, 5 * (at + 1000), 5)})
        main.commit("every fifth")
        for at in range(0, 20_000, 1000):
            main.put_many({key(number): b"new" for number in range(at, at + 1000) if number % 2})
        wanted = options()
        batches = [batch for part in plan_parts(repo, wanted) for batch in read_part(repo, part, wanted)]
        assert max(batch.num_rows for batch in batches) == MAX_BATCH_ROWS
        found = [row for batch in batches for row in batch.to_pylist()]
        assert [row["key"] for row in found] == [key(number) for number in range(20_000)
                                                 if number % 2 or number % 5 == 0]
        assert all(row["value"] == (b"new" if int(row["key"][5:]) % 2 else b"old") for row in found)

    def test_large_staged_values_come_a_few_at_a_time(self) -> None:
        repo = memory_repo()
        main = repo.branch("main")
        for number in range(10):
            main.put(key(number), bytes(1 << 20))
        sizes = [batch.num_rows for part in plan_parts(repo, options()) for batch in read_part(repo, part, options())]
        assert sum(sizes) == 10
        assert max(sizes) <= 4


class TestParts:
    def test_one_for_each_range_or_for_several_small_ones(self, repo: Repository) -> None:
        base = repo.branch("main").status().compacted_metarange_id
        ranges = repo.context.committed.ranges_of(base)
        parts = plan_parts(repo, options())
        assert [part.ranges[0] for part in parts] == list(ranges)
        assert {each.range_id in part.committed for part in parts for each in part.ranges} == {True, False}
        (whole,) = plan_parts(repo, options(partition_bytes=1 << 20))
        assert list(whole.ranges) == list(ranges)
        assert whole.size_bytes == sum(entry.size_bytes for entry in ranges)

    def test_they_cover_every_key_once(self, repo: Repository) -> None:
        parts = plan_parts(repo, options())
        assert [part.keys.first for part in parts] == [b"", *(part.keys.behind for part in parts[:-1])]
        assert parts[-1].keys.behind is None

    def test_large_ranges_have_their_own(self) -> None:
        repo = memory_repo(rule=SplitRule(raggedness=1))
        for number in range(6):
            repo.branch("main").put(key(number), bytes(1000))
        repo.branch("main").commit("large")
        for most, groups in ((1, [1] * 6), (2200, [2, 2, 2]), (3300, [3, 3]), (1 << 20, [6])):
            assert [len(part.ranges) for part in plan_parts(repo, options(partition_bytes=most))] == groups

    @pytest.mark.parametrize(("asked", "keys"), [
        ({"prefix": "path/0002"}, KeyRange(first=b"path/0002", behind=b"path/0003")),
        ({"first": "path/00013", "last": "path/00031"}, KeyRange(first=b"path/00013", behind=b"path/00031\0")),
        ({"keys": "hex", "prefix": "ff"}, KeyRange(first=b"\xff")),
        ({"prefix": "path/", "first": "a", "last": "path/00003"}, KeyRange(first=b"path/", behind=b"path/00003\0")),
        ({"prefix": "zz"}, KeyRange(first=b"zz", behind=b"z{")),
        ({"prefix": "path/0002", "first": "zz"}, KeyRange(first=b"zz", behind=b"path/0003")),
        ({}, KeyRange()),
    ])
    def test_a_part_of_the_keys_reads_their_ranges_only(self, repo: Repository, asked: dict[str, str],
                                                       keys: KeyRange) -> None:
        given = StagingSourceOptions.parse({"path": "p", "kv": "k", "branch": "main", **asked})
        assert given.keys == keys
        wanted = options(keys=keys)
        assert rows(repo, wanted) == [row for row in expected_rows(repo, "main") if row["key"] >= keys.first
                                      and (keys.behind is None or row["key"] < keys.behind)]
        for part in plan_parts(repo, wanted):
            for entry in part.ranges:
                assert entry.max_key >= keys.first
                assert keys.behind is None or entry.min_key < keys.behind


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int]]:
    kinds = st.sampled_from(["put", "put", "put", "delete", "delete", "commit", "compact", "seal", "reset"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 25)), max_size=40))


@given(steps(), st.integers(0, 25), st.integers(0, 25), st.sampled_from([1, 200, 1 << 20]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_branch_reads_as_its_own_listing(done: list[tuple[str, int]], low: int, high: int, part_bytes: int,
                                             parquet: bool) -> None:
    repo = memory_repo(ParquetFormat() if parquet else None)
    main = repo.branch("main")
    for place, (kind, number) in enumerate(done):
        if kind == "put":
            main.put(key(number), b"%d" % (place % 3))
        elif kind == "delete":
            main.delete(key(number))
        elif kind == "commit":
            main.commit("some")
        elif kind == "compact":
            repo.compact(policy=NOW)
        elif kind == "seal":
            seal(repo, "main")
        else:
            main.reset_prefix(key(number)[:-1])
    wanted = expected_rows(repo, "main")
    assert rows(repo, options(partition_bytes=part_bytes)) == wanted
    listed = [(entry.key, entry.record) for entry in main.entries()]
    assert [(row["key"], row["value"]) for row in wanted if not row["deleted"]] == [
        (name, record.data) for name, record in listed if record is not None]
    keys = KeyRange(first=key(low), behind=key(high))
    assert rows(repo, options(keys=keys, partition_bytes=part_bytes)) == [
        row for row in wanted if key(low) <= row["key"] < key(high)]
    assert repo.plan().view.tombstones == sum(row["deleted"] for row in wanted)


class TestWhileTheBranchIsUsed:
    def test_what_is_staged_later_may_be_seen(self, repo: Repository) -> None:
        planned = plan_parts(repo, options())
        repo.branch("main").put(b"path/00001", b"later")
        assert rows(repo, options(), planned) == expected_rows(repo, "main")

    def test_a_seal_does_not_matter(self, repo: Repository) -> None:
        planned, before = plan_parts(repo, options()), expected_rows(repo, "main")
        seal(repo, "main")
        repo.branch("main").put(b"path/00001", b"later")
        assert rows(repo, options(), planned) == before

    @pytest.mark.parametrize("what", ["commit", "reset", "compact"])
    def test_new_layers_make_the_plan_stale(self, repo: Repository, what: str) -> None:
        planned = plan_parts(repo, options())
        if what == "compact":
            assert isinstance(repo.compact(policy=NOW), Done)
        else:
            assert isinstance(getattr(repo.branch("main"), what)(*["more"] * (what == "commit")), Done)
        with pytest.raises(Stale, match="load the branch again"):
            rows(repo, options(), planned)
        assert rows(repo, options()) == expected_rows(repo, "main")

    def test_ranges_collected_meanwhile_are_stale_too(self, repo: Repository) -> None:
        planned = plan_parts(repo, options())
        repo.branch("main").reset()
        committed = repo.context.committed
        assert isinstance(committed, CommittedRanges)
        kept = {entry.range_id for entry in committed.ranges_of(repo.at("main").metarange_id)}
        for stored in [stored for stored in committed.list_ranges() if stored.id not in kept]:
            committed.files.objects.delete(f"ranges/{stored.id}")
        fresh = Repository(repo.context.store, CommittedRanges(committed.files.objects))
        with pytest.raises(Stale):
            rows(fresh, options(), planned)

    def test_a_lost_range_is_not(self, repo: Repository) -> None:
        committed = repo.context.committed
        assert isinstance(committed, CommittedRanges)
        planned = plan_parts(repo, options())
        lost = planned[1].ranges[0].range_id
        committed.files.objects.delete(f"ranges/{lost}")
        fresh = Repository(repo.context.store, CommittedRanges(committed.files.objects))
        with pytest.raises(NotFound, match=lost):
            rows(fresh, options(), planned)


class TestStoresInFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        with self.opened(tmp_path) as repo:
            main = repo.create_branch("main")
            main.put_many({key(number): random.Random(number).randbytes(30) for number in range(50)})
            main.commit("first")
            main.put(b"path/00003", b"staged")
        return tmp_path

    def opened(self, folder: Path) -> _Opened:
        return _Opened(folder)

    def given(self, folder: Path, **asked: str) -> StagingSourceOptions:
        return StagingSourceOptions.parse({"path": str(folder / "ranges"), "kv": str(folder / "kv.sqlite"), **asked})

    def read(self, wanted: StagingSourceOptions) -> list[dict[str, Any]]:
        return [row for part in StagingSource.plan(wanted)
                for batch in StagingSource.read_part(part, wanted)
                for row in batch.to_pylist()]

    def test_a_branch(self, folder: Path) -> None:
        with self.opened(folder) as repo:
            wanted = expected_rows(repo, "main")
        assert self.read(self.given(folder, branch="main", tombstones="true")) == wanted

    def test_a_metarange_needs_no_key_value_store(self, folder: Path) -> None:
        with self.opened(folder) as repo:
            head = repo.at("main")
            wanted = without([row_of(name, record, "committed") for name, record in head.records()], "deleted")
        assert head.metarange_id is not None
        (folder / "kv.sqlite").unlink()
        wanted_options = StagingSourceOptions.parse({"path": str(folder / "ranges"), "metarange": head.metarange_id})
        assert self.read(wanted_options) == wanted

    def test_nothing_is_written(self, folder: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
        self.read(self.given(folder, branch="main"))
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before

    def test_damage_is_an_error(self, folder: Path) -> None:
        for path in (folder / "ranges" / "ranges").iterdir():
            path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        with pytest.raises(DamagedRange):
            self.read(self.given(folder, branch="main"))

    def test_what_is_not_there_is_named(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(BranchNotFound):
            self.read(self.given(folder, branch="other"))
        with pytest.raises(CommitNotFound):
            self.read(self.given(folder, at="0" * 64))
        with pytest.raises(MetaRangeNotFound):
            self.read(self.given(folder, metarange="0" * 40))
        with pytest.raises(NotFound, match="there is no folder"):
            self.read(StagingSourceOptions.parse({"path": str(tmp_path / "absent"), "metarange": "0" * 40}))
        with pytest.raises(NotAStore):
            self.read(self.given(folder, branch="main", kv=str(tmp_path / "absent.sqlite")))
        assert not (tmp_path / "absent.sqlite").exists()

    def test_stores_of_ones_own(self, folder: Path) -> None:
        with self.opened(folder) as repo:
            wanted = expected_rows(repo, "main")
        name = f"{__name__}:_Opened"
        given = StagingSourceOptions.parse(
            {"path": str(folder), "opener": name, "branch": "main", "tombstones": "true"})
        assert self.read(given) == wanted
        for missing in (f"{__name__}:absent", "no function"):
            with pytest.raises(InvalidInput, match="cannot be imported here"):
                self.read(StagingSourceOptions.parse({"opener": missing, "branch": "main"}))

    @pytest.mark.parametrize(("asked", "told"), [
        ({"branch": "\0"}, "without control"), ({"branch": "main", "repository": "a b"}, "repository name"),
        ({"metarange": "12"}, "no id of 40")])
    def test_names_that_are_none(self, folder: Path, asked: dict[str, str], told: str) -> None:
        with pytest.raises(InvalidInput, match=told):
            self.read(self.given(folder, **asked))


class _Opened:
    """Opens the stores of a folder for a `with` statement; also what the option `repo` names in a test."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)

    def __enter__(self) -> Repository:
        self._store = SqliteStore(self._folder / "kv.sqlite", synchronous="normal")
        objects = LocalObjects(self._folder / "ranges")
        return Repository(self._store, CommittedRanges(objects, rule=SMALL_RANGES))

    def __exit__(self, *_: object) -> None:
        self._store.close()


class TestBadInput:
    @pytest.mark.parametrize(("given", "told"), [
        ({"brunch": "main"}, "unknown option 'brunch'"),
        ({"path": "", "branch": "main"}, "which branch"),
        ({"kv": "k"}, "by one of branch, at, metarange; given: none"),
        ({"kv": "k", "branch": "main", "at": "main"}, "given: branch and at"),
        ({"branch": "main"}, "where are the branches"),
        ({"at": "main"}, "where are the branches"),
        ({"branch": "main", "opener": "m:f", "kv": "k"}, "both given"),
        ({"kv": "k", "at": "main", "tombstones": "true"}, "needs option 'branch'"),
        ({"kv": "k", "branch": "main", "tombstones": "yes"}, "false or true"),
        ({"kv": "k", "branch": "main", "partition_bytes": "-1"}, "a number of bytes"),
        ({"kv": "k", "branch": "main", "keys": "base64"}, "text or hex"),
        ({"kv": "k", "branch": "main", "keys": "hex", "prefix": "zz"}, "which is no key"),
        ({"kv": "k", "branch": "main", "prefix": "\ud800"}, "which is no key"),
        ({"kv": "k", "branch": "main", "first": "b", "last": "a"}, "first is b'b'"),
    ])
    def test_options(self, given: dict[str, str], told: str) -> None:
        with pytest.raises(InvalidInput, match=told):
            StagingSourceOptions.parse({"path": "ranges", **given})

    def test_no_keys_no_parts(self) -> None:
        repo = memory_repo()
        repo.branch("main").put(b"a", b"1")
        assert plan_parts(repo, options(keys=KeyRange(first=b"b", behind=b"a"))) == []
