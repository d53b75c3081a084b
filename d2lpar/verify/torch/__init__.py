"""PyTorch for `d2lpar verify`: `ddp` makes a step, `program` runs whole programs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from d2lpar.verify.torch.workers import ddp

__all__ = ["ddp"]


def __getattr__(name: str):
    """Import `ddp` on first use: the process that judges a program needs no PyTorch."""
    if name != "ddp":
        raise AttributeError(name)
    from d2lpar.verify.torch.workers import ddp

    return ddp
