"""The twenty-five puzzles. Copy a function to a file of your own, and fill it in there.

``puzzles.check(ring)`` says whether your `ring` is right, on arrays of many sizes, on
one to eight devices, in 20 seconds; it finds the puzzle by the function's name.

In the puzzles with `exchange`, ``arrays[k]`` is the array of device k. A device cannot
read an array of another device. It must be sent. A call of `exchange` is a *round* ::

    at_1, at_2 = exchange([(arrays[0], 1), (arrays[1], 2)])

sends device 0's array to device 1 and device 1's to device 2, and returns the copies
that arrive. In a round a device sends one array at most, and receives one at most. Use
what MXNet's arrays have, too: slices, ``x[:] = y``, + - * / ** @ and comparisons,
``x[mask] = 0``, ``x.sum()``, ``x.copy()``, `len`, `numpy.sqrt` and `numpy.minimum`.
``print(x)`` shows the device, the shape and the numbers.

A puzzle with `exchange` is scored by three numbers, and each must stay within its
target. *Rounds* are calls of `exchange`. The *busiest link* is the most that one device
sends in all, or receives in all. *Memory* is the most that one device holds at once:
its own arrays, and copies and results as long as a name refers to them: `at_1` above
counts until ``del at_1``. Link and memory are counted in arrays like ``arrays[0]``; N
is the number of devices.
"""


def split_unevenly(n, num_devices):
    """1. Split a batch of n samples over the devices, in order: one slice per device.

    Lengths differ by at most one, the longer ones come first, and some may be empty.
    Example: 10 samples on 3 devices are [slice(0, 4), slice(4, 7), slice(7, 10)].
    """
    raise NotImplementedError


def shard_gradients(X, y, w, parts):
    """2. The gradient of each shard; their sum is the gradient of the batch.

    X is (n, d), y (n,), w (d,); the slice parts[k] has the rows of device k, or none.
    Return for each device the gradient (d,) of sum((X w - y)^2) over its rows.
    Example: X = [[1], [2]], y = [0, 0], w = [1], one row each: [2] and [8].
    """
    raise NotImplementedError


def central(arrays, exchange):
    """3. All-reduce through device 0, as in the book: every array becomes the sum.

    In place; each message is sent by device 0 or to it. Target: 2 (N - 1) rounds, N - 1
    arrays over the busiest link, memory 3. Example: [1, 2] and [3, 4] become [4, 6].
    """
    raise NotImplementedError


def tree(arrays, exchange):
    """4. All-reduce by a tree: pairs add, then pairs of pairs, and the sum goes back.

    In place, with 2 (N - 1) messages in all. Target, with log2 N rounded up: 2 log2 N
    rounds, log2 N arrays over the busiest link, memory 3.
    Example with 4 devices: 1 sends to 0 while 3 sends to 2; then 2 sends to 0.
    """
    raise NotImplementedError


def recursive_doubling(arrays, exchange):
    """5. All-reduce in log2 N rounds: in each round, pairs exchange what they have.

    In place. Target: log2 N rounds, log2 N arrays over the busiest link, memory 3. If N
    is no power of 2, let M be the largest power below it. The devices from M on first
    send their arrays away, and get the sum last: log2 M + 2 rounds and arrays.
    Example: first devices 0 and 1, and 2 and 3, exchange; then 0 and 2, and 1 and 3.
    """
    raise NotImplementedError


def reduce_scatter(arrays, exchange):
    """6. Reduce-scatter: device k ends with part k of the sum, in arrays[k][part k].

    Parts are as in puzzle 1. The other parts may hold anything. Target: N - 1 rounds,
    (N - 1) / N arrays over the busiest link, memory 1 + 2 / N. If parts are uneven, the
    length of the longest part replaces 1 / N.
    Example: [1, 2] and [3, 4] become [4, anything] and [anything, 6].
    """
    raise NotImplementedError


def all_gather(arrays, exchange):
    """7. All-gather: at first only part k of arrays[k] is right, at the end all parts.

    In place, targets as in puzzle 6. Parts may be empty: one number on two devices.
    Example: [4, 0] and [0, 6] both become [4, 6].
    """
    raise NotImplementedError


def ring(arrays, exchange):
    """8. All-reduce in a ring: device k sends to k + 1 only, the last device to 0.

    In place, with parts as in puzzle 1. Target: 2 (N - 1) rounds, 2 (N - 1) / N arrays
    over the busiest link, memory 1 + 2 / N.
    Example with 3 devices: first 0 sends part 2, 1 sends part 0, and 2 sends part 1.
    """
    raise NotImplementedError


