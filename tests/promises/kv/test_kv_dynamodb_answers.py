# SPDX-License-Identifier: Apache-2.0
"""An answer that is not whole is no answer: it is neither an absent key nor an acknowledged write."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from compactlib.kv import OutcomeUnknown
from compactlib.kv.errors import StoreFailed
from tests.harness.kv.dynamodb import make, make_proxy, new_table
from tests.harness.kv.faulty_proxy import Fault

pytestmark = pytest.mark.cluster

CUT = b'{"Item": {"v": {"B": "dg=='
PAGE = b"<html>Sign in to this network</html>"


@pytest.mark.parametrize("with_checksum", [True, False])
@pytest.mark.parametrize("body", [CUT, PAGE, b""])
def test_answer_that_is_not_whole_is_named(body: bytes, with_checksum: bool) -> None:
    """With DynamoDB's checksum, or from a server or a proxy without."""
    with make_proxy() as proxy, contextlib.closing(make(new_table(), proxy.address)) as store:
        store.set(b"p", b"k", b"v")
        proxy.made_up[Fault.FAIL] = 200, "application/x-amz-json-1.0", body
        proxy.checksum = lambda data: "1" if with_checksum else None
        proxy.every(Fault.FAIL)
        reads: Sequence[object] = [lambda: store.get(b"p", b"k"), lambda: next(store.scan(b"p")),
                                   lambda: store.get_many([(b"p", b"k"), (b"p", b"l")])]
        for read in reads:
            with pytest.raises(StoreFailed, match="cut or garbled") as raised:
                read()  # type: ignore[operator]
            assert not isinstance(raised.value, OutcomeUnknown)
        with pytest.raises(OutcomeUnknown, match="cut or garbled"):
            store.set(b"p", b"k", b"w")
