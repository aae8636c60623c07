# SPDX-License-Identifier: Apache-2.0
"""`outcome`: three answers that can be told apart, printed, shown, and sent elsewhere."""

from __future__ import annotations

import errno
import pickle
from typing import Any

import attrs
import pytest

from compactlib.errors import BudgetSpent, Busy, CompactionFailed, Conflict, CorruptData, StorageError
from compactlib.kv import OutcomeUnknown
from compactlib.outcome import Done, Failed, Outcome, Skipped, raised


@attrs.frozen
class Stats:
    groups: int
    bytes_freed: int


class Rows:
    def to_dicts(self) -> list[dict[str, Any]]:
        return [{"group": 1}, {"group": 2}]


DAMAGE = CorruptData(path="/log/7", offset=4, expected="CRC 1", found="CRC 2", index=9)


def told(outcome: Outcome[Stats]) -> str:
    match outcome:
        case Done(stats):
            return f"freed {stats.bytes_freed}"
        case Skipped(reason):
            return reason
        case Failed(error):
            return type(error).__name__


def test_the_three_are_told_apart_by_match() -> None:
    assert [told(Done(Stats(1, 100))), told(Skipped("nothing is dead")), told(Failed(DAMAGE))] == \
        ["freed 100", "nothing is dead", "CorruptData"]


def test_done_shows_the_fields_of_its_stats() -> None:
    assert Done(Stats(1, 2048)).to_dicts() == [{"outcome": "done", "groups": 1, "bytes_freed": 2048}]
    assert Done(Rows()).to_dicts() == [{"outcome": "done", "group": 1}, {"outcome": "done", "group": 2}]
    assert Done(17).to_dicts() == [{"outcome": "done", "stats": 17}]


def test_skipped_shows_its_reason() -> None:
    assert Skipped("nothing is dead").to_dicts() == [{"outcome": "skipped", "reason": "nothing is dead"}]


def test_failed_shows_the_error_with_its_numbers() -> None:
    (row,) = Failed(DAMAGE).to_dicts()
    assert row == {"outcome": "failed", "error": "CorruptData", "message": str(DAMAGE), "changed": "no",
                   "path": "/log/7", "offset": 4, "expected": "CRC 1", "found": "CRC 2", "index": 9}
    assert list(row)[:4] == ["outcome", "error", "message", "changed"]
    assert Failed(DAMAGE, changed="unknown").to_dicts()[0]["changed"] == "unknown"
    lost = OutcomeUnknown(operation="set", path="kv", detail="gone")
    assert [Failed(lost).changed, Failed(lost, changed="no").changed] == ["unknown", "no"]
    (row,) = Failed(StorageError(operation="write", path="/log/7", errno=errno.EIO)).to_dicts()
    assert (row["operation"], row["errno"]) == ("write", errno.EIO)


@pytest.mark.parametrize("outcome", [Done(Stats(1, 2048)), Skipped("<nothing> is dead"), Failed(DAMAGE)])
def test_each_has_one_line_and_a_table(outcome: Outcome[Stats]) -> None:
    assert "\n" not in repr(outcome)
    page = outcome._repr_html_()
    assert page.startswith("<table>")
    assert outcome.to_dicts()[0]["outcome"] in page
    assert "<nothing>" not in page


def test_values_pickle() -> None:
    for outcome in (Done(Stats(1, 2048)), Skipped("nothing is dead")):
        assert pickle.loads(pickle.dumps(outcome)) == outcome


@pytest.mark.parametrize("error", [DAMAGE, BudgetSpent("enough", reason="bytes", spent_bytes=7)])
def test_a_failure_pickles_with_all_fields_of_its_error(error: CorruptData | BudgetSpent) -> None:
    revived = pickle.loads(pickle.dumps(Failed(error)))
    assert isinstance(revived, Failed)
    assert type(revived.error) is type(error)
    assert (str(revived.error), vars(revived.error)) == (str(error), vars(error))


def test_raised_gives_the_report_or_raises_the_error() -> None:
    stats, spent = Stats(1, 2048), BudgetSpent("2,048 bytes are spent", reason="bytes", spent_bytes=2048)
    assert raised(Done(stats)) is raised(stats) is stats
    empty, partial = raised(Skipped("nothing is dead")), raised(Failed(spent, "partly"))
    assert (empty.is_empty, empty.is_partial, empty.why) == (True, False, "nothing is dead")
    assert (partial.is_empty, partial.is_partial, partial.why) == (False, True, str(spent))
    for outcome, kind in ((Skipped("a compaction runs", is_busy=True), Busy), (Failed(DAMAGE), CorruptData),
                          (Failed(DAMAGE, "partly"), CorruptData), (Failed(spent), BudgetSpent)):
        with pytest.raises(kind):
            raised(outcome)
    refusal = Conflict("a newer token was admitted")
    with pytest.raises(CompactionFailed) as found:
        raised(Failed(refusal, "partly"))
    assert list(found.value.failures.values()) == [refusal]
