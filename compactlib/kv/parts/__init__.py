# SPDX-License-Identifier: Apache-2.0
"""What the stores are made of: checks of arguments, pages of entries, connections, group commit."""
