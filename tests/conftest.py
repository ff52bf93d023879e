"""Groups of tests, and the servers and models that they share.

Tests of one group run on one worker, one after another, so that they share its servers. A server of `SERVERS` starts
when a test first uses it and ends with its group; a test that uses one of them is in its group. A test that starts a
server of its own is marked `served`: its group is its file, or the group that the mark names. All other tests run
without a server (`make check`); they run first, and once one of them has failed no served test begins.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fleet as fleets
import pytest
import servers
import work_folder
from hypothesis import HealthCheck, settings
from servers import FLOAT32
from shared_servers import SharedServer, end_all_but
from told_model import TEMPLATE
from warm_python import ADDRESS_VARIABLE, WarmPython

if TYPE_CHECKING:
    from rescan import Rescan

SERVERS = {"scripted_server": "scripted", "stock_scripted_server": "scripted", "demo_server": "demo",
           "stock_demo_server": "demo", "fleet": "fleet"}
"""Shared servers' fixtures, with their groups."""
AUTOMATA = ("test_budget_kernels", "test_budget_oracle", "test_ends", "test_families_calls", "test_hf_oracle")
"""Files whose tests draw from the same automata, which one process makes once."""
LONGEST = ("automata", "test_budget_device-check", "test_launch-check", "test_gpu_scripts-check",
           "test_uag_served", "demo", "scripted", "test_families_served", "test_churn_served", "test_launch",
           "fleet", "test_bench_cli", "test_uag_budget", "test_served_speculation", "test_reasoner_served",
           "test_releases", "test_one_step_served", "test_another_dtype", "test_served_budget")
"""Groups that begin first, so that no worker is alone for minutes at the end."""
FAILED = "a test without a server failed"

_WARM = pytest.StashKey[WarmPython]()
_FOLDER = pytest.StashKey[work_folder.WorkFolder]()

# The same examples each time, on a machine however busy; HYPOTHESIS_PROFILE=new draws others.
_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=_CHECKS)
settings.register_profile("new", deadline=None, suppress_health_check=_CHECKS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    if ADDRESS_VARIABLE not in os.environ:  # no worker of xdist, and no test run in a test
        config.stash[_FOLDER] = work_folder.WorkFolder()
        config.stash[_WARM] = WarmPython()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _FOLDER in session.config.stash:
        session.config.stash[_FOLDER].keep = session.testsfailed > 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _FOLDER in config.stash:
        folder = config.stash[_FOLDER]
        terminalreporter.write_line(f"Servers started: {len(list(folder.path.glob('server-*.log')))}")
        if folder.keep:
            terminalreporter.write_line(f"Temporary files of this run: {folder.path}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _WARM in config.stash:
        config.stash[_WARM].end()
        config.stash[_FOLDER].end()


def _shared(item: pytest.Item) -> list[str]:
    """Groups of the shared servers that a test uses."""
    return sorted({SERVERS[name] for name in getattr(item, "fixturenames", ()) if name in SERVERS})


def _served(item: pytest.Item) -> bool:
    return item.get_closest_marker("served") is not None


def _group(item: pytest.Item) -> str:
    mark, shared = item.get_closest_marker("served"), _shared(item)
    if len(shared) > 1:
        raise pytest.UsageError(f"{item.nodeid} uses servers of two groups: {' and '.join(shared)}")
    if shared:
        return shared[0]
    if mark is None:
        return "automata" if item.path.stem in AUTOMATA else f"{item.path.stem}-check"
    return str(mark.args[0]) if mark.args else item.path.stem


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    first: dict[str, int] = {}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if _shared(item):
            item.add_marker(pytest.mark.served)
        first.setdefault(_group(item), len(first))
    items.sort(key=lambda item: (_served(item), order.get(_group(item), len(order)), first[_group(item)]))


def pytest_collection_finish(session: pytest.Session) -> None:
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("this pytest-xdist does not group tests, so that each would start its own servers")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if not _served(item) or not work_folder.noted(FAILED):
        return None
    item.session.shouldstop = FAILED
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    servers.may_start = _served(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"the end of {server.log}", server.log_end()) for server in servers.running]
        if not _served(item):
            work_folder.note(FAILED)
    return report


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
    from rescan import Rescan

    return Rescan.of(demo_tokenizer)


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose every next token is known; it is talked to in pieces, or in text (`told_model`)."""
    from scripted_model import TOLD_TOO, build_scripted_model

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
