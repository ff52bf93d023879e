"""Servers and models that tests share; each configuration is started once."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import servers
from hypothesis import HealthCheck, settings
from rescan import Rescan
from scripted_model import SCRIPTS, build_scripted_model
from told_model import build as build_told_model

# The same examples each time, on a machine however busy; HYPOTHESIS_PROFILE=new draws others.
_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=_CHECKS)
settings.register_profile("new", deadline=None, suppress_health_check=_CHECKS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

FLOAT32 = ("--dtype", "float32", "--attention-backend", "torch_native")


SHARED = ("demo_server", "scripted_server", "told_server")
_shared: dict[str, SharedServer] = {}


class SharedServer:
    """A server that is started when a test needs it and ended when the next test does not: memory limits how many can
    run beside each other. Otherwise it is a `servers.Server`."""

    def __init__(self, name: str, *flags: str) -> None:
        self._flags, self._server, self._starting = flags, None, threading.Lock()
        _shared[name] = self

    def __getattr__(self, name: str) -> Any:
        with self._starting:  # a test may begin with many threads
            if self._server is None:
                self._server = servers.launch(*self._flags)
        return getattr(self._server, name)

    def end(self) -> None:
        server, self._server = self._server, None
        assert server is None or not server.stop()


def _needed(item: pytest.Item | None) -> str:
    """The shared server that a test uses, or nothing."""
    used = [name for name in SHARED if name in getattr(item, "fixturenames", ())]
    if len(used) > 1:
        raise pytest.UsageError(f"{item.nodeid} uses {' and '.join(used)}: a test uses at most one shared server")
    return used[0] if used else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a shared server follow each other."""
    items.sort(key=_needed)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    following = _needed(nextitem)
    for name, server in _shared.items():
        if name != following:
            server.end()


@pytest.fixture(scope="session")
def demo_model() -> Path:
    from sglang_ext.demo.smollm2 import smollm2

    return smollm2()


@pytest.fixture(scope="session")
def demo_tokenizer(demo_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo_model)


@pytest.fixture(scope="session")
def demo_rescan(demo_tokenizer: Any) -> Rescan:
    return Rescan.of(demo_tokenizer)


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_scripted_model(tmp_path_factory.mktemp("scripted"), SCRIPTS)


@pytest.fixture(scope="session")
def demo_server(demo_model: Path) -> SharedServer:
    """The demo model in float32 with no default budget."""
    return SharedServer("demo_server", *FLOAT32)


@pytest.fixture(scope="session")
def scripted_server(scripted_model: Path) -> SharedServer:
    """A model whose every next token is known."""
    return SharedServer("scripted_server", "--model-path", str(scripted_model), "--reasoning-parser", "qwen3", *FLOAT32)


@pytest.fixture(scope="session")
def told_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_told_model(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="session")
def told_server(told_model: Path) -> SharedServer:
    """A model whose counts are known, with metrics and budgets of efforts, and no default budget."""
    return SharedServer("told_server", "--model-path", str(told_model), "--reasoning-parser", "qwen3",
                        "--enable-metrics", "--think-effort", "low=2,medium=25%,high=-1", "--served-model-name", "told",
                        *FLOAT32)
