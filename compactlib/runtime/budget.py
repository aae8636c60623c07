# SPDX-License-Identifier: Apache-2.0
"""An adapter: `compactlib.budget` under its old name, and one error message. It ends when the engines are re-drawn."""

from __future__ import annotations

from compactlib.budget import Budget as Budget, BudgetLimits as BudgetLimits
from compactlib.errors import BudgetSpent, CompactlibError


def spent_at_once(error: CompactlibError, what: str, *, left: int | None, needed: int | None) -> CompactlibError:
    """Return `error`, and if the total did not suffice for one commit, another one that says how much would.

    Args:
        error: what ended the work.
        what: is committed all at once, and starts over each time: `"the branch 'main'"`.
        left: bytes that the budget had when it began; `None`: no total.
        needed: what it takes, as far as that is known before.
    """
    if not isinstance(error, BudgetSpent) or error.reason != "bytes" or left is None:
        return error
    least = max(needed or 0, left + 1)
    advice = f"give more than {left}, how many is unknown" if needed is None else f"give at least {least}"
    return BudgetSpent(f"{what} is committed all at once, and begins anew each time: the budget had {left} bytes left "
                       f"({error.spent_bytes} bytes spent in all); {advice}",
                       reason=error.reason, spent_bytes=error.spent_bytes, needed_bytes=least)
