"""Sees what would make the host wait for a GPU, on fake CUDA tensors.

A fake tensor refuses a read of its values and a mixture of devices. It does not see a copy from pageable memory, for
which the host waits, nor an operator that makes such a copy itself. `Watch` looks at every operator that is dispatched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
READS = {aten._local_scalar_dense, aten.nonzero, aten.nonzero_static, aten.masked_select, aten.equal, aten.bincount,
         aten.unique_consecutive, aten.unique_dim, aten._unique2, aten.is_nonzero}
"""Operators whose result, or its shape, is read by the host."""
COPIES = {aten.copy_, aten._to_copy, aten._copy_from, aten._pin_memory}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
SCALARS_GO_WITH_THE_LAUNCH = {aten.fill, aten.fill_, aten.masked_fill, aten.masked_fill_, aten.index_fill_}
"""Take a scalar of the host as an argument of the kernel, as elementwise operators do."""
SCALARS_ARE_COPIED = {*INDEXING, aten.where, aten.cat, aten.stack, aten.scatter, aten.scatter_, aten.gather,
                      aten.index_copy_, aten.index_add_, aten.lerp, aten.clamp}


class HostWait(AssertionError):
    """The host would wait for the device here."""


class Watch(TorchDispatchMode):
    """Raises at an operator that waits. Enter it inside a `FakeTensorMode`.

    Args:
        waits: how many copies to the host are meant.
    """

    def __init__(self, waits: int = 0) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.waits, self._meant = 0, waits
        self._factories = _Factories()

    def __enter__(self) -> Watch:
        self._factories.__enter__()
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._factories.__exit__(*raised)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        self.operators.append(str(func))
        if any(x.is_cuda for x in given) or torch.device(kwargs.get("device") or "cpu").type == "cuda":
            self._check(func, args, kwargs, given)
        made = func(*args, **kwargs)
        if func.is_view and _pinned(given[0]):
            for view in tree_leaves(made):
                _pin(view)
        return made

    def _check(self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> None:
        packet, host = func.overloadpacket, [x for x in given if not x.is_cuda]
        if packet in READS or (packet == aten.repeat_interleave and kwargs.get("output_size") is None
                               and func._overloadname != "self_int"):
            raise HostWait(f"{func}: its result, or its shape, is read by the host")
        if packet in INDEXING and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
            raise HostWait(f"{func}: a mask as an index is counted on the host")
        if packet in COPIES:
            self._copied(func, args, kwargs)
        elif host and not (packet in SCALARS_GO_WITH_THE_LAUNCH or (packet not in SCALARS_ARE_COPIED
                           and all(x.dim() == 0 for x in host))):
            raise HostWait(f"{func}: a tensor of the host, {tuple(host[0].shape)}, is copied over on the way")

    def _copied(self, func: Any, args: Any, kwargs: Any) -> None:
        source = args[1] if func.overloadpacket == aten.copy_ else args[0]
        target = args[0].device if func.overloadpacket == aten.copy_ else torch.device(
            kwargs.get("device") or source.device)
        unwaited = kwargs.get("non_blocking") or (func.overloadpacket == aten.copy_ and len(args) > 2 and args[2])
        if source.is_cuda and target.type == "cpu":
            self.waits += 1
            if self.waits > self._meant:
                raise HostWait(f"{func}: a copy to the host, of which {self._meant} are meant")
        elif not source.is_cuda and target.type == "cuda" and not (unwaited and _pinned(source)):
            how = "without non_blocking" if _pinned(source) else "from pageable memory"
            raise HostWait(f"{func}: a copy {how}, {tuple(source.shape)}")


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    """Note that its memory is pinned: without a GPU none can be."""
    tensor.is_pinned_on_a_gpu = True  # type: ignore[attr-defined]
    return tensor


def _pinned(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "is_pinned_on_a_gpu", False)


class _Factories(TorchFunctionMode):
    """What no operator shows: a tensor that is made of numbers on a device, and memory that is pinned."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu").type == "cuda":
            raise HostWait(f"{func.__name__} of numbers on a device: a copy from pageable memory")
        if func is torch.Tensor.pin_memory:
            return _pin(args[0])
        pinned = kwargs.pop("pin_memory", False)
        made = func(*args, **kwargs)
        return _pin(made) if pinned else made


@contextmanager
def fake_cuda(waits: int = 0) -> Iterator[Watch]:
    """Fake CUDA tensors inside, under a `Watch`."""
    with FakeTensorMode(allow_non_fake_inputs=False), Watch(waits) as watch:
        yield watch
