# SPDX-License-Identifier: Apache-2.0
from compactlib.objects.digest import Digest as Digest
from compactlib.objects.errors import (
    BadDigest as BadDigest,
    BadKey as BadKey,
    ObjectExists as ObjectExists,
    ObjectNotFound as ObjectNotFound,
    ObjectStoreFailed as ObjectStoreFailed,
)
from compactlib.objects.keys import (
    MAX_KEY_CHARS as MAX_KEY_CHARS,
    MAX_SEGMENT_CHARS as MAX_SEGMENT_CHARS,
    check_prefix as check_prefix,
)
from compactlib.objects.local import LocalObjects as LocalObjects, is_local_objects as is_local_objects
from compactlib.objects.memory import MemoryObjects as MemoryObjects
from compactlib.objects.metered import MeteredObjects as MeteredObjects
from compactlib.objects.remote import RemoteObjects as RemoteObjects
from compactlib.objects.store import (
    MultiDelete as MultiDelete,
    ObjectInfo as ObjectInfo,
    ObjectRef as ObjectRef,
    ObjectStore as ObjectStore,
    delete_many as delete_many,
    read_checked as read_checked,
)
