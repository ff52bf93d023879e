"""The table of hooks fits the installed sglang, and a server whose hooks do not fit does not start."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import servers

CHILD = """
import os
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
import sglang_ext
from sglang_ext.patches import registry, table
{change}
from sglang.srt.plugins import load_plugins
load_plugins()
{then}
"""


def child(change: str = "", then: str = "print('went on')", hooked: bool = False) -> tuple[int, str]:
    """Run a fresh process that changes the table, or sglang, before the plugins are loaded.

    Args:
        hooked: the change may come after them, so a process that has them will do.
    """
    done = servers.run("-W", "ignore", "-c", CHILD.format(change=change, then=then), hooked=hooked)
    return done.returncode, done.stdout + done.stderr


def hooked(then: str, change: str = "") -> tuple[int, str]:
    return child(change, then, hooked=True)


def test_every_hook_fits_and_is_applied() -> None:
    status, output = child(then="sglang_ext.patches.check_applied(); print('all', len(table.HOOKS))")
    assert status == 0, output
    assert re.search(r"all \d+", output)


UNREAD = """
import dataclasses
from sglang_ext.compat import known
from sglang_ext.patches import fit
place = known.Place("sglang.srt.layers.sampler.Sampler.forward", "hook")
record = known.load()
other = {key: {dataclasses.replace(p, source="0" * 12): r for p, r in prints.items()} if key == place else prints
         for key, prints in record.entries.items()}
fit.load = lambda: known.Known(other)
fit.findings.cache_clear()
"""


@pytest.mark.parametrize("then", [
    "from sglang.srt.server_args import prepare_server_args\nprepare_server_args(['--model-path', 'm'])",
    "from sglang_ext.patches.launch import launch_subprocesses\nlaunch_subprocesses(lambda *args: print('went on'), 1)",
])
def test_an_unread_place_ends_every_way_to_start(then: str) -> None:
    """`sglang serve` reads the command line, `sglang.Engine` does not."""
    status, output = hooked(then, UNREAD)
    assert status != 0
    assert "Sampler.forward: another body; the token that stands" in output
    assert "went on" not in output


def test_what_a_release_does_not_have_is_refused_where_it_is_needed() -> None:
    then = ("from types import SimpleNamespace\n"
            "from sglang_ext.compat.compare import Finding\n"
            "from sglang_ext.compat.places import HOOK, Place\n"
            "path = 'sglang.srt.managers.data_parallel_controller.DataParallelController.get_init_info'\n"
            "fit.findings = lambda: (Finding(Place(path, HOOK), 'absent', None),)\n"
            "fit.refuse_without(SimpleNamespace(dp_size=1))\nprint('one went on')\n"
            "fit.refuse_without(SimpleNamespace(dp_size=2))")
    status, output = hooked(then, "from sglang_ext.patches import fit")
    assert status != 0
    assert "one went on" in output
    assert "get_init_info: data parallel servers (--dp) are not served" in output.splitlines()[-1]


def test_another_signature_ends_the_process() -> None:
    status, output = child("import sglang.srt.model_executor.model_runner as m\n"
                           "m.ModelRunner.sample = lambda self, logits_output: None")
    assert status == 2
    assert re.search(r"ModelRunner.sample of sglang \S+ takes \(self, logits_output\), expected", output)


def test_a_row_may_have_a_signature_for_each_release() -> None:
    from sglang_ext.patches.hook import Hook, HookError
    from sglang_ext.patches.registry import _check_signature

    hook = Hook("m.f", "hook.fields", "a reason", ("self, a", "self, a, b"))
    _check_signature(hook, lambda self, a: None)
    _check_signature(hook, lambda self, a, b=1: None)
    with pytest.raises(HookError, match=r"takes \(self\), expected \(self, a\) or \(self, a, b\)"):
        _check_signature(hook, lambda self: None)


def test_a_target_that_is_gone_ends_the_process() -> None:
    status, output = child("import sglang.srt.layers.sampler as m\ndel m.Sampler._preprocess_logits")
    assert status == 2
    assert "has no sglang.srt.layers.sampler.Sampler._preprocess_logits" in output


def test_a_hook_that_did_not_apply_is_found() -> None:
    then = ("from sglang.srt.plugins.hook_registry import HookRegistry\n"
            "HookRegistry._patched.discard('sglang.srt.model_executor.model_runner.ModelRunner.sample')\n"
            "sglang_ext.patches.check_applied()")
    status, output = hooked(then)
    assert status != 0
    assert "ModelRunner.sample" in output.splitlines()[-1]
    assert "would not be enforced" in output


def test_a_scheduler_without_the_hooks_is_refused() -> None:
    then = ("from sglang_ext.patches.launch import wait_for_scheduler_ready as wait\n"
            "wait(lambda readers, processes: [{'status': 'ready', 'sglang_ext': True}], [], [])\n"
            "wait(lambda readers, processes: [{'status': 'ready', 'sglang_ext': True}, {'status': 'ready'}], [], [])")
    status, output = hooked(then)
    assert status != 0
    assert "a scheduler started without sglang-ext" in output


def test_a_scheduler_that_refuses_ends_the_start_with_its_status() -> None:
    then = ("from types import SimpleNamespace\n"
            "from sglang_ext.patches.launch import wait_for_scheduler_ready as wait\n"
            "def died(readers, processes):\n    raise RuntimeError('Rank 0 scheduler died')\n"
            "try:\n    wait(died, [], [SimpleNamespace(exitcode=-9)])\n"
            "except RuntimeError:\n    print('killed is told')\n"
            "wait(died, [], [SimpleNamespace(exitcode=2)])")
    status, output = hooked(then)
    assert status == 2
    assert output.splitlines()[-1] == "killed is told"


def test_routes_bound_before_the_plugin_are_found() -> None:
    status, output = child("import sglang.srt.entrypoints.http_server")
    assert status == 2
    assert "imported before sglang-ext" in output


def test_an_unknown_setting_ends_the_launch() -> None:
    done = servers.run("launch.py", SGLANG_EXT_THINK_BUGDET="5")
    assert done.returncode == 2
    assert "SGLANG_EXT_THINK_BUGDET" in done.stderr


def test_the_releases_that_are_asked_for_are_those_that_were_read() -> None:
    from sglang_ext.compat.known import load

    project = tomllib.loads((servers.ROOT / "pyproject.toml").read_text())["project"]
    releases = load().releases
    assert f"sglang>={releases[0]},<={releases[-1]}" in project["dependencies"]


@pytest.mark.parametrize("start", ["", "import sys; sys.path.insert(0, '.'); "])
def test_pypis_kernels_package_is_not_shadowed_and_the_pure_layer_imports_no_engine(start: str) -> None:
    modules = ("config", "cli", "vocab", "budget.contract", "budget.automaton", "budget.markers", "budget.admission",
               "budget.service", "budget.kernels")
    code = (f"import sys, {', '.join(f'sglang_ext.{m}' for m in modules)}\n"
            "print([m for m in sys.modules if m.split('.')[0] == 'sglang'])\n"
            "import kernels\nprint(kernels.__file__, sglang_ext.budget.kernels.__file__)")
    done = servers.run("-c", start + code, cold=True)
    engine, files = done.stdout.splitlines()
    pypis, ours = files.split()
    assert engine == "[]"
    assert "site-packages" in pypis
    assert Path(ours) == servers.ROOT / "kernels" / "budget" / "__init__.py"
    assert not (servers.ROOT / "kernels" / "__init__.py").exists()
