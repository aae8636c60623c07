# SPDX-License-Identifier: Apache-2.0
"""`python -m compactlib`: the same as the console script, where that is not on the path."""

from __future__ import annotations

import sys

from compactlib.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
