# SPDX-License-Identifier: Apache-2.0
"""What the Spark tests give to every Java process that they start."""

from __future__ import annotations

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The quick compiler and the small collector: short-lived processes come up in half the time."""
