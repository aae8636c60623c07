# SPDX-License-Identifier: Apache-2.0
"""Object stores for immutable files: a local folder, S3, GCS, Azure, or memory, behind one small protocol.

>>> from compactlib.objects import MemoryObjects, read_checked
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

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.objects.cached import CachedObjects as CachedObjects
    from compactlib.objects.errors import (
        BadDigest as BadDigest,
        BadKey as BadKey,
        ObjectExists as ObjectExists,
        ObjectNotFound as ObjectNotFound,
        ObjectStoreFailed as ObjectStoreFailed,
    )
    from compactlib.objects.local import LocalObjects as LocalObjects, is_local_objects as is_local_objects
    from compactlib.objects.memory import MemoryObjects as MemoryObjects
    from compactlib.objects.remote import RemoteObjects as RemoteObjects
    from compactlib.objects.store import (
        Digest as Digest,
        ObjectInfo as ObjectInfo,
        ObjectRef as ObjectRef,
        ObjectStore as ObjectStore,
        check_prefix as check_prefix,
        read_checked as read_checked,
    )
else:
    offer(__name__, {
        "compactlib.objects.cached": "CachedObjects",
        "compactlib.objects.errors": "BadDigest BadKey ObjectExists ObjectNotFound ObjectStoreFailed",
        "compactlib.objects.local": "LocalObjects is_local_objects",
        "compactlib.objects.memory": "MemoryObjects",
        "compactlib.objects.remote": "RemoteObjects",
        "compactlib.objects.store": "Digest ObjectInfo ObjectRef ObjectStore check_prefix read_checked",
    })
