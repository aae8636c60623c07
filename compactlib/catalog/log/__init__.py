# SPDX-License-Identifier: Apache-2.0
"""The update log: its format, its reading, recovery, and the removal of what a snapshot replaced."""
