"""Releases by their source: what is found, what counts, and the record of what was read."""

from __future__ import annotations

import ast
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release_copy import installed

from sglang_ext.compat.compare import compare, prints
from sglang_ext.compat.definitions import find
from sglang_ext.compat.digest import construction_of, parameters_of, source_of
from sglang_ext.compat.known import Known, Print, load
from sglang_ext.compat.places import BASE, HOOK, IMPORT, OPERATOR, Place
from sglang_ext.compat.releases import open_release
from sglang_ext.compat.tree import Folder, TreeError, Wheel

FILES = {
    "sglang/srt/__init__.py": "",
    "sglang/srt/base.py": "class Base:\n    def kept(self, a, /, b, *, c=1, **rest):\n        return a\n",
    "sglang/srt/model.py": '''
from typing import Any
from pydantic import BaseModel
from .base import (
    Base as Parent,  # renamed (here)
)
from sglang.srt.tools import *

LIMIT: int = 3

class Model(Parent):
    """Text with a line that looks like code:
class Other:
    """

    @classmethod
    def make(cls, size, *parts):
        """Make one."""
        return f"""
no indent
{size}"""

    @staticmethod
    def plain(a, b=2): return a

    async def later(self): ...

class Fields(BaseModel):
    name: str
    size: int = 1

if LIMIT:
    def chosen(a): return 1
else:
    def chosen(a): return 2
''',
    "sglang/srt/tools/__init__.py": "from .parts import helper\n",
    "sglang/srt/tools/parts.py": "def helper(x, y): return x\n",
    "sglang/kernels/ops/kvcache/move.py":
    "from sgl_kernel import move_cpu as m\n\ndef f(a, b):\n    m(a, b, len(a), n=(1))\n",
    "sglang/_version.py": "__version__ = version = '9.8'\n",
}
MOVE = Place("move_cpu", OPERATOR)


def release(folder: Path, **changed: str) -> Folder:
    """A small release, with other texts for some files (`srt_base` is `sglang/srt/base.py`)."""
    for path, text in FILES.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        name = path.removeprefix("sglang/").removesuffix(".py").replace("/", "_")
        file.write_text(changed.get(name, text))
    return Folder(folder)


@pytest.mark.parametrize(("path", "parameters"), [
    ("model.Model.make", "size, *parts"),
    ("model.Model.plain", "a, b"),
    ("model.Model.later", "self"),
    ("model.Model.kept", "self, a, b, *, c, **rest"),
    ("model.helper", "x, y"),
    ("tools.helper", "x, y"),
    ("model.chosen", "a"),
    ("model.Parent.kept", "self, a, b, *, c, **rest"),
])
def test_a_name_is_found_where_it_is_defined(tmp_path: Path, path: str, parameters: str) -> None:
    definition = find(release(tmp_path), f"sglang.srt.{path}")
    assert definition is not None
    assert parameters_of(definition) == parameters


@pytest.mark.parametrize("path", ["model.Other", "model.Model.none", "model.nothing", "missing.Name", "model.Fields.x",
                                  "model.Model.make.x"])
def test_a_name_that_is_not_there_is_not_found(tmp_path: Path, path: str) -> None:
    assert find(release(tmp_path), f"sglang.srt.{path}") is None


def test_what_is_inherited_from_elsewhere_is_known_as_that(tmp_path: Path) -> None:
    definition = find(release(tmp_path), "sglang.srt.model.Fields.__init__")
    assert definition is not None
    assert definition.text == "inherited from BaseModel"


def test_how_a_class_is_constructed(tmp_path: Path) -> None:
    definition = find(release(tmp_path), "sglang.srt.model.Fields")
    assert definition is not None
    assert (construction_of(definition), construction_of(definition, required=True)) == ("name, size", "name")


def test_both_branches_of_a_condition_count(tmp_path: Path) -> None:
    tree, changed = release(tmp_path / "a"), FILES["sglang/srt/model.py"].replace("return 2", "return 3")
    place = Place("sglang.srt.model.chosen", HOOK)
    assert prints(tree, [place]) != prints(release(tmp_path / "b", srt_model=changed), [place])


LINES = ("x = 1", "y = 'a  b'", "for i in range(3):\n        x += i", "return x", "def inner(a):\n        return a",
         "z = f'{x}!'", "if x:\n        y = [\n1,\n2]")
bodies = st.lists(st.sampled_from(LINES), min_size=1, max_size=6)


def function(statements: list[str], noise: random.Random | None = None) -> str:
    """Source of a method among others; with noise, comments, blank lines and a docstring too."""
    def maybe(text: str) -> str:
        return text if noise is not None and noise.random() < 0.5 else ""

    head = "    def f(self, a,\n          b=1):\n" if maybe("x") else "    def f(self, a, b=1):\n"
    doc = maybe('        """Text: def f(self):\nclass C:\n        """\n')
    body = "".join(maybe("\n") + maybe("        # a comment\n") + f"        {statement}".replace("\n    ", "\n        ")
                   + maybe("  # said") + "\n" for statement in statements)
    return f"class C:\n    def e(self):\n        return 1\n\n{head}{doc}{body}\n    def g(self):\n        return 2\n"


