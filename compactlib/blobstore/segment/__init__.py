# SPDX-License-Identifier: Apache-2.0
"""Segment files of the log: header, records with checksums, reading, scanning, appending, erasing in place."""
