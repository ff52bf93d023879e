"""Servers and models that tests share; each configuration is started once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import servers
from rescan import Rescan
from scripted_model import SCRIPTS, build_scripted_model
from told_model import build as build_told_model

FLOAT32 = ("--dtype", "float32", "--attention-backend", "torch_native")


SHARED = ("demo_server", "scripted_server", "told_server")
_running: dict[str, servers.Server] = {}


def _shared(item: pytest.Item) -> str | None:
    """The shared server that a test uses."""
    used = [name for name in SHARED if name in getattr(item, "fixturenames", ())]
    if len(used) > 1:
        raise pytest.UsageError(f"{item.nodeid} uses {' and '.join(used)}: a test uses at most one shared server")
    return used[0] if used else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a shared server follow each other, in one of the processes that share the tests; files stay whole."""
    items.sort(key=lambda item: _shared(item) or "")
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_shared(item) or item.path.name))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A shared server ends with its last test: memory limits how many can run beside each other."""
    following = _shared(nextitem) if nextitem else None
    for name in [name for name in _running if name != following]:
        assert not _running.pop(name).stop()


def _share(name: str, *flags: str) -> servers.Server:
    _running[name] = servers.launch(*flags)
    return _running[name]


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
def demo_server(demo_model: Path) -> servers.Server:
    """The demo model in float32 with no default budget."""
    return _share("demo_server", *FLOAT32)


@pytest.fixture(scope="session")
def scripted_server(scripted_model: Path) -> servers.Server:
    """A model whose every next token is known."""
    return _share("scripted_server", "--model-path", str(scripted_model), "--reasoning-parser", "qwen3", *FLOAT32)


@pytest.fixture(scope="session")
def told_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_told_model(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="session")
def told_server(told_model: Path) -> servers.Server:
    """A model whose counts are known, with metrics and budgets of efforts, and no default budget."""
    return _share("told_server", "--model-path", str(told_model), "--reasoning-parser", "qwen3", "--enable-metrics",
                  "--think-effort", "low=2,medium=25%,high=-1", "--served-model-name", "told", *FLOAT32)
