# SPDX-License-Identifier: Apache-2.0
"""`SortedMap`: a sorted dictionary that can be read after any interrupt."""

from __future__ import annotations

from typing import Any, TypeVar

from sortedcontainers import SortedDict

KeyT = TypeVar("KeyT", bound=Any)
ValueT = TypeVar("ValueT")


class SortedMap(SortedDict[KeyT, ValueT]):
    """A `SortedDict` in which a Ctrl-C within `map[key] = value` or `del map[key]` leaves a key wholly in or out.

    Change it by these two alone.
    """

    def __setitem__(self, key: KeyT, value: ValueT) -> None:
        try:
            super().__setitem__(key, value)
        except BaseException:
            self._order_anew()
            raise

    def __delitem__(self, key: KeyT) -> None:
        try:
            super().__delitem__(key)
        except BaseException:
            self._order_anew()
            raise

    def _order_anew(self) -> None:
        """Sort the keys of the dictionary itself, which has each of them or has it not. O(n log n)."""
        held: Any = self
        held._list_clear()
        held._list_update(dict.keys(held))
