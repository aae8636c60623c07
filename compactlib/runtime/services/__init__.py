# SPDX-License-Identifier: Apache-2.0
"""Background services, each with threads or tasks of its own: turns, agendas, the services of stores."""
