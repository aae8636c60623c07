"""The heavy step as tasks, and who runs them: this process, or several."""

from compactlib._lazy import offer

offer(__name__)
