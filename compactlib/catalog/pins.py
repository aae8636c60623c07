"""Pins: anybody holds a catalog version readable for a while, under a name that shows up in every explanation.

Pins lie in the store that the whole cluster shares. Taking one moves an epoch in the same step, and a compaction that
carries `Pins.condition()` in its fence is refused if the epoch has moved since: so a pin that was granted holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from compactlib.catalog import keys
from compactlib.catalog.errors import CatalogVersionNotFound, PinExpired
from compactlib.catalog.history import HistoryView
from compactlib.catalog.log_reader import LogReader
from compactlib.catalog.model import Culprit, Factor, Floor, Need
from compactlib.catalog.records import RecordType, seal_fields, unseal_fields
from compactlib.catalog.timestamp import HybridClock, Timestamp, add_ms, milliseconds
from compactlib.errors import Busy, InvalidInput
from compactlib.kv import Condition, Delete, KeyNotFound, OutcomeUnknown, Predicate, PredicateFailed, Put

MAX_PINS = 10_000
"""Pins that one catalog holds."""
MAX_OWNER = 200
"""Characters of an owner's name."""
_ATTEMPTS = 10
_BATCH = 50


@attrs.frozen
class Pin:
    """A version that stays readable.

    Attributes:
        owner: who holds it; each owner holds one.
        version: the version.
        time: when that version became active.
        expires: when the pin ends by itself.
    """

    owner: str
    version: int
    time: Timestamp
    expires: Timestamp


class Pins:
    """The pins of one catalog, kept with its log. Any thread and process may call it.

    Args:
        log: the catalog's log.
        clock: decides when a pin expires; another node's clock may differ by the allowed skew, which is waited for.
    """

    def __init__(self, log: LogReader, clock: HybridClock) -> None:
        self._log = log
        self._clock = clock

    def pin(self, owner: str, version: int, view: HistoryView, *, ttl_seconds: float) -> Pin:
        """Hold a version, or another one in the place of the owner's last. Once it returns, the version stays.

        Args:
            owner: a name that tells an operator who it is.
            version: the version.
            view: this node's history, which must hold it.
            ttl_seconds: how long, unless `renew` is called.

        Raises:
            CatalogVersionNotFound: the version is not retained, here or in the log; nothing is held.
            InvalidInput: the owner is empty or too long, the time to live negative, or there are `MAX_PINS`.
            Busy: others took pins at the same time, again and again.
        """
        if not 1 <= len(owner) <= MAX_OWNER:
            raise InvalidInput(f"a pin's owner has {len(owner)} characters; give 1 to {MAX_OWNER}")
        ttl_ms = milliseconds(ttl_seconds, name="ttl_seconds")
        if sum(1 for pin in self.all() if pin.owner != owner) >= MAX_PINS:
            raise InvalidInput(f"{MAX_PINS} pins are held; release some")
        made = Pin(owner, version, view.activation(version), add_ms(self._clock.now(), ttl_ms))
        self._change(put=made)
        state = self._log.state()
        if state is not None and state.compacted and state.earliest > version:
            self.release(owner)
            raise CatalogVersionNotFound(version=version, earliest=state.earliest, latest=state.latest)
        return made

    def renew(self, owner: str, *, ttl_seconds: float) -> Pin:
        """Let the owner's pin live on from now.

        Raises:
            PinExpired: it ran out, or was released.
            InvalidInput: the time to live is negative.
        """
        known = next((pin for pin in self.active() if pin.owner == owner), None)
        if known is None:
            raise PinExpired(owner=owner)
        renewed = attrs.evolve(known, expires=add_ms(self._clock.now(), milliseconds(ttl_seconds, name="ttl_seconds")))
        self._change(put=renewed)
        return renewed

    def release(self, owner: str) -> None:
        """Give the owner's pin up; one that does not exist is no error."""
        if any(pin.owner == owner for pin in self.all()):
            self._change(deletes=[owner])

    def all(self) -> list[Pin]:
        """Every pin that is kept, expired ones too. O(pins).

        Raises:
            RecordDamaged, RecordTooNew: one cannot be read; nothing is cut until it can.
        """
        with self._log.store.scan(self._log.partition, prefix=keys.PINS) as entries:
            return [_decoded(entry.key, entry.value) for entry in entries]

    def active(self) -> list[Pin]:
        """The pins that hold: not expired by more than the allowed clock skew."""
        now = self._clock.now()
        return [pin for pin in self.all() if add_ms(pin.expires, self._clock.max_skew_ms) >= now]

    def forget_expired(self) -> int:
        """Delete expired pins; returns how many."""
        held = {pin.owner for pin in self.active()}
        doomed = [pin.owner for pin in self.all() if pin.owner not in held]
        for at in range(0, len(doomed), _BATCH):
            self._change(deletes=doomed[at:at + _BATCH])
        return len(doomed)

    def need(self, view: HistoryView) -> Need | None:
        """See `NeedSource.need`: the lowest pin, with its owner."""
        lowest = min(self.active(), key=lambda pin: (pin.time, pin.owner), default=None)
        return None if lowest is None else Floor(Factor.PIN, lowest.time, Culprit(owner=f"pinned by {lowest.owner!r}"))

    def condition(self) -> Condition:
        """The epoch as it is now. Ask before the round collects reports, and put it into the snapshot's `Fence`."""
        return Condition(self._log.partition, keys.PIN_EPOCH, self._epoch()[1])

    def _epoch(self) -> tuple[int, Predicate | None]:
        try:
            found = self._log.store.get(self._log.partition, keys.PIN_EPOCH)
        except KeyNotFound:
            return 0, None
        (epoch,) = unseal_fields(keys.PIN_EPOCH, found.value, RecordType.PIN, "epoch")
        return epoch, found.predicate

    def _change(self, *, put: Pin | None = None, deletes: Sequence[str] = ()) -> None:
        """Put a pin or delete some, and move the epoch: a change that comes late then fails, and undoes no other."""
        partition = self._log.partition
        puts = [] if put is None else [Put(partition, keys.pin_key(put.owner), seal_fields(
            keys.pin_key(put.owner), RecordType.PIN, attrs.asdict(put)))]
        doomed = [Delete(partition, keys.pin_key(owner)) for owner in deletes]
        for _ in range(_ATTEMPTS):
            epoch, predicate = self._epoch()
            moved = seal_fields(keys.PIN_EPOCH, RecordType.PIN, {"epoch": epoch + 1})
            try:
                self._log.store.transact([Condition(partition, keys.PIN_EPOCH, predicate)],
                                         [*puts, Put(partition, keys.PIN_EPOCH, moved)], doomed)
            except (PredicateFailed, OutcomeUnknown):
                continue
            return
        raise Busy(f"{_ATTEMPTS} attempts to change the pins lost to others, or the store did not answer; try again")


def _decoded(key: bytes, record: bytes) -> Pin:
    owner, version, time, expires = unseal_fields(key, record, RecordType.PIN, "owner", "version", "time", "expires")
    return Pin(owner, version, time, expires)
