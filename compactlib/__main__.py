# SPDX-License-Identifier: Apache-2.0
"""`python -m compactlib` is the console script."""

import sys

from compactlib.cli import main

if __name__ == "__main__":
    sys.exit(main())
