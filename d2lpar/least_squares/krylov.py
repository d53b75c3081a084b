"""Many steps of gradient descent at once, in a Krylov subspace.

T steps of x -= lr * 2 A^T (A x - b) with the same A and b are a polynomial in
G = A^T A: they move x by q(G) r, where r = A^T (b - A x) at the first step's x and
q(t) = (1 - (1 - 2 lr t)^T) / t. Lanczos' method finds q(G) r to rounding, with some 10
products in place of 500 steps.
"""

from __future__ import annotations

import numpy


class Krylov:
    """An orthonormal basis of r, G r, G^2 r, ... and G in it, a tridiagonal matrix."""

    def __init__(self, r: numpy.ndarray) -> None:
        self.length = numpy.linalg.norm(r)
        self.basis = [r / self.length if 0 < self.length < numpy.inf else r]
        self.diagonal, self.beside = [], []
        self._coefficients = numpy.zeros(0)

    def extend(self, product: numpy.ndarray) -> None:
        """Add G times the last basis vector."""
        if len(self.diagonal) == len(self.basis):
            return  # the subspace is invariant: it cannot grow
        self.diagonal.append(float((self.basis[-1] * product).sum()))
        known = numpy.hstack(self.basis)
        for _ in range(2):  # once leaves rounding errors that grow
            product = product - known @ (known.T @ product)
        beta = float(numpy.linalg.norm(product))
        if beta > 1e-14 * abs(self.diagonal[0]):
            self.beside.append(beta)
            self.basis.append(product / beta)

    def has_converged(self, lr: float, steps: int) -> bool:
        """Whether another product would no longer change the movement."""
        self._coefficients = self._evaluate(lr, steps)
        if len(self.diagonal) == len(self.basis):
            return True
        last = numpy.abs(self._coefficients[-2:]).max()
        size = numpy.linalg.norm(self._coefficients)
        return len(self.diagonal) > 2 and bool(last <= 1e-15 * size)

    def movement(self, lr: float, steps: int) -> numpy.ndarray:
        """q(G) r (n, 1): by how much `steps` steps move x."""
        if len(self._coefficients) != len(self.diagonal):
            self._coefficients = self._evaluate(lr, steps)
        known = numpy.hstack(self.basis[: len(self.diagonal)])
        return known @ self._coefficients[:, None]

    def _evaluate(self, lr: float, steps: int) -> numpy.ndarray:
        """Coefficients of q(G) r in the basis."""
        k = len(self.diagonal)
        beside = self.beside[: k - 1]
        T = numpy.diag(self.diagonal) + numpy.diag(beside, 1) + numpy.diag(beside, -1)
        if not numpy.isfinite(T).all():
            return numpy.full(k, numpy.nan)
        t, U = numpy.linalg.eigh(T)
        t = numpy.maximum(t, numpy.finfo(float).tiny)
        with numpy.errstate(over="ignore", invalid="ignore"):
            q = numpy.where(
                2 * lr * t < 1,
                -numpy.expm1(steps * numpy.log1p(-numpy.minimum(2 * lr * t, 0.999999))),
                1 - (1 - 2 * lr * t) ** steps,
            )
            return self.length * (U @ (q / t * U[0]))
