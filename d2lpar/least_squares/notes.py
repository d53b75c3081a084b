"""The class of the least-squares notes, so that their script runs on MXNet's devices.

Source: the least-squares notes (in Korean), class ``LeastSquare``; as published, in
NumPy, it is in ``peers/least_squares_notes.py``.
"""

from __future__ import annotations

import numpy

from d2lpar import devices
from d2lpar.least_squares.solver import solve


class LeastSquare:
    """The notes' class: only its import changes in their script.

    ``LeastSquare(A, b, num_gpu=2, epoches=40).run()`` is method "averaging" on the
    first `num_gpu` devices (GPUs that MXNet can use, else CPU contexts), and
    ``check(x)`` is ||A x - b||. As in the notes, `error_list` keeps these errors and,
    after each epoch, every device's. Unlike in the notes, the devices work
    independently and in parallel (``independent=False`` restores their order), and
    `seed` fixes the random numbers.
    """

    def __init__(
        self, A, b, num_gpu: int = 2, epoches: int = 2, *, independent=True, seed=0
    ) -> None:
        self.A, self.b = A, b
        self.lr = 1e-3 / A.shape[1]
        self.num_gpu, self.epoches = num_gpu, epoches
        self.independent, self.seed = independent, seed
        self.error_list: list[float] = []

    def run(self) -> numpy.ndarray:
        """The averaged x (n,) after the last epoch."""
        available = devices.parse("auto")
        if available[0].device_type == "cpu":
            available = devices.parse(f"cpu:{self.num_gpu}")
        (count,) = devices.parse_counts(str(self.num_gpu), len(available))
        solution = solve(
            self.A,
            self.b,
            devices=available[:count],
            method="averaging",
            num_epochs=self.epoches,
            independent=self.independent,
            seed=self.seed,
            lr=self.lr,
        )
        for point in solution.history:
            self.error_list += point.device_residual_norms
        return solution.x

    def check(self, x: numpy.ndarray) -> float:
        """||A x - b||, also appended to `error_list`."""
        error = float(numpy.linalg.norm(self.b - self.A @ x))
        self.error_list.append(error)
        return error
