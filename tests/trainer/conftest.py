"""Gate profile for the properties of this folder: the same examples every time, and no deadline on a loaded machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("gate")
