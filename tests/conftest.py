"""Groups of tests, and the servers and models that they share.

Tests of one group run on one worker, one after another, so that they share its servers. A server of `SERVERS` starts
when a test first uses it and ends with its group; a test that uses one of them is in its group. A test that starts a
server of its own is marked `served`: its group is its file, or the group that the mark names. All other tests run
without a server (`make check`).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import fleet as fleets
import pytest
import servers
from hypothesis import HealthCheck, settings
from rescan import Rescan
from scripted_model import TOLD_TOO, build_scripted_model
from servers import FLOAT32
from shared_servers import SharedServer, end_all_but
from told_model import TEMPLATE
from warm_python import ADDRESS_VARIABLE, WarmPython

SERVERS = {"scripted_server": "scripted", "stock_scripted_server": "scripted", "demo_server": "demo",
           "stock_demo_server": "demo", "fleet": "fleet"}
"""Shared servers' fixtures, with their groups."""
LONGEST = ("test_budget_device", "test_uag_served", "demo", "test_launch", "test_churn_served",
           "test_served_speculation", "test_reasoner_served", "test_releases", "scripted", "test_served_budget")
"""Groups that begin first, so that no worker is alone for minutes at the end."""

_WARM = pytest.StashKey[WarmPython]()

# The same examples each time, on a machine however busy; HYPOTHESIS_PROFILE=new draws others.
_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=_CHECKS)
settings.register_profile("new", deadline=None, suppress_health_check=_CHECKS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    if ADDRESS_VARIABLE not in os.environ:  # no worker of xdist, and no test run in a test
        config.stash[_WARM] = WarmPython()


def _shared(item: pytest.Item) -> list[str]:
    """Groups of the shared servers that a test uses."""
    return sorted({SERVERS[name] for name in getattr(item, "fixturenames", ()) if name in SERVERS})


def _group(item: pytest.Item) -> str:
    mark, shared = item.get_closest_marker("served"), _shared(item)
    if len(shared) > 1:
        raise pytest.UsageError(f"{item.nodeid} uses servers of two groups: {' and '.join(shared)}")
    if shared:
        return shared[0]
    return str(mark.args[0]) if mark is not None and mark.args else item.path.stem


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    first: dict[str, int] = {}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if _shared(item):
            item.add_marker(pytest.mark.served)
        first.setdefault(_group(item), len(first))
    items.sort(key=lambda item: (order.get(_group(item), len(order)), first[_group(item)]))


def pytest_collection_finish(session: pytest.Session) -> None:
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("this pytest-xdist does not group tests, so that each would start its own servers")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    servers.may_start = item.get_closest_marker("served") is not None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    end_all_but(_group(nextitem) if nextitem is not None else None)


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
    """A model whose every next token is known; it is talked to in pieces, or in text (`told_model`)."""
    return build_scripted_model(tmp_path_factory.mktemp("scripted"), TOLD_TOO, TEMPLATE)


@pytest.fixture(scope="session")
def scripted_server(scripted_model: Path) -> SharedServer:
    """The scripted model with metrics and budgets of efforts, and no default budget."""
    return SharedServer(SERVERS["scripted_server"], lambda: servers.launch(
        "--model-path", str(scripted_model), "--reasoning-parser", "qwen3", "--enable-metrics", "--enable-cache-report",
        "--think-effort", "low=2,medium=25%,high=-1", "--served-model-name", "told", *FLOAT32))


@pytest.fixture(scope="session")
def stock_scripted_server(scripted_model: Path) -> SharedServer:
    """The same model on sglang as published."""
    return SharedServer(SERVERS["scripted_server"], lambda: servers.stock(
        "--model-path", str(scripted_model), "--reasoning-parser", "qwen3", "--enable-cache-report",
        "--enable-metrics", "--served-model-name", "told", *FLOAT32))


@pytest.fixture(scope="session")
def fleet(scripted_model: Path) -> SharedServer:
    """Two servers of that model behind sglang-router, a `fleet.Fleet`; skipped where the router is not installed."""
    pytest.importorskip("sglang_router")
    return SharedServer(SERVERS["fleet"], lambda: fleets.start(
        "--model-path", str(scripted_model), "--reasoning-parser", "qwen3", "--enable-metrics",
        "--think-effort", "low=2", "--served-model-name", "told", *FLOAT32))


@pytest.fixture(scope="session")
def demo_server(demo_model: Path) -> SharedServer:
    """The demo model in float32 with no default budget."""
    return SharedServer(SERVERS["demo_server"], lambda: servers.launch(*FLOAT32))


@pytest.fixture(scope="session")
def stock_demo_server(demo_model: Path) -> SharedServer:
    """The demo model on sglang as published."""
    return SharedServer(SERVERS["demo_server"], lambda: servers.stock("--model-path", str(demo_model), *FLOAT32))
