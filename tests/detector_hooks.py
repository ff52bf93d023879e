"""The hooks on sglang's detectors in this process, as a server has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sglang_ext.patches import detectors

from sglang_ext.budget import service


@contextmanager
def hooked() -> Iterator[None]:
    from sglang.srt.parser.reasoning_parser import BaseReasoningFormatDetector as Base

    hooks = {"_detect_and_parse_impl": detectors.detect_and_parse, "finish": detectors.finish,
             "_parse_streaming_increment_impl": detectors.parse_streaming_increment}
    with pytest.MonkeyPatch.context() as patch:
        for name, hook in hooks.items():
            original = getattr(Base, name)
            patch.setattr(Base, name, lambda self, *args, hook=hook, original=original: hook(original, self, *args))
        patch.setattr(service, "_current", None)
        yield
