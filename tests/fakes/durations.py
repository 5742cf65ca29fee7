"""The settings that fleets on paper go by, unless a story has its own."""

from __future__ import annotations

from feedq.settings import Settings

DURATIONS = Settings.model_construct(
    heartbeat_s=2.0,
    ttl_s=6.0,
    reconcile_interval_s=5.0,
    settle_s=2.0,
    measured_load=0.0,
    tenant_caps={},
    moves_per_pass=100,
    handoff_timeout_s=10.0,
    restart_hold_s=0.0,
)
"""Neither from the environment nor from the defaults: no transcript may change because one of those does."""
