# SPDX-License-Identifier: Apache-2.0
"""Says what to install when PySpark or the packages behind it are missing."""

from __future__ import annotations

import importlib

from compactlib.errors import MissingDependency


def require_spark(purpose: str) -> None:
    """Pass where PySpark, PyArrow and pandas (which PySpark asks for in `mapInArrow`) can be imported, or raise
    `MissingDependency`, whose message the purpose opens."""
    for package in ("pyspark", "pyarrow", "pandas"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingDependency(package=package, extra="spark", purpose=purpose) from None
