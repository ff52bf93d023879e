"""`$SGLANG_EXT_TEST_FLAGS` runs the served tests another way. The scripted model is exact in bfloat16 too: its weights
are zeros and ones, so that it can be the oracle on a device that serves nothing wider."""

from __future__ import annotations

import os

import pytest
import servers
import warm_python

pytestmark = pytest.mark.served


def test_scripted_models_are_exact_in_bfloat16() -> None:
    shared = {warm_python.ADDRESS_VARIABLE: os.environ[warm_python.ADDRESS_VARIABLE]}
    done = servers.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_served_markers.py", timeout=500,
                       **{servers.FLAGS_VARIABLE: "--dtype bfloat16", **shared})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
