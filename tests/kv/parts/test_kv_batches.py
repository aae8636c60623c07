# SPDX-License-Identifier: Apache-2.0
"""Batches of keys: what is of another type is refused by name, whatever the store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compactlib.errors import InvalidInput
from compactlib.kv import MemoryStore
from compactlib.kv.batches import change_many, get_many
from compactlib.kv.store import KVLimits

STORES = {"at once": KVLimits(100, 100, 100, 100, 100), "key by key": KVLimits(100, 100, 100, 0)}


@pytest.mark.parametrize("how", STORES)
@pytest.mark.parametrize("cells", [None, [None], [["p", "k"]], [(b"p", b"k", b"v")], [(b"p", bytearray(b"k"))],
                                   np.array(3)], ids=repr)
def test_cells_of_another_type_are_refused(how: str, cells: Any) -> None:
    with pytest.raises(InvalidInput, match="cells is"):
        get_many(MemoryStore(limits=STORES[how]), cells)


@pytest.mark.parametrize("how", STORES)
@pytest.mark.parametrize("changes", [None, [(b"k", b"v")], {b"k": "text"}, {b"k": b"v", "l": b"w"}], ids=repr)
def test_changes_of_another_type_are_refused_before_any_is_made(how: str, changes: Any) -> None:
    store = MemoryStore(limits=STORES[how])
    with pytest.raises(InvalidInput):
        change_many(store, b"p", changes)
    assert not list(store.scan(b"p"))


def test_what_is_no_store_is_refused() -> None:
    nothing: Any = None
    for call in (lambda: change_many(nothing, b"p", {b"k": b"v"}), lambda: get_many(nothing, [(b"p", b"k")])):
        with pytest.raises(InvalidInput, match="store is None"):
            call()
