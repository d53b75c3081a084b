"""The table of known mistakes: a name, what it makes of a step, and its sentence.

A formula returns candidates for the wrong step of one `Case` (explain.py): per device,
or per way to make it.
"""

from functools import reduce


def means_of_pieces(c):
    """Return means of pieces that count equally: of each device, or of all."""
    of_devices = [sum(map(c.mean, rows)) / c.A for rows in zip(*c.pieces)]
    yield sum(of_devices) / c.N
    yield sum(c.share(rows) * u for rows, u in zip(c.shards, of_devices))
    yield sum(map(c.mean, c.together)) / c.A


# Compared in every check but those of two steps and of clipping.
STEPS = {
    "N times": lambda c: [sum(c.own)],
    "one device": lambda c: [*c.own, *(c.N * p for p in c.parts), *c.parts],
    "dropped rows": lambda c: [f(c.order[: c.n - c.n % c.N]) for f in (c.mean, c.part)],
    "repeated rows": lambda c: [
        c.mean(c.order + c.order[k:][: c.extra]) for k in (0, -c.extra)
    ],
    "padding": lambda c: [c.mean(c.order + c.extra * [len(c.bench.rows) + 1])],
    "mean of means": lambda c: [
        *(sum(c.own) / k for k in (min(c.n, c.N), c.N)),
        sum(len(rows) / c.n * u for rows, u in zip(c.shards, c.own)),
    ],
    "old gradient": lambda c: [c.whole + k * c.left for k in range(1, c.N + 1)],
}
ACCUMULATED = {
    "sum of pieces": lambda c: [c.A * u for u in means_of_pieces(c)],
    "mean of pieces": means_of_pieces,
    "one piece": lambda c: [k * u for u in map(c.part, c.together) for k in (1, c.A)],
    "piece not summed": lambda c: [c.whole + c.N * p - sum(c.last) for p in c.last],
    "step of each piece": lambda c: [
        reduce(lambda done, rows: done + c.mean(rows, done), c.together, 0)
    ],
}
CLIPPED = {
    "not clipped": lambda c: [c.whole],
    "clipped sum": lambda c: [c.clip(c.whole, k * c.whole) for k in (c.n, c.N)],
    "clipped first": lambda c: [
        sum(map(c.clip, c.parts, c.own)), sum(map(c.clip, c.own)) / c.N
    ],
}  # fmt: skip
TWO_STEPS = {
    "old gradient": lambda c: [
        2 * c.whole,
        *(c.right + k * c.whole for k in (1, c.N, 1 / c.N)),
        *(c.right + c.whole - part for part in c.parts),  # one device set it to zero
    ],
    "local steps": lambda c: [sum(c.parts) + sum(map(c.part, c.shards, c.own))],
}
# A name of the table may depend on how one device's step comes from its rows.
NAMES = {
    ("mean of means", "weighted"): "own tokens",
    ("mean of pieces", "weighted"): "own tokens",
    ("mean of means", "clipped by value"): "clipped first",
    ("mean of means", "other"): "another algorithm",
    ("mean of means", "sum"): "divided by N",
}

