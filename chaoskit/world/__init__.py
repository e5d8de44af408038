"""The worlds a run can happen in. Here: real processes, whose links run through a real proxy."""

from chaoskit.world.real import RealWorld

__all__ = ["RealWorld"]
