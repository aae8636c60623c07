# SPDX-License-Identifier: Apache-2.0
"""Durable key-value stores with ordered scans and compare-and-set: one base class, and its stores.

>>> from compactlib.kv import MemoryStore
>>> store = MemoryStore()
>>> store.set(b"accounts", b"ann", b"10")
>>> found = store.get(b"accounts", b"ann")
>>> store.set_if(b"accounts", b"ann", b"11", found.predicate)
>>> store.set_if(b"accounts", b"ann", b"12", found.predicate)
Traceback (most recent call last):
compactlib.kv.errors.PredicateFailed: key b'ann' in partition b'accounts' is not in the state that the predicate ...
>>> with store.scan(b"accounts", prefix=b"a") as entries:
...     [(entry.key, entry.value) for entry in entries]
[(b'ann', b'11')]
"""

from compactlib._lazy import offer

offer(__name__)
