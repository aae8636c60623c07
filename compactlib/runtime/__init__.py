"""What every package needs around its engine, decided once: who owns a running piece of work, how services take turns
and come to their end, how observers are told, how a lost answer is looked for, and how far a clock may jump.

Nothing here knows a store: what a package decides stays in the package, and stands on these parts. A service in threads
stands on `WorkService`, one in an event loop on `AsyncWork`; `ServiceFace` and `AsyncServiceFace` are the methods that
hosts call.
"""

from compactlib._lazy import offer

offer(__name__)