def zero1(params, grads, velocities, lr, exchange):
    """9. ZeRO's first stage: each device keeps the velocity of its part only.

    params[k] is device k's replica, grads[k] its gradient, which you may overwrite, and
    velocities[k] is as long as part k. With g the sum of the gradients, each element
    gets v = 0.9 v + g and p = p - lr v, on one device only; then all replicas get the
    new parameters. In place. Targets as in puzzle 8, but memory 2 + 4 / N.
    Example: with params [1, 1] twice, grads [1, 0] and [1, 2], velocities [0] and [0]
    and lr 0.5 the velocities become [2] and [2], all params [0, 0].
    """
    raise NotImplementedError


def local_sgd(ws, gradients, lr, num_steps, steps_between, exchange):
    """10. Local SGD: every device steps alone; now and then all take the mean.

    ws[k] is device k's replica and gradients[k](w) the gradient of its samples at w. Do
    num_steps of w = w - lr * gradient. After every steps_between steps, and after the
    last step, replace all replicas by their mean, in place. Targets: for each mean as
    in puzzle 8, but memory 4.
    Example: 5 steps with steps_between = 2 take the mean after steps 2, 4 and 5.
    """
    raise NotImplementedError


def fsdp(shards, buffers, gradients, lr, exchange):
    """11. Fully sharded data parallelism (FSDP): no device holds all parameters.

    shards[k][l] is part k (as in puzzle 1) of layer l's parameters, on device k, and
    buffers[k] has room for one whole layer. gradients[k](l, w) is the gradient (as long
    as w) of device k's samples, where w are all the parameters of layer l, on device k.
    Take one step of w = w - lr * g, in place in the shards, with g the sum of all
    gradients. Targets: for each of 3 layers as in puzzles 7 and 6; memory 2 + 5 / N:
    a layer, its gradient, three shards, and two parts that travel. Example: shards [1]
    and [2] of w = [1, 2], gradients [4, 0] and [0, 8], lr 0.5 become [-1] and [-2].
    """
    raise NotImplementedError


def pipeline(num_stages, num_batches, run):
    """12. A pipeline: stage s holds some layers, and micro-batches go through all.

    run([(0, "forward", 1), (1, "forward", 0)]) is one round, in which stage 0 works on
    micro-batch 1 while stage 1 works on micro-batch 0. A stage does one thing a round.
    Forward of stage s needs the forward of stage s - 1. Backward needs the stage's own
    forward and the backward of stage s + 1. Both must be of earlier rounds. Bring all
    micro-batches forward and backward. A stage holds a micro-batch from its forward to
    its backward. Target for S stages and M micro-batches: 2 (M + S - 1) rounds,
    2 S (S - 1) bubbles (a stage without work in a round), and at most min(S, M)
    micro-batches held by a stage.
    Example: with 2 stages and 1 micro-batch four rounds, each with one stage at work.
    """
    raise NotImplementedError


def overlap(num_layers, backward, send, wait):
    """13. Overlap: sum the gradients of late layers while early layers still compute.

    backward(l) computes the gradient of layer l and returns when it is there. Compute
    the gradients of all layers behind it first. send(l) queues the all-reduce of layer
    l and returns at once. The link serves one layer at a time. wait(l) returns when the
    sum is there: wait for all layers. Target: the fewest seconds possible.
    Example: two layers of 3 s each, sent in 2 s each, need 8 s; without overlap 10 s.
    """
    raise NotImplementedError


def batch_norm(counts, means, variances):
    """14. Mean and variance of a whole batch, from means and variances of its shards.

    Shard k has counts[k] >= 1 samples with the means means[k] (d,), and variances[k]
    (d,) are the mean squared distances from *these*. Return (mean, variance).
    Example: two shards of one sample each, 0 and 2, have variance 0; the batch has 1.
    """
    raise NotImplementedError


def grid(nx, ny, block, blockIdx, threadIdx):
    """15. A kernel's grid: which element of an array (ny, nx) does a thread compute?

    block is the (x, y) size of a block of threads; blockIdx and threadIdx, both (x, y),
    are a thread's place. Return ((blocks in x, blocks in y), ij): how many blocks cover
    the array, and where in memory, row after row, the thread's element is; -1 for none.
    Example: for 5 x 2 in blocks of (4, 4), block (1, 0), thread (0, 1): ((2, 1), 9).
    """
    raise NotImplementedError


def least_squares(grams, xs):
    """16. Averaging least squares, so that the average is right.

    Device k has the rows A_k, b_k, and has solved them: xs[k] (d,) is the x with the
    least ||A_k x - b_k||, and grams[k] (d, d) is A_k^T A_k. Return the x for all rows.
    Example: with d = 1, grams [[1]] and [[3]], xs [0] and [4], it is [3], not [2].
    """
    raise NotImplementedError


