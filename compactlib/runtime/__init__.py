# SPDX-License-Identifier: Apache-2.0
"""What the engines share until they are re-drawn: ownership of running work, background services (threads and asyncio),
observers, retries after a lost answer, and a clock that notices jumps.

Nothing here knows a store: what a package decides stays in the package, and uses these parts. A service in threads is
built on `WorkService`, one in an event loop on `AsyncWork`; `ServiceFace` and `AsyncServiceFace` are the methods that
hosts call.
"""

from compactlib._lazy import offer

offer(__name__)
