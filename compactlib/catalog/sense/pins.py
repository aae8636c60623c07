# SPDX-License-Identifier: Apache-2.0
"""Pins: a named holder keeps a catalog version readable for a while, and every explanation shows that name.

Pins lie in the store that the whole cluster shares. Taking one moves an epoch in the same step, and a plan made before
is refused if the epoch has moved since (`CatalogMoved`): so a pin that was granted holds.

Every change demands that the pins it changes are still those that it has read, so that none brings an earlier pin back
or removes a later one, however long its caller was held up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from compactlib.catalog.arguments import printed
from compactlib.catalog.errors import CatalogVersionNotFound, PinExpired
from compactlib.catalog.log import keys
from compactlib.catalog.log.log_model import LogState
from compactlib.catalog.log.records import RecordType, seal_fields, unseal_fields
from compactlib.catalog.log.update_log import UpdateLog
from compactlib.catalog.model.timestamp import HybridClock, Timestamp, add_ms, from_seconds, milliseconds
from compactlib.catalog.model.values import Culprit, Factor, Floor, Need
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.errors import CompactlibError, Conflict, InvalidInput
from compactlib.kv import Condition, KeyNotFound, OutcomeUnknown
from compactlib.kv.cell import Found, Retries, Swap, swap
from compactlib.kv.store import Predicate
from compactlib.runtime.look import look_until_seen

MAX_PINS = 10_000
"""Pins that one catalog holds."""
MAX_OWNER = 200
"""Characters of an owner's name."""
_ATTEMPTS = 10
_BATCH = 40
"""Pins that are forgotten in one step; each takes a condition and a change."""


