"""The laws of the scheduler_policy kit, on the policy of this package."""

from __future__ import annotations

from corekit_lifo import LIFO

from corekit.testing import SchedulerPolicyKit


class TestLifo(SchedulerPolicyKit):
    provider = LIFO


class TestImpatientLifo(SchedulerPolicyKit):
    provider = LIFO
    options = {"patience": 0.0}
