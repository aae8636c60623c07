# SPDX-License-Identifier: Apache-2.0
"""The low watermark: below it, data may be gone. It only rises, is durable, and waits for its readers.

Raising it has four steps: refuse new readers below the candidate, persist it, wait for the present readers, put it in
force and notify the listeners. A value that was recovered counts at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from compactlib.catalog.arguments import printed, whole
from compactlib.catalog.errors import BelowLowWatermark
from compactlib.catalog.log import keys
from compactlib.catalog.log.records import RecordType, seal_fields, unseal_fields
from compactlib.catalog.model.timestamp import (
    HybridClock,
    Timestamp,
    add_ms,
    checked_timestamp,
    milliseconds,
    physical_ms,
)
from compactlib.catalog.model.values import Factor, Floor, Need, Unavailable, Watermark
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.errors import AuditFailed, Closed, CompactlibError, InvalidInput
from compactlib.kv import KVStore
from compactlib.kv.batches import get_many
from compactlib.kv.cell import Found, Retries, Swap, swap
from compactlib.kv.store import Versioned
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.observe import tell

WatermarkListener = Callable[[Timestamp], None]
"""Called with each new value once it is in force; never the recovered one. What it raises is logged, and breaks
nothing; `Closed`, as a service raises that does not run, is not even logged.
"""

MAX_ATTEMPTS = 10
"""How often keeping a value is tried while the store does not say whether it did."""


class _Kept:
    """Stands among the readers that block until the value of one `advance` is kept."""


class LowWatermark:
    """One node's low watermark. Any thread may call it; one store key holds it.

    Args:
        store: where it is kept.
        node: the node's name, part of the key.
        clock: the node's clock.
        data_availability_seconds: how long old data stays readable.
        earliest: when the earliest retained catalog version became active: a lower recovered value is raised to it.
        partition: the store's partition.

    Raises:
        InvalidInput: the duration is negative or the name empty.
        RecordDamaged, RecordTooNew: the kept value cannot be read.
    """

    def __init__(self, store: KVStore, node: str, clock: HybridClock, *, data_availability_seconds: float = 600.0,
                 earliest: Timestamp | None = None, partition: bytes = b"catalog") -> None:
        printed("the node's name, under which the low watermark is kept,", node)
        self._store = store
        self._clock = clock
        self._address = partition, keys.low_watermark_key(node)
        self._availability_ms = milliseconds(data_availability_seconds, name="data_availability_seconds")
        self._lock = threading.Lock()
        self._time = self._recovered(earliest)
        self._pending: Timestamp | None = None
        self._readers: dict[Hashable, Timestamp] = {}
        self._blocking: set[Hashable] = set()
        self._listeners: list[WatermarkListener] = []

    def _recovered(self, earliest: Timestamp | None) -> Timestamp | None:
        kept = self._kept(get_many(self._store, [self._address]).get(self._address))
        return None if kept is None else max(kept, earliest or 0)

    def _kept(self, found: Versioned | None) -> Timestamp | None:
        if found is None:
            return None
        (time,) = unseal_fields(self._address[1], found.value, RecordType.LOW_WATERMARK, "time")
        return checked_timestamp(time)

    # --- looking ------------------------------------------------------------------------------------------------

    @property
    def value(self) -> Watermark:
        """The value in force, and the one that waits for readers."""
        with self._lock:
            return Watermark(self._time, self._pending)

    def candidate(self) -> Timestamp | None:
        """Now, less the availability, less the allowed clock skew; `None` if that lies before the epoch.

        A clock that jumps moves it only when a later reading has confirmed the jump: what is below it may be deleted.
        """
        back = self._availability_ms + self._clock.max_skew_ms
        now = self._clock.expiry()
        return add_ms(now, -back) if physical_ms(now) > back else None

    def need(self, view: RetainedVersions) -> Need | None:
        """See `NeedSource.need`: what is in force counts, so a pending value does not cut under its readers."""
        time = self.value.time
        if time is None:
            return Unavailable(Factor.LOW_WATERMARK, "there has been none yet")
        return Floor(Factor.LOW_WATERMARK, time)

    def listen(self, listener: WatermarkListener) -> None:
        """Call `listener` with each value that comes into force from now on: `CompactionService.watermark_moved`, for
        one, whether it was started yet or is stopped by then.
        """
        with self._lock:
            self._listeners.append(listener)

    # --- raising ------------------------------------------------------------------------------------------------

    def advance(self, to: Timestamp | None = None) -> Outcome[Watermark]:
        """Raise it to `to`, or to `candidate()`: done if there are no readers below, else pending until the last one
        ends.

        Skipped if that is no rise, or another rise still waits; failed if the store does not take it.

        Raises:
            InvalidInput: `to` is no timestamp.
        """
        wanted = self.candidate() if to is None else checked_timestamp(to)
        store = _Kept()
        try:
            with self._lock:
                if self._pending is not None and not self._blocking:
                    # An interrupt came between its last reader's end and its coming into force.
                    self._time, self._pending = self._pending, None
                if wanted is None or (self._time is not None and wanted <= self._time):
                    return Skipped(f"{wanted} does not exceed the low watermark {self._time}")
                if self._pending is not None:
                    return Skipped(f"{self._pending} still waits for {len(self._blocking)} readers below it")
                # From here on no reader begins below it; readers need not wait for the store.
                self._blocking = {store, *(reader for reader, time in self._readers.items() if time < wanted)}
                self._pending = wanted
            self._keep(wanted)
            self._no_longer_blocks(store)
        except CompactlibError as error:
            return Failed(error)
        finally:
            # Also after an interrupt: what waits for a store that is not asked any more would wait for ever.
            with self._lock:
                if store in self._blocking:
                    self._pending, self._blocking = None, set()
        return Done(self.value)

    def _keep(self, time: Timestamp) -> None:
        """Store a rise; a higher value that is there stays."""
        record = seal_fields(self._address[1], RecordType.LOW_WATERMARK, {"time": time})

        def decide(found: Found) -> Swap[None]:
            kept = self._kept(found.get(self._address))
            return Swap(None, {} if kept is not None and kept >= time else {self._address: record})

        swap(self._store, [self._address], decide, operation="keeping the low watermark", may_repeat=True,
             retries=Retries(MAX_ATTEMPTS), clock=self._clock.steady)

    def _no_longer_blocks(self, reader: Hashable) -> None:
        with self._lock:
            self._readers.pop(reader, None)
            self._blocking.discard(reader)
            if self._pending is None or self._blocking:
                return
            time = self._time = self._pending
            self._pending = None
            listeners = tuple(self._listeners)
        for listener in listeners:
            tell(listener, time, expected=(Closed,))

    # --- readers ------------------------------------------------------------------------------------------------

    def lock(self, reader: Hashable, time: Timestamp) -> None:
        """Keep the low watermark from passing `time` until `unlock(reader)`. O(1).

        Raises:
            BelowLowWatermark: it has passed, or is about to.
            InvalidInput: the reader holds a lock already.
        """
        whole("time", time)
        with self._lock:
            limit = max(self._time or 0, self._pending or 0)
            if time < limit:
                raise BelowLowWatermark(time=time, low_watermark=limit)
            if reader in self._readers:
                raise InvalidInput(f"reader {reader!r} holds a lock already; give each reader a name of its own")
            self._readers[reader] = time

    def unlock(self, reader: Hashable) -> None:
        """End a reader; one that holds no lock is no error. The last one below a pending value puts it in force."""
        self._no_longer_blocks(reader)

    @contextmanager
    def reading(self, reader: Hashable, time: Timestamp) -> Iterator[None]:
        """`lock` and `unlock` around a block."""
        self.lock(reader, time)
        try:
            yield
        finally:
            self.unlock(reader)

    def audit(self) -> None:
        """Check that no reader is below the value in force, and that a pending value waits for some reader.

        Raises:
            AuditFailed: one is, or it does not.
        """
        with self._lock:
            below = [reader for reader, time in self._readers.items() if time < (self._time or 0)]
            if below:
                raise AuditFailed(f"{below[:3]} read below the low watermark {self._time}")
            if self._pending is not None and not self._blocking:
                raise AuditFailed(f"{self._pending} waits for no reader")
            if not {each for each in self._blocking if not isinstance(each, _Kept)} <= self._readers.keys():
                raise AuditFailed("a reader that is gone still blocks")

    def __repr__(self) -> str:
        return f"LowWatermark({self.value}, {len(self._readers)} readers)"
