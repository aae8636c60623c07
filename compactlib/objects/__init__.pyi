# SPDX-License-Identifier: Apache-2.0
from compactlib.objects.digest import Digest as Digest
from compactlib.objects.errors import (
    BadDigest as BadDigest,
    BadKey as BadKey,
    ObjectExists as ObjectExists,
    ObjectNotFound as ObjectNotFound,
    ObjectStoreFailed as ObjectStoreFailed,
)
from compactlib.objects.local import LocalObjects as LocalObjects
from compactlib.objects.memory import MemoryObjects as MemoryObjects
from compactlib.objects.metered import MeteredObjects as MeteredObjects
from compactlib.objects.remote import RemoteObjects as RemoteObjects
from compactlib.objects.store import ObjectInfo as ObjectInfo, ObjectRef as ObjectRef, ObjectStore as ObjectStore
