# SPDX-License-Identifier: Apache-2.0
"""Pins: a named owner keeps a catalog version readable for a while, and every explanation shows that name.

All pins are in a cell of the store that the whole cluster shares. A pin is granted under the condition that the log's
earliest version has not changed, and a cut is made under the condition that the cell of the pins has not changed: the
later of the two fails and reads again. So a granted pin holds even against a decision that was made before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from compactlib.catalog import keys
from compactlib.catalog.errors import CatalogVersionNotFound, PinExpired
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.timestamp import HybridClock, Timestamp, add_ms, milliseconds
from compactlib.catalog.update_log import UpdateLog
from compactlib.catalog.values import Culprit, Factor, Floor
from compactlib.codec import JsonCodec
from compactlib.errors import Busy, Conflict, InvalidInput
from compactlib.kv import PredicateFailed
from compactlib.kv.cell import Cell, CellState, Retries

MAX_PINS = 1_000
"""Limit of pins per catalog."""
MAX_OWNER = 200
"""Limit of characters in an owner's name."""
_ATTEMPTS = 10


@attrs.frozen
class Pin:
    """A claim that keeps a version readable until it is released or expires.

    Attributes:
        owner: each owner has at most one pin.
        time: activation of the version.
        expires: end of the claim, unless it is renewed.
    """

    owner: str
    version: int
    time: Timestamp
    expires: Timestamp


@attrs.frozen
class PinSet:
    """The value of the cell: all pins of a catalog, including expired pins.

    Attributes:
        pins: by owner.
        changes: number of changes, so that no two states are equal.
    """

    pins: Mapping[str, Pin] = attrs.field(factory=dict)
    changes: int = 0

    def without(self, owners: Sequence[str]) -> PinSet:
        """Return the set without the pins of these owners; `self` if `owners` is empty."""
        if not owners:
            return self
        return PinSet({owner: pin for owner, pin in self.pins.items() if owner not in owners}, self.changes + 1)