@attrs.frozen
class Pin:
    """A version that stays readable.

    Attributes:
        owner: the holder's name; each owner holds one.
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

    def __init__(self, log: UpdateLog, clock: HybridClock) -> None:
        self._log = log
        self._clock = clock
        # How many pins there were at most, and the epoch from which on they were counted.
        self._counted: tuple[int, int] = MAX_PINS, 0

    def pin(self, owner: str, version: int, view: RetainedVersions, *, ttl_seconds: float) -> Pin:
        """Hold a version, or another one in the place of the owner's last. Once it returns, the version stays.

        Takes some reads and a write; the first one, and each once there may be `MAX_PINS`, lists all pins besides.

        Args:
            owner: the holder's name, as operators see it.
            version: the version.
            view: this node's history, which must hold it.
            ttl_seconds: how long, unless `renew` is called.

        Raises:
            CatalogVersionNotFound: the version is not retained, here or in the log; nothing is held.
            InvalidInput: the owner is empty or too long, the time to live negative, or there are `MAX_PINS`.
            Busy: others took pins at the same time, again and again; nothing was changed.
            Conflict: another caller has changed the pin of this very owner meanwhile; nothing was changed.
            OutcomeUnknown: the store did not say whether the pin is held, and it could not be seen.
            ClockJumped: the clock is off, and nothing has confirmed it.
        """
        _require_owner(owner)
        ttl_ms = milliseconds(ttl_seconds, name="ttl_seconds")
        made = Pin(owner, version, view.activation(version), add_ms(self._clock.now(), ttl_ms))
        first: list[Pin | None] = []

        def taken(found: Pin | None) -> Pin:
            # At each attempt, which comes to nothing if the epoch has moved since it began.
            self._require_room(owner)
            first.append(found)
            if found != first[0]:
                raise Conflict(f"the pin of {owner!r} was changed by another caller meanwhile; look what it holds now, "
                               f"and give each caller an owner's name of its own")
            return made

        self._change([owner], taken)
        cut = self._cut_below(made)
        if cut is not None:
            raise CatalogVersionNotFound(version=version, earliest=cut.earliest, latest=cut.latest)
        return made

    def _require_room(self, owner: str) -> None:
        """Return if there is room for a pin of this owner. With each step of the epoch comes one pin at most."""
        epoch, _ = self._epoch()
        counted, since = self._counted
        if since <= epoch and counted + epoch - since < MAX_PINS:
            return
        with self._log.store.scan(self._log.partition, prefix=keys.PINS, keys_only=True) as entries:
            held = [entry.key for entry in entries]
        self._counted = len(held), epoch
        if len(held) - (keys.pin_key(owner) in held) >= MAX_PINS:
            raise InvalidInput(f"{MAX_PINS} pins are held; release some")

    def _cut_below(self, held: Pin) -> LogState | None:
        """The log, if it was cut above the version of a pin that was just written; then the pin is taken back."""
        unknown = OutcomeUnknown(operation=f"pin of catalog version {held.version} by {held.owner!r}",
                                 path="the catalog's pins",
                                 detail="it is held, and whether the log was cut before that could not be seen, or the "
                                        "pin not be taken back then; release it if you do not use it")
        state = look_until_seen(self._log.state, unknown, clock=self._clock.steady)
        if state is None or not state.compacted or state.earliest <= held.version:
            return None
        try:
            # Its own pin only: the owner may have taken a later one meanwhile.
            self._change([held.owner], lambda found: None if found == held else found)
        except CompactlibError as error:
            raise unknown from error
        return state

    def renew(self, owner: str, *, ttl_seconds: float) -> Pin:
        """Let the pin that the owner holds, whichever version that is by now, live on from now.

        Raises:
            PinExpired: it ran out, here or where history was cut since, or was released.
            InvalidInput: the time to live is negative.
            Busy, OutcomeUnknown, ClockJumped: as `pin`.
        """
        _require_owner(owner)
        ttl_ms = milliseconds(ttl_seconds, name="ttl_seconds")

        def renewed(found: Pin | None) -> Pin:
            if found is None or not self._holds(found, self._now()):
                raise PinExpired(owner=owner)
            return attrs.evolve(found, expires=add_ms(self._clock.now(), ttl_ms))

        pin = self._change([owner], renewed)[owner]
        # By another clock it may have run out before, and its version be gone.
        if pin is None or self._cut_below(pin) is not None:
            raise PinExpired(owner=owner)
        return pin

    def release(self, owner: str) -> None:
        """Give the owner's pin up; one that does not exist is no error.

        Raises:
            Busy, OutcomeUnknown: as `pin`.
        """
        _require_owner(owner)
        first: list[Pin | None] = []

        def without(found: Pin | None) -> Pin | None:
            first.append(found)
            # A pin that was taken since this call began is a later one.
            return None if found == first[0] else found

        self._change([owner], without)

    def all(self) -> list[Pin]:
        """Every pin that is kept, expired ones too. O(pins).

        Raises:
            RecordDamaged, RecordTooNew: one cannot be read; nothing is cut until it can.
        """
        with self._log.store.scan(self._log.partition, prefix=keys.PINS) as entries:
            return [_decoded(entry.key, entry.value) for entry in entries]

    def active(self) -> list[Pin]:
        """The pins that hold: not expired by more than the allowed clock skew, by a clock that did not just jump."""
        now = self._now()
        return [pin for pin in self.all() if self._holds(pin, now)]

    def _now(self) -> Timestamp:
        """The lowest that it may be: a clock that was set back is in doubt for a while, and hybrid time stays ahead for
        longer, but other nodes may have taken pins by it meanwhile.
        """
        steady = self._clock.steady
        return from_seconds(max(min(steady.expiry(), steady.host_clock.now()), 0.0))

    def _holds(self, pin: Pin, now: Timestamp) -> bool:
        return add_ms(pin.expires, self._clock.max_skew_ms) >= now

    def forget_expired(self) -> int:
        """Delete expired pins; returns how many. A pin that is renewed or taken meanwhile stays.

        Raises:
            Busy, OutcomeUnknown: as `pin`; some may be deleted.
        """
        now = self._now()
        doomed = [pin.owner for pin in self.all() if not self._holds(pin, now)]
        deleted = 0
        batch = min(_BATCH, (self._log.store.limits.max_transact - 2) // 2)
        for at in range(0, len(doomed), batch):
            gone: list[str] = []

            def expired(found: Pin | None, gone: list[str] = gone) -> Pin | None:
                if found is None or self._holds(found, now):
                    return found
                gone.append(found.owner)
                return None

            self._change(doomed[at:at + batch], expired)
            deleted += len(set(gone))
        return deleted

    def need(self, view: RetainedVersions) -> Need | None:
        """See `NeedSource.need`: the lowest pin, with its owner."""
        lowest = min(self.active(), key=lambda pin: (pin.time, pin.owner), default=None)
        return None if lowest is None else Floor(Factor.PIN, lowest.time, Culprit(owner=f"pinned by {lowest.owner!r}"))

    def condition(self) -> Condition:
        """The epoch as it is now: as long as it has not moved, the pins are those that are read from here on."""
        return Condition(self._log.partition, keys.PIN_EPOCH, self._epoch()[1])

    def _epoch(self) -> tuple[int, Predicate | None]:
        try:
            found = self._log.store.get(self._log.partition, keys.PIN_EPOCH)
        except KeyNotFound:
            return 0, None
        return _epoch_in(found.value), found.predicate

    def _change(self, owners: Sequence[str], change: Callable[[Pin | None], Pin | None]) -> dict[str, Pin | None]:
        """Replace each owner's pin by what `change` makes of it (`None`: no pin), all in one step; returns them.

        The epoch moves with it, so that a change that comes late fails. `change` is asked again after a lost race.
        """
        partition = self._log.partition
        epoch_cell = partition, keys.PIN_EPOCH
        cells = {owner: (partition, keys.pin_key(owner)) for owner in owners}

        def decide(found: Found) -> Swap[dict[str, Pin | None]]:
            before = {owner: _decoded(cell[1], found[cell].value) if cell in found else None
                      for owner, cell in cells.items()}
            wanted = {owner: change(pin) for owner, pin in before.items()}
            writes = {cells[owner]: None if pin is None else seal_fields(keys.pin_key(owner), RecordType.PIN,
                                                                         attrs.asdict(pin))
                      for owner, pin in wanted.items() if pin != before[owner]}
            if writes:
                epoch = _epoch_in(found[epoch_cell].value) if epoch_cell in found else 0
                writes[epoch_cell] = seal_fields(keys.PIN_EPOCH, RecordType.PIN, {"epoch": epoch + 1})
            return Swap(wanted, writes)

        return swap(self._log.store, [epoch_cell, *cells.values()], decide, operation="a change of the pins",
                    retries=Retries(_ATTEMPTS), clock=self._clock.steady)


def _require_owner(owner: str) -> None:
    printed("a pin's owner", owner)
    if not 1 <= len(owner) <= MAX_OWNER:
        raise InvalidInput(f"a pin's owner is {str(owner)[:40]!r}; give a name of 1 to {MAX_OWNER} characters")


def _decoded(key: bytes, record: bytes) -> Pin:
    owner, version, time, expires = unseal_fields(key, record, RecordType.PIN, "owner", "version", "time", "expires")
    return Pin(owner, version, time, expires)


def _epoch_in(record: bytes) -> int:
    (epoch,) = unseal_fields(keys.PIN_EPOCH, record, RecordType.PIN, "epoch")
    return int(epoch)