@given(bodies, st.integers(0, 10**6))
def test_comments_docstrings_and_formatting_do_not_count(lines: list[str], seed: int) -> None:
    plain, noisy = function(lines), function(lines, random.Random(seed))
    assert _source(plain) == _source(noisy)


@given(bodies, bodies)
def test_any_other_code_counts(lines: list[str], others: list[str]) -> None:
    same = ast.dump(ast.parse(function(lines))) == ast.dump(ast.parse(function(others)))
    assert (_source(function(lines)) == _source(function(others))) == same


class _Text:
    """A release of one file."""

    version = name = "1"

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, path: str) -> str | None:
        return self._text if path == "sglang/m.py" else None

    def below(self, folder: str) -> Iterator[str]:
        yield from ()


def _source(text: str) -> str:
    definition = find(_Text(text), "sglang.m.C.f")
    assert definition is not None
    return source_of(definition)


def test_one_definition_alone_is_read_as_in_the_whole_module() -> None:
    """The methods of the installed sglang's own modules, of those that a class defines once."""
    tree, seen = Folder(installed()), 0
    for path in ("srt/layers/sampler", "srt/managers/io_struct", "srt/speculative/base_spec_worker",
                 "srt/managers/scheduler_components/output_streamer"):
        for owner in ast.parse(tree.read(f"sglang/{path}.py") or "").body:
            methods = [node for node in getattr(owner, "body", []) if isinstance(node, ast.FunctionDef)]
            for node in methods:
                if isinstance(owner, ast.ClassDef) and [m.name for m in methods].count(node.name) == 1:
                    definition = find(tree, f"sglang.{path.replace('/', '.')}.{owner.name}.{node.name}")
                    assert definition is not None
                    assert ast.dump(definition.nodes[0]) == ast.dump(node), (path, owner.name, node.name)
                    seen += 1
    assert seen > 60


def test_a_wheel_reads_as_its_folder(tmp_path: Path) -> None:
    tree = release(tmp_path / "a")
    file = tmp_path / "sglang-9.8-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path in FILES:
            archive.write(tmp_path / "a" / path, path)
    wheel = open_release(str(file), tmp_path)
    places = [Place("sglang.srt.model.Model.make", HOOK), Place("sglang.srt.base.Base", BASE), MOVE,
              Place("sglang.srt.model.Fields", IMPORT)]
    assert isinstance(wheel, Wheel)
    assert wheel.version == tree.version == "9.8"
    assert len(prints(tree, places)) == 4
    assert prints(wheel, places) == prints(tree, places)


@pytest.mark.parametrize(("old", "new", "verdict"), [
    ("def f(a, b):", "def f(b, a):", "fits"),
    ("m(a, b, len(a), n=(1))", "m(a,  b, len(a),\n      n=1)  # the same", "fits"),
    ("len(a)", "len(b)", "body"),
    (", n=(1)", "", "signature"),
    ("    m(", "    other(", "gone"),
])
def test_an_operator_is_what_its_calls_pass(tmp_path: Path, old: str, new: str, verdict: str) -> None:
    known = Known({}).updated("1", prints(release(tmp_path / "a"), [MOVE]), [MOVE])
    changed = FILES["sglang/kernels/ops/kvcache/move.py"].replace(old, new)
    found = compare(release(tmp_path / "b", kernels_ops_kvcache_move=changed), known)
    assert [finding.verdict for finding in found] == [verdict]


def test_a_place_that_one_release_did_without_is_not_missed_there_alone(tmp_path: Path) -> None:
    place = Place("sglang.srt.model.gone", HOOK)
    known = Known({place: {Print("gone", "-"): frozenset({"9.8"})}})
    assert [f.verdict for f in compare(release(tmp_path), known)] == ["absent"]
    (tmp_path / "sglang/_version.py").write_text("__version__ = '9.9'\n")
    assert [f.verdict for f in compare(Folder(tmp_path), known)] == ["gone"]


def test_the_record_is_read_as_it_was_written() -> None:
    known = load()
    again = Known.parse(known.text())
    assert again.entries == known.entries
    assert again.table == known.table
    assert known.text().splitlines()[3:] == sorted(known.text().splitlines()[3:], key=lambda line: line.split()[1])


def test_the_record_keeps_what_other_releases_had() -> None:
    place, other = Place("sglang.a", HOOK), Place("sglang.b", HOOK)
    first, second = Print("1" * 12, "-"), Print("2" * 12, "-")
    known = Known({}).updated("0.5.9", {place: first, other: first}, [place, other])
    known = known.updated("0.5.10", {place: second}, [place])
    assert known.entries == {place: {first: frozenset({"0.5.9"}), second: frozenset({"0.5.10"})}}
    assert known.releases == ["0.5.9", "0.5.10"]
    assert known.updated("0.5.9", {place: second}, [place]).entries[place] == {second: frozenset({"0.5.9", "0.5.10"})}


def test_the_record_has_every_place_for_every_release() -> None:
    """Otherwise: `python -m sglang_ext.compat --update 0.5.22 0.5.23`, or whichever releases it names."""
    from sglang_ext.patches.fit import needed

    known = load()
    assert known.entries.keys() == needed().keys()
    for place, found in known.entries.items():
        assert sorted(release for releases in found.values() for release in releases) == sorted(known.releases), place


def test_a_folder_without_sglang_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="expected a folder `sglang/srt`"):
        open_release(str(tmp_path), tmp_path)