class Pins:
    """The pins of a catalog, stored with its log. Any thread and process may call it.

    Args:
        log: the catalog's log.
        clock: decides when a pin expires; a pin holds for the clocks' greatest skew longer.
    """

    def __init__(self, log: UpdateLog, clock: HybridClock) -> None:
        self._log = log
        self._clock = clock
        self._cell = Cell[PinSet](log.store, log.partition, keys.PINS, JsonCodec(PinSet), clock=clock.clock,
                                 retries=Retries(_ATTEMPTS), rng=log.rng)

    def pin(self, owner: str, version: int, view: RetainedVersions, *, ttl_seconds: float) -> Pin:
        """Pin a version in place of the owner's earlier pin. Once this returns, the version stays readable.

        Three requests.

        Args:
            owner: the name that operators see.
            version: a version of `view`.
            view: this node's history.
            ttl_seconds: time to live, unless `renew` is called.

        Raises:
            CatalogVersionNotFound: the version is not retained, here or in the log; it was not pinned.
            InvalidInput: the owner is empty or too long, the time to live negative, or there are `MAX_PINS`.
            Busy: at each attempt, another caller changed pins or cut the log; nothing was changed.
            Conflict: another caller changed the pin of the same owner at the same time; nothing was changed.
            OutcomeUnknown: the store did not acknowledge, and reading did not show whether the version is pinned.
        """
        if not 1 <= len(owner) <= MAX_OWNER:
            raise InvalidInput(f"a pin's owner is {owner[:40]!r}; give a name of 1 to {MAX_OWNER} characters")
        ttl_ms = milliseconds(ttl_seconds, name="ttl_seconds")
        made = Pin(owner, version, view.activation(version), add_ms(self._clock.now(), ttl_ms))
        seen: list[Pin | None] = []

        def granted(pins: Mapping[str, Pin]) -> Pin:
            if len(pins) - (owner in pins) >= MAX_PINS:
                raise InvalidInput(f"{MAX_PINS} pins are held; release some")
            seen.append(pins.get(owner))
            if seen[-1] != seen[0]:
                raise Conflict(f"another caller changed the pin of {owner!r} at the same time; read the pin again, and "
                               f"give each caller a different owner's name")
            return made

        return self._grant(owner, granted)

    def renew(self, owner: str, *, ttl_seconds: float) -> Pin:
        """Extend the owner's pin, of the version that is pinned now, to `ttl_seconds` from now.

        Raises:
            PinExpired: the pin expired, by this clock or by the clock of a node that has cut history, or was released.
            InvalidInput: the time to live is negative.
            Busy, OutcomeUnknown: as `pin`.
        """
        ttl_ms = milliseconds(ttl_seconds, name="ttl_seconds")

        def renewed(pins: Mapping[str, Pin]) -> Pin:
            if owner not in pins or not self._holds(pins[owner], self._clock.present()):
                raise PinExpired(f"the pin of {owner!r} has expired or was released; pin again")
            return attrs.evolve(pins[owner], expires=add_ms(self._clock.now(), ttl_ms))

        try:
            return self._grant(owner, renewed)
        except CatalogVersionNotFound:  # expired earlier, by another node's clock
            raise PinExpired(f"the pin of {owner!r} has expired or was released; pin again") from None

    def _grant(self, owner: str, pin_of: Callable[[Mapping[str, Pin]], Pin]) -> Pin:
        """Put the pin that `pin_of` returns for the present pins, under the condition that the log has its version."""
        for _ in range(_ATTEMPTS):
            earliest, condition = self._log.earliest()

            def change(before: PinSet | None, earliest: int = earliest) -> PinSet:
                found = before or PinSet()
                pin = pin_of(found.pins)
                if pin.version < earliest:
                    raise CatalogVersionNotFound(version=pin.version, earliest=earliest, latest=max(
                        earliest, pin.version))
                return PinSet({**found.pins, owner: pin}, found.changes + 1)

            try:
                after = self._cell.update(change, also=lambda *_, held=condition: [held],
                                          operation=f"taking a pin for {owner!r}").after or PinSet()
            except PredicateFailed:
                continue  # the log was cut since
            return after.pins[owner]
        raise Busy(f"the log was cut {_ATTEMPTS} times while {owner!r} took a pin; call again")

    def release(self, owner: str) -> None:
        """Release the owner's pin, if there is one. A pin granted after this call began stays.

        Raises:
            Busy, OutcomeUnknown: as `pin`.
        """
        seen: list[Pin | None] = []

        def without(before: PinSet | None) -> PinSet | None:
            pins = {} if before is None else before.pins
            seen.append(pins.get(owner))
            if before is None or seen[-1] is None or seen[-1] != seen[0]:
                return before
            return before.without([owner])

        self._cell.update(without, operation="releasing a pin")

    def forget_expired(self) -> int:
        """Delete expired pins; return their number. A pin that is renewed or granted at the same time stays.

        Raises:
            Busy, OutcomeUnknown: as `pin`.
        """
        now = self._clock.present()

        def living(before: PinSet | None) -> PinSet | None:
            if before is None:
                return None
            return before.without([owner for owner, pin in before.pins.items() if not self._holds(pin, now)])

        changed = self._cell.update(living, operation="forgetting expired pins", may_repeat=True)
        return sum(len(each.pins) * sign for each, sign in ((changed.before, 1), (changed.after, -1)) if each)

    # -- reading them

    def all(self) -> list[Pin]:
        """Return every stored pin, including expired pins. One request.

        Raises:
            CorruptData, Unsupported: the cell cannot be read; nothing is cut until it can.
        """
        return list((self._cell.read() or PinSet()).pins.values())

    def active(self) -> list[Pin]:
        """Return the pins that have not expired by more than the clocks' greatest skew."""
        now = self._clock.present()
        return [pin for pin in self.all() if self._holds(pin, now)]

    def state(self) -> CellState[PinSet]:
        """Return all pins, and the condition that the cell has not changed since. One request."""
        return self._cell.state()

    def need_of(self, pins: PinSet | None) -> Floor | None:
        """Return the need of the lowest unexpired pin, with its owner as the culprit."""
        now = self._clock.present()
        lowest = min((pin for pin in (pins or PinSet()).pins.values() if self._holds(pin, now)),
                     key=lambda pin: (pin.time, pin.owner), default=None)
        return None if lowest is None else Floor(Factor.PIN, lowest.time, Culprit(owner=f"pinned by {lowest.owner!r}"))

    def _holds(self, pin: Pin, now: Timestamp) -> bool:
        return add_ms(pin.expires, self._clock.max_skew_ms) >= now
