"""The installed release of sglang, and a copy of it with changes, made of links: its source is read from there, and it
can be imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SAMPLER = "srt/layers/sampler.py"
FORWARD = "sglang.srt.layers.sampler.Sampler.forward"


def installed() -> Path:
    """The folder of the installed package."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def has_data_parallel() -> bool:
    """Whether the installed release has what a data parallel server needs; 0.5.22 has not."""
    from sglang_ext.patches.fit import findings

    from sglang_ext.compat.compare import ABSENT

    return not any(f.verdict == ABSENT and ".data_parallel_controller." in f.place.path for f in findings())


def copy_with(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """A folder with a package `sglang` that differs in some files.

    Args:
        changes: a file below the package, a text that stands in it, and what stands there instead of its first.

    Returns:
        The folder, to be put on `PYTHONPATH`.
    """
    root = folder / "sglang"
    root.mkdir()
    _link(installed(), root)
    for path, old, new in changes:
        file = _own(root, path)
        text = file.read_text()
        assert old in text, f"{path} has no {old!r}"
        file.write_text(text.replace(old, new, 1))
    return folder


def _link(source: Path, target: Path) -> None:
    for entry in source.iterdir():
        if entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)


def _own(root: Path, path: str) -> Path:
    """The file, with its folders and itself copied where they are links yet."""
    place = root
    for part in Path(path).parts:
        place = place / part
        if place.is_symlink():
            source = place.resolve()
            place.unlink()
            if source.is_dir():
                place.mkdir()
                _link(source, place)
            else:
                place.write_bytes(source.read_bytes())
    return place
