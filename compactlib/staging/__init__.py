# SPDX-License-Identifier: Apache-2.0
"""Branches and commits over a key-value store: uncommitted changes in staging tokens, committed ones in immutable
ranges.

A `Repository` offers what every store here does: view, plan, compact, reclaim, verify, status, audit, close.

>>> from compactlib.kv import MemoryStore
>>> from compactlib.objects import MemoryObjects
>>> from compactlib.staging import CommittedRanges, Repository
>>> repository = Repository(MemoryStore(), CommittedRanges(MemoryObjects()))
>>> main = repository.create_branch("main")
>>> main.put(b"a", b"1")
>>> main.put(b"b", b"2")
>>> print(main.commit("two keys").stats.added)
2
>>> main.delete(b"a")
>>> main.list().keys, main.head().list().keys
((b'b',), (b'a', b'b'))
>>> print(repository.plan(branch=main).why)
1 tombstones, at most 1 in a row, and 0 sealed tokens would go; 1 of 1 ranges would be written anew
>>> print(repository.compact(branch=main).stats.sealed_after)
0
>>> repository.reclaim().reason.split(";")[1]
' 2 dropped tokens wait until they are older than grace_seconds=3600.0'
>>> [(one.kind, one.key) for one in main.differences()]
[('removed', b'a')]
>>> main.commit("one key less").stats.ranges_written
0
"""

from compactlib._lazy import offer

offer(__name__)
