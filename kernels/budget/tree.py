"""The parents of a draft tree's nodes, from the links that speculative verification walks."""

from __future__ import annotations

import torch


def parents_of(first_child: torch.Tensor, next_sibling: torch.Tensor) -> torch.Tensor:
    """Parent of each node: that of the eldest of its siblings, which is the only one its parent links to.

    A few launches, logarithmic in the width, without synchronisation.

    Args:
        first_child, next_sibling: [n, width] int64, node numbers within the row, -1 for none.

    Returns:
        [n, width] int32; -1 for the root and for nodes that hang on nothing.
    """
    n, width = first_child.shape
    nodes = torch.arange(width, device=first_child.device).expand(n, width)
    elder = _inverse(next_sibling, nodes)
    eldest = torch.where(elder < 0, nodes, elder)
    for _ in range((width - 1).bit_length()):
        eldest = eldest.gather(1, eldest)
    return _inverse(first_child, nodes).gather(1, eldest).to(torch.int32)


def _inverse(link: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """[n, width] int64: the node that links to each node, -1 where none does."""
    n, width = link.shape
    sources = torch.full((n, width + 1), -1, dtype=torch.int64, device=link.device)
    sources.scatter_(1, torch.where(link < 0, width, link), nodes)
    return sources[:, :width]