# The sentences, also for what one device does, so that less can be judged, or nothing.
SENTENCES = {
    "N times": "the step is {N} times too long: mean gradients are summed, or the learning rate is multiplied by the number of devices although the global batch stays the same (second-gpu.md, Who divides by what?)",
    "divided by N": "the gradient is divided by {N} once too often, for example by the library and by the program (second-gpu.md, Who divides by what?)",
    "not divided": "the gradients are summed, but not divided by the batch size (second-gpu.md, Who divides by what?)",
    "divided twice": "the gradient is divided by the batch size twice, for example because the loss is a mean already (second-gpu.md, Who divides by what?)",
    "mean of sums": "the summed gradients of the devices are averaged: divide by the global batch size, not by {N} (second-gpu.md, Who divides by what?)",
    "one device": "only the shard of device {k} counts: nothing is summed over the devices, the sum is not used, or all devices get this shard",
    "dropped rows": "rows are dropped where a batch cannot be split evenly between {N} devices: allow shards of unequal length",
    "repeated rows": "rows are repeated to fill the last shard, and count twice: leave them out, or multiply their losses by 0",
    "padding": "rows of zeros fill the last shard, and count as samples: multiply their losses by 0, and do not count them",
    "mean of means": "the mean gradients of the devices are averaged, so samples of short shards count more: weight each by the length of its shard (second-gpu.md, Who divides by what?)",
    "own tokens": "each device, or each accumulated piece, divides by the number of its own tokens or valid labels, and these means are averaged: sum the losses, and divide once by the tokens of the global batch",
    "old gradient": "the gradient of an earlier step is used again: set gradients to zero before each step, and compute them before each update",
    "another algorithm": "each device takes a step of its own, and the steps are averaged. One device has another algorithm, for example with BatchNorm, class weights or negatives of each shard, or one optimizer per device",
    "local steps": "the devices take steps of their own between two averages of the parameters: this is local SGD, not the algorithm of one device",
    "sum of pieces": "the mean gradients of accumulated pieces are summed, but not divided by the number of pieces",
    "mean of pieces": "the mean gradients of accumulated pieces are averaged, so samples of short pieces count more: add sums, and divide once",
    "one piece": "only one of the accumulated gradients counts: the others are set to zero, overwritten, or not summed over the devices",
    "piece not summed": "the last of the accumulated gradients is that of device {k} alone: leave no_sync, or what corresponds to it, before the last backward pass",
    "step of each piece": "a step is taken after each accumulated piece: take one, after the last of them",
    "not clipped": "the gradient is not clipped",
    "clipped sum": "the gradient is clipped before it is divided by the batch size, or by the number of devices",
    "clipped first": "each device clips its own gradient before the sum: sum first, then clip",
    "clipped pieces": "accumulation and clipping are right alone, but not together: the gradient is clipped after each accumulated piece. Clip once, before the step",
    "apart": "the replicas differ after a step: one of them does not get the sum, starts from other parameters, or has a rate, a momentum or clipping of its own",
    "half precision": "the difference is one of rounding, as to 16 bits, which one device does not do: in what type is the gradient computed, and sent?",
    "constant part": "a part that no row changes is wrong, such as weight decay or a penalty: does it count once, and not once per device?",
    "not finite": "it is nan or infinite, although one device's is finite: is a mean taken over a shard without samples, 0 / 0?",
    "raises": "raises on {N} devices only: {error}",
    "hangs": "does every device take part in every sum, also one without samples?",
    "factor": "{c} times as far as one device",
    "unsteady": "the result depends on earlier calls, or on which device is ready first: do workers or compiled steps keep an earlier batch, or earlier parameters?",
    "": "off by {off} of the step, which no known mistake explains",
    "the gradient's length": "one device's step is not linear in the gradient, as with Adam or BatchNorm: a wrong factor may not show",
    "own precision": "one device's step itself is only good to {off}, as in 16 bits; smaller mistakes do not show: judge in float32, too",
    "a mean": "one device's step is that of the sum over samples, not of the mean: the gradients are not divided by the batch size. Several devices are judged by it",
    "the batch twice": "one device's step is not that of a mean over samples",
    "clipping": "one device does not clip by the norm of all parameters: several are only compared with it",
    "even": "even batches only (--even, or EVEN in the file)",
    "changes nothing": "its step changes no parameter",
    "same rows": "its step is the same with other rows: does it use the batch that it is given?",
    "unequal": "equal calls or permuted rows change one device's step by {far}, most in parameter {k}: make the optimizer anew in each call, and switch off random numbers, as of dropout. If there are none, its gradient is zero but for rounding, as of a bias before BatchNorm, and Adam makes a step of it: judge with SGD",
}
