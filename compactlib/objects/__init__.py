# SPDX-License-Identifier: Apache-2.0
"""Object stores for immutable files: a local folder, S3, GCS, Azure, or memory, behind one small protocol.

>>> from compactlib.objects import MemoryObjects
>>> from compactlib.objects.store import read_checked
>>> store = MemoryObjects()
>>> ref = store.create("ranges/2026/first", b"some bytes")
>>> store.get_range(ref.key, 5, 5)
b'bytes'
>>> read_checked(store, ref) == store.get("ranges/2026/first")
True
>>> [info.key for info in store.list("ranges/")]
['ranges/2026/first']
>>> store.create("ranges/2026/first", b"others")
Traceback (most recent call last):
compactlib.objects.errors.ObjectExists: the object 'ranges/2026/first' exists; objects are never overwritten: ...
"""

from compactlib._lazy import offer

offer(__name__)
