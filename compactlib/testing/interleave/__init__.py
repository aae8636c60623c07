"""Every interleaving of a few actors, and pauses of an owner."""

from compactlib._lazy import offer

offer(__name__)
