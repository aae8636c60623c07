# SPDX-License-Identifier: Apache-2.0
"""The console script, and `python -m compactlib`, which is the same."""

import sys


def main() -> int:
    """See `compactlib.cli.main`, which takes a moment to import."""
    try:
        from compactlib import cli
    except KeyboardInterrupt:
        sys.stderr.write("compactlib: interrupted; nothing was begun\n")
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
