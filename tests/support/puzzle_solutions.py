"""One solution of each puzzle. If you want to solve them yourself, read no further."""

import numpy


def split_unevenly(rank, n, size):
    shorter, longer = divmod(size, n)
    start = rank * shorter + min(rank, longer)
    return start, start + shorter + (rank < longer)


def part(k, n, array):
    return slice(*split_unevenly(k % n, n, len(array)))


def central(rank, n, array, exchange):
    for k in range(1, n):
        copy = exchange(array, 0) if rank == k else exchange()
        if rank == 0:
            array += copy
    for k in range(1, n):
        copy = exchange(array, k) if rank == 0 else exchange()
        if rank == k:
            array[...] = copy


def tree(rank, n, array, exchange):
    distances = [2**i for i in range((n - 1).bit_length())]
    for d in distances:
        to = rank - d if rank % (2 * d) == d else None
        copy = exchange(array, to)
        if copy is not None:
            array += copy
    for d in reversed(distances):
        has = rank % (2 * d) == 0 and rank + d < n
        copy = exchange(array, rank + d if has else None)
        if copy is not None:
            array[:] = copy


def reduce_scatter(rank, n, array, exchange):
    for turn in range(1, n):
        copy = exchange(array[part(rank - turn, n, array)], (rank + 1) % n)
        array[part(rank - turn - 1, n, array)] += copy


def all_gather(rank, n, array, exchange):
    for turn in range(n - 1):
        copy = exchange(array[part(rank - turn, n, array)], (rank + 1) % n)
        array[part(rank - turn - 1, n, array)] = copy


def ring(rank, n, array, exchange):
    reduce_scatter(rank, n, array, exchange)
    all_gather(rank, n, array, exchange)


def zero1(rank, n, param, grad, velocity, lr, exchange):
    reduce_scatter(rank, n, grad, exchange)
    own = part(rank, n, param)
    velocity[:] = 0.9 * velocity + grad[own]
    param[own] -= lr * velocity
    all_gather(rank, n, param, exchange)


def clip(rank, n, shard, most, exchange):
    total = numpy.array([shard @ shard])
    ring(rank, n, total, exchange)
    norm = numpy.sqrt(total[0])
    if norm > most:
        shard *= most / norm


def least_squares(rank, n, gram, x, exchange):
    sums = numpy.column_stack([gram, gram @ x])
    central(rank, n, sums, exchange)
    return numpy.linalg.solve(sums[:, :-1], sums[:, -1])


rebinding = central


def who_divides(rank, n, total, count, exchange):
    everything = numpy.append(total, count)
    central(rank, n, everything, exchange)
    return everything[:-1] / everything[-1]
