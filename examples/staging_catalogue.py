# SPDX-License-Identifier: Apache-2.0
"""A small object catalogue: files under paths, with branches, commits and merges, in one folder on this machine.

    python examples/staging_catalogue.py FOLDER

In a notebook:

    from staging_catalogue import Catalogue
    catalogue = Catalogue("work")
    main = catalogue.branch("main")
    main.put("tables/a.csv", b"1,2,3")
    main.commit("the first table")
    main.ls()                # a table
    main.plan()              # the gain of a compaction
    main.compact()

FOLDER holds three things: `catalogue.sqlite` (branches, commits, staged changes), `ranges/` (committed records, in
immutable sorted files), and `data/` (the contents, each under its digest, so that equal ones are kept once). A path
maps to the digest and size of its content. A worker compacts a branch once enough was deleted on it, or listings pass
over too many tombstones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.kv import SqliteStore
from compactlib.objects import Digest, LocalObjects, ObjectExists
from compactlib.report import Table
from compactlib.staging import (
    AlwaysPolicy,
    Branch,
    CommitId,
    CommitReport,
    CommittedRanges,
    CompactionSensor,
    PressurePolicy,
    Record,
    Repository,
    StagingCompactionReport,
    StagingOptions,
    StagingPlan,
    StagingWorker,
)

REPOSITORY = "catalogue"


@attrs.frozen
class FileEntry:
    """One file of the catalogue."""

    path: str
    size_bytes: int
    digest: str

    @classmethod
    def of_record(cls, path: bytes, record: Record) -> FileEntry:
        """Return the entry of a record."""
        known = json.loads(record.data)
        return cls(path.decode(), known["size_bytes"], known["digest"])

    def to_data(self) -> bytes:
        """Return the entry under the path."""
        return json.dumps({"digest": self.digest, "size_bytes": self.size_bytes}, sort_keys=True).encode()


class CatalogueBranch:
    """One branch, by paths instead of keys."""

    def __init__(self, catalogue: Catalogue, branch: Branch) -> None:
        self._catalogue = catalogue
        self._branch = branch

    def put(self, path: str, content: bytes) -> FileEntry:
        """Keep a file under a path."""
        entry = FileEntry(path, len(content), self._catalogue.keep(content))
        self._branch.put(path.encode(), entry.to_data())
        return entry

    def get(self, path: str) -> bytes:
        """The content of a file, checked against its digest."""
        entry = FileEntry.of_record(path.encode(), self._branch.get(path.encode()))
        return self._catalogue.content(entry)

    def rm(self, *paths: str) -> None:
        """Delete files."""
        self._branch.delete_many([path.encode() for path in paths])

    def ls(self, folder: str = "") -> Table:
        """Return the files and folders in a folder (`"tables/"`)."""
        rows: list[dict[str, object]] = []
        for listed in self._branch.entries(prefix=folder.encode(), delimiter=b"/"):
            if listed.record is None:
                rows.append({"path": listed.key.decode(), "size_bytes": None, "digest": "folder"})
            else:
                rows.append(attrs.asdict(FileEntry.of_record(listed.key, listed.record)))
        return Table.from_dicts(rows, title=f"{self._branch.name}: {folder or '/'}")

    def diff(self) -> Table:
        """What differs from the last commit."""
        return Table.from_dicts([{"what": each.kind, "path": each.key.decode()} for each in self._branch.differences()],
                                title=f"{self._branch.name}: uncommitted")

    def commit(self, message: str) -> CommitReport:
        """Commit everything."""
        return self._branch.commit(message)

    def merge(self, source: str) -> CommitReport:
        """Take in what another branch has committed."""
        return self._branch.merge(source, f"merge {source}")

    def log(self) -> Table:
        """The commits, the newest first."""
        return Table.from_dicts([{"commit": commit_id[:12], "message": commit.message}
                                 for commit_id, commit in self._branch.log()], title=self._branch.name)

    def plan(self) -> StagingPlan:
        """Return the plan of a compaction; changes nothing."""
        return self._catalogue.repository.plan(branch=self._branch)

    def compact(self) -> StagingCompactionReport:
        """Compact now, also outside of the window."""
        return self._catalogue.repository.compact(branch=self._branch, policy=AlwaysPolicy(window_seconds=0))

    def __repr__(self) -> str:
        return f"<branch {self._branch.name!r}>"


class Catalogue:
    """All branches, and the stores behind them. Several processes may open one folder."""

    def __init__(self, folder: Path | str, *, clock: Clock | None = None) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.clock: Clock = SystemClock() if clock is None else clock
        self._store = SqliteStore(folder / "catalogue.sqlite")
        self._ranges = LocalObjects(folder / "ranges")
        self._data = LocalObjects(folder / "data")
        self.sensor = CompactionSensor(PressurePolicy(deletes=50, tombstones_listed=1000))
        self.repository = Repository(self._store, CommittedRanges(self._ranges), name=REPOSITORY, clock=self.clock,
                                     sensor=self.sensor, options=StagingOptions(owns_ranges=True))
        self.worker = StagingWorker(self.sensor, [self.repository], clock=self.clock)

    def branch(self, name: str, source: str | None = None) -> CatalogueBranch:
        """Return a branch; create it (from `source`, or empty) if it is absent."""
        if name not in {branch.name for branch in self.repository.branches()}:
            self.repository.create_branch(name, source)
        return CatalogueBranch(self, self.repository.branch(name))

    def compact_what_is_worth_it(self) -> bool:
        """Run the worker once, and return whether anything was due; `catalogue.worker.start()` starts its thread."""
        return self.worker.run_pending()

    def keep(self, content: bytes) -> str:
        """Keep a content; its digest."""
        digest = Digest.of(content).value.hex()
        with contextlib.suppress(ObjectExists):
            self._data.create(digest, content)
        return digest

    def content(self, entry: FileEntry) -> bytes:
        """The content of an entry."""
        content = self._data.get(entry.digest)
        assert Digest.of(content).value.hex() == entry.digest, f"{entry.path}: the content is damaged"
        return content

    def live_contents(self) -> set[str]:
        """The digests that a branch or a commit of one needs. Compacted changes count: they are on their branch."""
        found: set[str] = set()
        commits: set[CommitId] = set()
        for branch in self.repository.branches():
            found.update(FileEntry.of_record(listed.key, listed.record).digest
                         for listed in branch.entries() if listed.record is not None)
            commits.update(commit_id for commit_id, _ in branch.log())
        for commit_id in commits:
            found.update(FileEntry.of_record(key, record).digest
                         for key, record in self.repository.at(commit_id).records())
        return found

    def unneeded_contents(self) -> Iterator[str]:
        """Return the digests without a reference; a file that is being put may be among them."""
        live = self.live_contents()
        return (info.key for info in self._data.list() if info.key not in live)

    def close(self) -> None:
        """Let go of everything."""
        self.worker.stop()
        self.repository.close()
        for store in (self._store, self._ranges, self._data):
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def main() -> None:
    """A day in the life of a catalogue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    with Catalogue(parser.parse_args().folder) as catalogue:
        trunk = catalogue.branch("main")
        for number in range(60):
            trunk.put(f"raw/{number:04}.csv", b"row %d\n" % number)
        trunk.put("summary.csv", b"all rows\n")
        print(trunk.commit("60 raw files and a summary"))
        trunk.rm(*(f"raw/{number:04}.csv" for number in range(59)))
        print(trunk.plan())
        catalogue.compact_what_is_worth_it()
        print("compacted and reclaimed:", catalogue.repository.status())
        print(trunk.ls("raw/"))
        clean = catalogue.branch("clean", "main")
        clean.put("notes.txt", b"cleaned up\n")
        clean.commit("notes")
        trunk.commit("remove old raw files")
        print(trunk.merge("clean"))
        print(trunk.ls())
        print(trunk.log())
        print("reclaimed:", catalogue.repository.reclaim())


if __name__ == "__main__":
    main()
