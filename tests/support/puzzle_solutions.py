"""One solution of each puzzle. If you want to solve them yourself, read no further."""

import numpy


def split_unevenly(n, num_devices):
    size, longer = divmod(n, num_devices)
    starts = [k * size + min(k, longer) for k in range(num_devices + 1)]
    return [slice(a, b) for a, b in zip(starts, starts[1:])]


def shard_gradients(X, y, w, parts):
    return [2 * X[part].T @ (X[part] @ w - y[part]) for part in parts]


def central(arrays, exchange):
    for k in range(1, len(arrays)):
        arrays[0][:] += exchange([(arrays[k], 0)])[0]
    for k in range(1, len(arrays)):
        arrays[k][:] = exchange([(arrays[0], k)])[0]


def tree(arrays, exchange):
    n, distances = len(arrays), []
    while 2 ** len(distances) < n:
        distances.append(2 ** len(distances))
    for distance in distances:
        to = range(0, n - distance, 2 * distance)
        copies = exchange([(arrays[k + distance], k) for k in to])
        for k, copy in zip(to, copies):
            arrays[k][:] += copy
    for distance in reversed(distances):
        to = range(distance, n, 2 * distance)
        copies = exchange([(arrays[k - distance], k) for k in to])
        for k, copy in zip(to, copies):
            arrays[k][:] = copy


def recursive_doubling(arrays, exchange):
    n, most = len(arrays), 1
    while 2 * most <= n:
        most *= 2
    rest = range(most, n)
    if rest:
        copies = exchange([(arrays[k], k - most) for k in rest])
        for k, copy in zip(rest, copies):
            arrays[k - most][:] += copy
    distance = 1
    while distance < most:
        copies = exchange([(arrays[k], k ^ distance) for k in range(most)])
        for k, copy in enumerate(copies):
            arrays[k ^ distance][:] += copy
        distance *= 2
    if rest:
        copies = exchange([(arrays[k - most], k) for k in rest])
        for k, copy in zip(rest, copies):
            arrays[k][:] = copy


def once_round(arrays, exchange, first, add):
    """N - 1 rounds in a ring; in the first, device k sends part k + `first`."""
    n = len(arrays)
    parts = split_unevenly(len(arrays[0]), n)
    for turn in range(n - 1):
        moving = [parts[(k + first - turn) % n] for k in range(n)]
        copies = exchange([(arrays[k][moving[k]], (k + 1) % n) for k in range(n)])
        for k in range(n):
            if add:
                arrays[(k + 1) % n][moving[k]] += copies[k]
            else:
                arrays[(k + 1) % n][moving[k]] = copies[k]


def reduce_scatter(arrays, exchange):
    once_round(arrays, exchange, -1, add=True)


def all_gather(arrays, exchange):
    once_round(arrays, exchange, 0, add=False)


def ring(arrays, exchange):
    reduce_scatter(arrays, exchange)
    all_gather(arrays, exchange)


def zero1(params, grads, velocities, lr, exchange):
    reduce_scatter(grads, exchange)
    parts = split_unevenly(len(params[0]), len(params))
    for p, g, v, part in zip(params, grads, velocities, parts):
        v[:] = 0.9 * v + g[part]
        p[part] -= lr * v
    all_gather(params, exchange)


def local_sgd(ws, gradients, lr, num_steps, steps_between, exchange):
    for step in range(1, num_steps + 1):
        for w, gradient in zip(ws, gradients):
            w -= lr * gradient(w)
        if step % steps_between == 0 or step == num_steps:
            ring(ws, exchange)
            for w in ws:
                w /= len(ws)


def fsdp(shards, buffers, gradients, lr, exchange):
    parts = split_unevenly(len(buffers[0]), len(buffers))
    for l in range(len(shards[0])):
        for shard, buffer, part in zip(shards, buffers, parts):
            buffer[part] = shard[l]
        all_gather(buffers, exchange)
        grads = [gradient(l, w) for gradient, w in zip(gradients, buffers)]
        reduce_scatter(grads, exchange)
        for shard, grad, part in zip(shards, grads, parts):
            shard[l][:] -= lr * grad[part]
        del grads, grad


