"""Where immutable files live: a local folder, S3, GCS, Azure, or memory, behind one small protocol.

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

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.objects.audit import audit_listing
    from compactlib.objects.digest import Digest
    from compactlib.objects.errors import (
        AccessDenied,
        BadDigest,
        BadKey,
        ConditionsIgnored,
        ForeignFile,
        ObjectExists,
        ObjectNotFound,
        ObjectStoreFailed,
    )
    from compactlib.objects.local import LocalObjects
    from compactlib.objects.memory import MemoryObjects
    from compactlib.objects.metered import MeteredObjects
    from compactlib.objects.remote import Conditions, RemoteObjects
    from compactlib.objects.store import ObjectInfo, ObjectRef, ObjectStore, read_checked

__all__ = [
    "AccessDenied",
    "BadDigest",
    "BadKey",
    "Conditions",
    "ConditionsIgnored",
    "Digest",
    "ForeignFile",
    "LocalObjects",
    "MemoryObjects",
    "MeteredObjects",
    "ObjectExists",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectRef",
    "ObjectStore",
    "RemoteObjects",
    "ObjectStoreFailed",
    "audit_listing",
    "read_checked",
]

load_lazily(__name__, {
    ".audit": ("audit_listing",),
    ".digest": ("Digest",),
    ".errors": ("AccessDenied", "BadDigest", "BadKey", "ConditionsIgnored", "ForeignFile", "ObjectExists",
                "ObjectNotFound", "ObjectStoreFailed"),
    ".local": ("LocalObjects",),
    ".memory": ("MemoryObjects",),
    ".metered": ("MeteredObjects",),
    ".remote": ("Conditions", "RemoteObjects"),
    ".store": ("ObjectInfo", "ObjectRef", "ObjectStore", "read_checked"),
})
