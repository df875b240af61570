from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine may stop for seconds in the middle of an example: that says nothing about it.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
