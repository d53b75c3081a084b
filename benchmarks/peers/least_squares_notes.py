"""The least-squares notes' own solver, as they print it, in NumPy.

    python benchmarks/peers/least_squares_notes.py --epochs 40

Its faults that change x or the time are kept: `x = self.x_hat` does not copy, both
halves draw their row numbers from the same range, and the "GPUs" work one after the
other. Prints a JSON line
with the seconds of run(), the error it reaches and LAPACK's. With `--check FILE` (an
.npz with A, b and our solution's error) it solves that problem; if LAPACK's error is
not ours it prints {"error": ...} and exits with status 2.
"""

import json
from time import perf_counter

import job
import numpy as np


class LeastSquare:
    def __init__(self, A, b, num_gpu=2, epoches=2):
        self.A = A
        self.b = b
        self.lr = 1e-3 / A.shape[1]
        self.num_gpu = num_gpu
        self.epoches = epoches
        # record each gpu's optimized x
        self.x_hat = np.random.rand(A.shape[1])
        self.x_list = np.zeros((self.num_gpu, self.A.shape[1]))
        self.error_list = []
        self.n = int(self.A.shape[0] / num_gpu)
        self.A1 = A[: self.n, :]
        self.b1 = b[: self.n]
        self.A2 = A[self.n :, :]
        self.b2 = b[self.n :]

    def run(self):
        for i in range(self.epoches):
            x = self.x_hat

            for j in range(self.num_gpu):
                A, b = self.initialize(j)
                x_ = self.optimize(A, b, x)
                self.x_list[j, :] = x_
                self.check(x_)

            self.x_hat = np.sum(self.x_list, axis=0) / self.num_gpu

        return self.x_hat

    def initialize(self, num_gpu):
        index = np.random.choice(self.n, 1000)
        if num_gpu == 0:
            A = self.A1[index, :]
            b = self.b1[index]
        else:
            A = self.A2[index, :]
            b = self.b2[index]

        return A, b

    def optimize(self, A, b, x, iters_per_epoch=500):
        for k in range(iters_per_epoch):
            b_ = np.dot(A, x)
            grad = 2 * np.dot(A.T, (b_ - b))
            x -= grad * self.lr

        return x

    def check(self, x):
        b_ = self.A @ x
        error = np.linalg.norm(self.b - b_)
        self.error_list.append(error)

        return error


if __name__ == "__main__":
    parser = job.parser(__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = job.parse(parser)
    np.random.seed(args.seed)
    if args.check:
        with np.load(args.check) as file:
            A, b, ours = file["A"], file["b"], float(file["optimum"])
    else:
        A, b = np.random.rand(10000, 1000), np.random.rand(10000)
    best = np.linalg.lstsq(A, b, rcond=None)[0]
    optimum = float(np.linalg.norm(A @ best - b))
    if args.check and not abs(optimum - ours) <= job.RELATIVE * ours:
        job.refuse(f"the optimum's error is {optimum:.6f}, ours {ours:.6f}")
    lstsq = LeastSquare(A, b, epoches=args.epochs)
    start = perf_counter()
    theta = lstsq.run()
    seconds = perf_counter() - start
    line = {"seconds": seconds, "error": lstsq.check(theta), "optimum": optimum}
    print(json.dumps(line))
