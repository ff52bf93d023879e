"""Servers and models that tests share; each configuration is started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
from rescan import Rescan
from scripted_model import SCRIPTS, build_scripted_model
from told_model import build as build_told_model

FLOAT32 = ("--dtype", "float32", "--attention-backend", "torch_native")


SHARED = ("demo_server", "scripted_server", "told_server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of two processes that share the tests, one has all tests of a shared server; other files stay whole."""
    for item in items:
        server = next((name for name in SHARED if name in getattr(item, "fixturenames", ())), item.path.name)
        item.add_marker(pytest.mark.xdist_group(server))


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
def demo_server(demo_model: Path) -> Iterator[servers.Server]:
    """The demo model in float32 with no default budget."""
    server = servers.launch(*FLOAT32)
    yield server
    assert not server.stop()


@pytest.fixture(scope="session")
def scripted_server(scripted_model: Path) -> Iterator[servers.Server]:
    """A model whose every next token is known."""
    server = servers.launch("--model-path", str(scripted_model), "--reasoning-parser", "qwen3", *FLOAT32)
    yield server
    assert not server.stop()


@pytest.fixture(scope="session")
def told_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_told_model(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="session")
def told_server(told_model: Path) -> Iterator[servers.Server]:
    """A model whose counts are known, with metrics and budgets of efforts, and no default budget."""
    server = servers.launch("--model-path", str(told_model), "--reasoning-parser", "qwen3", "--enable-metrics",
                            "--think-effort", "low=2,medium=25%,high=-1", "--served-model-name", "told", *FLOAT32)
    yield server
    assert not server.stop()
