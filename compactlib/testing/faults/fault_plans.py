# SPDX-License-Identifier: Apache-2.0
"""One vocabulary for what goes wrong below a host: `FaultPlan`, for disks, key-value stores and object stores alike.

>>> from compactlib.kv import MemoryStore
>>> plan = FaultPlan.of({2: Fault.REFUSED})
>>> store = plan.over_store(MemoryStore())
>>> store.set(b"p", b"k", b"1")
>>> store.set(b"p", b"k", b"2")
Traceback (most recent call last):
    ...
compactlib.kv.errors.StoreFailed: set on FaultyStore: an injected fault at operation 2: set b'p' b'k'; see what ...
>>> store.get(b"p", b"k").value
b'1'

Random plans for Hypothesis, which shrink to the fewest and earliest faults, are
`compactlib.testing.strategies.fault_plans`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import attrs

from compactlib._arguments import refuses_misfits
from compactlib.errors import InvalidInput
from compactlib.files.disk import Files
from compactlib.kv.store import KVStore
from compactlib.objects.store import ObjectStore
from compactlib.testing.faults.kv_faults import FaultyStore, KVFault, KVOperation
from compactlib.testing.faults.objects_faults import FaultyObjects
from compactlib.testing.faults.plan import FailingFiles, Fault

FILE_FAULTS: tuple[Fault, ...] = (
    Fault.REFUSED, Fault.TORN, Fault.FULL, Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.UNKNOWN_DONE)
"""What can happen to a change on a disk."""
STORE_FAULTS: tuple[Fault, ...] = tuple(fault.value for fault in KVFault)
"""What can happen to an operation of a key-value store."""
OBJECT_FAULTS: tuple[Fault, ...] = (
    Fault.REFUSED, Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.UNKNOWN_DONE, Fault.UNKNOWN_LOST)
"""What can happen to a request of an object store."""


@attrs.frozen
class FaultPlan:
    """Which operations fail, and how. A fault that a backend cannot have (see the tuples above) does not happen there.

    Attributes:
        faults: pairs of an operation's number, counted from 1, and its fault; ascending.

    Raises:
        InvalidInput: the numbers do not ascend from 1.
    """

    faults: tuple[tuple[int, Fault], ...] = ()

    @refuses_misfits
    def __attrs_post_init__(self) -> None:
        numbers = [0, *(number for number, _ in self.faults)]
        if any(number >= after for number, after in pairwise(numbers)):
            raise InvalidInput(f"operations {numbers[1:]} are to fail; give numbers from 1 on that ascend")

    @classmethod
    def of(cls, faults: Mapping[int, Fault]) -> FaultPlan:
        """From a mapping, in any order."""
        return cls(tuple(sorted(faults.items())))

    def at(self, number: int) -> Fault | None:
        """What happens to this operation."""
        return dict(self.faults).get(number)

    def over_files(self, files: Files | None = None) -> FailingFiles:
        """A disk that this happens to: a `Files` in front of another one, of the local disk if not given."""
        return FailingFiles(files, faults=self.at)

    def over_store(self, store: KVStore) -> FaultyStore:
        """A key-value store that this happens to, in front of another one."""
        def choose(operation: KVOperation) -> KVFault | None:
            fault = self.at(operation.number)
            return KVFault(fault) if fault in STORE_FAULTS else None

        return FaultyStore(store, choose)

    def over_objects(self, store: ObjectStore) -> FaultyObjects:
        """An object store that this happens to, in front of another one."""
        return FaultyObjects(store, lambda request: self.at(request.number))
