# SPDX-License-Identifier: Apache-2.0
"""Results as a pandas DataFrame. Needs the extra `lab` (pandas)."""

from __future__ import annotations

from typing import Any, Protocol

from compactlib.errors import MissingDependency

try:
    import pandas as pd
except ImportError:
    raise MissingDependency(package="pandas", extra="lab", purpose="a table of results as a DataFrame") from None


class Tabular(Protocol):
    """What has rows: reports, comparisons, plans."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows."""


def frame(result: Tabular) -> pd.DataFrame:
    """The rows of a report or a comparison; what is unknown is missing."""
    return pd.DataFrame(result.to_dicts())
