"""The operator's map of special tokens, from its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..config import SettingsError


def read_override(path: str) -> Mapping[str, str]:
    """A JSON object, target token to draft token, or to "" for none; empty where no file is named.

    Raises:
        SettingsError: there is no such file, or it is no such object.
    """
    if not path:
        return {}
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"--uag-map {path}: {error}; accepted: a JSON file") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SettingsError(f"--uag-map {path}: accepted: a JSON object of target token to draft token, both strings; "
                            '"" leaves a token out')
    return found
