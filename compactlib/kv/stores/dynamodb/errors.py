# SPDX-License-Identifier: Apache-2.0
"""The names of what DynamoDB refuses, by its error codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactlib.kv.errors import OutcomeUnknown, SlowDown, StoreFailed

CONDITION_FAILED = "ConditionalCheckFailedException"
CANCELED = "TransactionCanceledException"
NO_TABLE = "ResourceNotFoundException"
TABLE_IN_USE = "ResourceInUseException"

_THROTTLED = frozenset({
    "ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "ThrottledException",
    "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "TooManyRequestsException", "SlowDown",
    # Another transaction has the item, or a replica elsewhere; it is over in a moment.
    "TransactionConflictException", "ReplicatedWriteConflictException",
})
_PASSING_REASONS = frozenset({"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"})


def code_of(response: Mapping[str, Any]) -> str:
    """The error code of an answer."""
    return str(response.get("Error", {}).get("Code", ""))


def refused(operation: str, table: str, response: Mapping[str, Any], *, writes: bool) -> StoreFailed | SlowDown:
    """The library's error for an answer of DynamoDB that is not a result, nor a condition that failed.

    Args:
        operation: what was asked for.
        table: of which table.
        response: the answer.
        writes: whether the operation writes: if it cannot be known that it was not carried out, say so.
    """
    code = code_of(response)
    detail = f"{code}: {response.get('Error', {}).get('Message', 'no message')}"
    if code in _THROTTLED:
        return SlowDown(operation=operation, detail=detail)
    if code == CANCELED:
        codes = {str(reason.get("Code")) for reason in response.get("CancellationReasons", ())} - {"None"}
        if codes and codes <= _PASSING_REASONS:
            return SlowDown(operation=operation, detail=detail)
        return StoreFailed(operation=operation, path=table, detail=detail)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if writes and (not 400 <= status < 500 or code == "TransactionInProgressException"):
        # What failed inside of DynamoDB may have failed after the item was written.
        return OutcomeUnknown(operation=operation, path=table, detail=detail)
    return StoreFailed(operation=operation, path=table, detail=detail)
