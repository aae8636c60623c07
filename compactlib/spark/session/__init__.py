# SPDX-License-Identifier: Apache-2.0
"""Spark sessions: starting one, shipping the library to its workers, registering the data sources."""
