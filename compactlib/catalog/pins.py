# SPDX-License-Identifier: Apache-2.0
"""Pins: a named owner keeps a catalog version readable for a while, and every explanation shows that name.

All pins are in a cell of the store that the whole cluster shares. A pin is granted under the condition that the log's
earliest version has not changed, and a cut is made under the condition that the cell of the pins has not changed: the
later of the two fails and reads again. So a granted pin holds even against a decision that was made before it. Each
change drops the expired pins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from compactlib.catalog import keys
from compactlib.catalog.errors import CatalogVersionNotFound
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.timestamp import HybridClock, Timestamp, add_ms, milliseconds
from compactlib.catalog.update_log import UpdateLog
from compactlib.catalog.values import Culprit, Factor, Floor
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
        expires: end of the claim.
    """

    owner: str
    version: int
    time: Timestamp
    expires: Timestamp


PinSet: TypeAlias = Mapping[str, Pin]
"""The value of the cell: the pins by owner, including expired pins."""


class Pins:
    """The pins of a catalog, stored with its log. Any thread and process may call it.

    Args:
        log: the catalog's log.
        clock: decides when a pin expires; a pin holds for the clocks' greatest skew longer.
    """

    def __init__(self, log: UpdateLog, clock: HybridClock) -> None:
        self._log = log
        self._clock = clock
        self._cell = Cell[PinSet](log.store, log.partition, keys.PINS, dict[str, Pin], clock=clock.clock,
                                  retries=Retries(_ATTEMPTS), rng=log.rng)

    def pin(self, owner: str, version: int, view: RetainedVersions, *, ttl_seconds: float) -> Pin:
        """Pin a version in place of the owner's earlier pin. Once this returns, the version stays readable.

        Three requests.

        Args:
            owner: the name that operators see.
            version: a version of `view`.
            view: this node's history.
            ttl_seconds: time to live; pin the version again to extend it.

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

        def with_pin(before: PinSet | None) -> PinSet:
            seen.append((before or {}).get(owner))
            if seen[-1] != seen[0]:
                raise Conflict(f"another caller changed the pin of {owner!r} at the same time; read the pin again, and "
                               f"give each caller a different owner's name")
            after = {**self._living(before), owner: made}
            if len(after) > MAX_PINS:
                raise InvalidInput(f"{MAX_PINS} pins are held; release some")
            return after

        for _ in range(_ATTEMPTS):
            state = self._log.state()
            if version < state.earliest:
                raise CatalogVersionNotFound(version=version, earliest=state.earliest, latest=state.latest)
            try:
                self._cell.update(with_pin, conditions=state.earliest_condition,
                                  operation=f"taking a pin for {owner!r}")
            except PredicateFailed:
                continue  # the log was cut since
            return made
        raise Busy(f"the log was cut {_ATTEMPTS} times while {owner!r} took a pin; call again")

    def release(self, owner: str) -> None:
        """Release the owner's pin, if there is one. A pin granted after this call began stays.

        Raises:
            Busy, OutcomeUnknown: as `pin`.
        """
        seen: list[Pin | None] = []

        def without(before: PinSet | None) -> PinSet | None:
            seen.append((before or {}).get(owner))
            released = owner if seen[-1] == seen[0] else None
            return before and {each: pin for each, pin in self._living(before).items() if each != released}

        self._cell.update(without, operation="releasing a pin")

    # -- reading them

    def active(self) -> list[Pin]:
        """Return the pins that have not expired by more than the clocks' greatest skew. One request.

        Raises:
            CorruptData, Unsupported: the cell cannot be read; nothing is cut until it can.
        """
        return list(self._living(self._cell.read()).values())

    def state(self) -> CellState[PinSet]:
        """Return all pins, and the condition that the cell has not changed since. One request."""
        return self._cell.state()

    def need_of(self, pins: PinSet | None) -> Floor | None:
        """Return the need of the lowest unexpired pin, with its owner as the culprit."""
        lowest = min(self._living(pins).values(), key=lambda pin: (pin.time, pin.owner), default=None)
        return None if lowest is None else Floor(Factor.PIN, lowest.time, Culprit(owner=f"pinned by {lowest.owner!r}"))

    def _living(self, pins: PinSet | None) -> PinSet:
        now = self._clock.present()
        return {owner: pin for owner, pin in (pins or {}).items()
                if add_ms(pin.expires, self._clock.max_skew_ms) >= now}