# Four functions with a bug each: repair them.


def rebinding(arrays, exchange):
    """17. The book's all-reduce for PyTorch, printed in 2021: one device gets the sum.

    A reader found the bug: https://github.com/d2l-ai/d2l-zh/pull/955. All arrays should
    become the sum, in place. Targets as in puzzle 3.
    """
    for k in range(1, len(arrays)):
        arrays[0][:] += exchange([(arrays[k], 0)])[0]
    for k in range(1, len(arrays)):
        arrays[k] = exchange([(arrays[0], k)])[0]


def who_divides(sums, counts):
    """18. The mean gradient of a batch; for 13 samples on 2 devices it is wrong.

    sums[k] (d,) is the sum of the gradients of device k's counts[k] samples. Return the
    mean over all samples. A device may have none, if another one has.
    """
    return sum(total / count for total, count in zip(sums, counts)) / len(sums)


def idle_device(shards, grads, gradient):
    """19. The gradients of a small last batch: their sum is wrong if a device is idle.

    gradient(shard) is the gradient (d,) of one sample or more. It belongs in grads[k],
    which still holds device k's gradient of the step before.
    """
    for k, shard in enumerate(shards):
        if len(shard) > 0:
            grads[k][:] = gradient(shard)


def clock(work, wait, now):
    """20. How many seconds a device needs for the work; the answer is always 0.

    work() hands the work to the device and returns at once; wait() returns when it has
    done all that it was handed, also before this call; now() is the time in seconds.
    """
    start = now()
    work()
    return now() - start


# Five more, of what trainings of large networks do.


def clip(shards, most, exchange):
    """21. Clip a gradient in parts by the norm of the whole.

    shards[k] is part k of the summed gradient, on device k. If the norm of all parts
    together is above `most`, multiply each by most / norm, in place. numpy.sqrt,
    numpy.minimum and x.sum() work on a device. Target: 2 (N - 1) rounds, over the
    busiest link 2 (N - 1) *numbers*, memory two shards and 4 numbers.
    Example: shards [3] and [4] with most = 1 become [0.6] and [0.8].
    """
    raise NotImplementedError


def accumulate(grads, gradients, counts, exchange):
    """22. Gradient accumulation: several micro-batches per device, one all-reduce.

    gradients[k](m) is the gradient, summed over samples, of micro-batch m on device k,
    which has counts[k][m] samples. Devices may have unequal numbers of micro-batches.
    grads[k] holds the gradient of the step before. Put into each the mean over all
    samples. Targets as in puzzle 8, but memory 3.
    Example: gradients [2] of 1 sample and [4] of 2, on one device, have the mean [2].
    """
    raise NotImplementedError


def tied(grads, exchange):
    """23. Tied weights in a pipeline: the first and the last stage share a layer.

    grads[0] and grads[-1] are gradients of their uses of the layer. All other arrays
    belong to other layers. Replace both gradients by the gradient of the layer. Target:
    one round and array, memory 3.
    Example: [1], [5] and [2] become [3], [5] and [3].
    """
    raise NotImplementedError


def dropout(shards, seeds, draws, rate, exchange):
    """24. Dropout by N devices as by one: a seed travels, and no mask.

    shards[k] (rows,) are device k's rows of a batch. draws[k](seed, start, stop) are,
    on device k, the random numbers in [0, 1) of rows start:stop of the whole batch, for
    an array `seed` of one number. Only seeds[0] counts. Set each row to 0 unless its
    number is above `rate`, and divide all other rows by 1 - rate, in place. Targets:
    log2 N rounds and log2 N numbers, memory 5 shards and 4 numbers.
    Example: with rate 0.5 and numbers 0.2 and 0.7 rows [3] and [3] become [0] and [6].
    """
    raise NotImplementedError


def sync_bn_backward(grads, normed, buffers, count, deviation, exchange):
    """25. Backward through synchronised BatchNorm: one all-reduce per pass.

    normed[k] are device k's samples of one feature after the forward pass, with mean 0
    and variance 1 over all `count` samples, and grads[k] their gradients g. Each g
    becomes (g - mean(g) - normed * mean(g * normed)) / deviation, with means over all
    samples. buffers[k] has room for two numbers. Target: 2 (N - 1) rounds and numbers
    over the busiest link, memory 6 shards and 8 numbers.
    Example: g [1] and [3], normed [-1] and [1], deviation 1: both become [0].
    """
    raise NotImplementedError
