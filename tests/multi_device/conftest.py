"""Tests that need eight devices: collected only where the CPU was split into as many.

``tests/test_sharding.py`` runs them in a process of their own.
"""

import os

collect_ignore_glob = (
    [] if "xla_force_host_platform_device_count=8" in os.environ.get("XLA_FLAGS", "") else ["test_*.py"]
)
