"""Rotary embedding and RMS norm on the CPU are sglang's own, in fewer calls."""

from __future__ import annotations

import servers


def test_light_modules() -> None:
    done = servers.run("-m", "pytest", "-q", "tests/light_cases.py", "-p", "no:cacheprovider", timeout=300,
                       SGLANG_USE_CPU_ENGINE="1")
    assert done.returncode == 0, done.stdout + done.stderr
