# SPDX-License-Identifier: Apache-2.0
"""The transfer of a snapshot with its live entries to another member (`transfer.py`), over a stream (`streams.py`)."""