def pipeline(num_stages, num_batches, run):
    forward, backward = [0] * num_stages, [0] * num_stages  # how many are done
    while backward[0] < num_batches:
        work = []
        for s in range(num_stages):
            last = s == num_stages - 1
            ready = forward[s] if last else backward[s + 1]
            arrived = num_batches if s == 0 else forward[s - 1]
            if backward[s] < ready:
                work.append((s, "backward", backward[s]))
            elif forward[s] < min(arrived, backward[s] + num_stages - s):
                work.append((s, "forward", forward[s]))
        run(work)
        for s, direction, _ in work:
            (forward if direction == "forward" else backward)[s] += 1


def overlap(num_layers, backward, send, wait):
    for l in reversed(range(num_layers)):
        backward(l)
        send(l)
    for l in range(num_layers):
        wait(l)


def batch_norm(counts, means, variances):
    n = sum(counts)
    mean = sum(c * m for c, m in zip(counts, means)) / n
    squares = sum(c * (v + m * m) for c, m, v in zip(counts, means, variances)) / n
    return mean, squares - mean * mean


def grid(nx, ny, block, blockIdx, threadIdx):
    x, y = (b * size + t for b, size, t in zip(blockIdx, block, threadIdx))
    blocks = -(-nx // block[0]), -(-ny // block[1])
    return blocks, nx * y + x if x < nx and y < ny else -1


def least_squares(grams, xs):
    return numpy.linalg.solve(sum(grams), sum(G @ x for G, x in zip(grams, xs)))


def rebinding(arrays, exchange):
    central(arrays, exchange)


def who_divides(sums, counts):
    return sum(sums) / sum(counts)


def idle_device(shards, grads, gradient):
    for shard, grad in zip(shards, grads):
        grad[:] = gradient(shard) if len(shard) else 0


def clock(work, wait, now):
    wait()
    start = now()
    work()
    wait()
    return now() - start


def clip(shards, most, exchange):
    totals = [(shard * shard).sum().copy()[None] for shard in shards]
    ring(totals, exchange)
    for shard, total in zip(shards, totals):
        shard *= numpy.minimum(1, most / numpy.sqrt(total))


def accumulate(grads, gradients, counts, exchange):
    for grad, gradient, of_device in zip(grads, gradients, counts):
        grad[:] = 0
        for m in range(len(of_device)):
            grad += gradient(m)
    ring(grads, exchange)
    for grad in grads:
        grad /= sum(map(sum, counts))


def tied(grads, exchange):
    if len(grads) > 1:
        last = len(grads) - 1
        at_last, at_first = exchange([(grads[0], last), (grads[last], 0)])
        grads[0] += at_first
        grads[last] += at_last


def dropout(shards, seeds, draws, rate, exchange):
    distance = 1 << (len(seeds) - 1).bit_length()
    while distance > 1:
        distance //= 2
        to = range(distance, len(seeds), 2 * distance)
        copies = exchange([(seeds[k - distance], k) for k in to])
        for k, copy in zip(to, copies):
            seeds[k][:] = copy
    start = 0
    for shard, seed, draw in zip(shards, seeds, draws):
        shard *= (draw(seed, start, start + len(shard)) > rate) / (1 - rate)
        start += len(shard)


def sync_bn_backward(grads, normed, buffers, count, deviation, exchange):
    for g, h, buffer in zip(grads, normed, buffers):
        buffer[0], buffer[1] = g.sum(), (g * h).sum()
    ring(buffers, exchange)
    for g, h, buffer in zip(grads, normed, buffers):
        mean, product = buffer[0] / count, buffer[1] / count
        g[:] = (g - mean - h * product) / deviation
