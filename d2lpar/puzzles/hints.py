"""Three hints for each puzzle, one after another."""

from __future__ import annotations

from collections.abc import Callable

HINTS = {
    "split_unevenly": (
        "divmod(n, num_devices) returns the shorter length and how many are longer.",
        "Where does slice k start? Count the rows of all slices before it.",
        "Slice k starts at k * shorter + min(k, how many are longer).",
    ),
    "shard_gradients": (
        "What is the derivative of (x w - t)^2 with respect to w, for one row x?",
        "For one row it is 2 (x w - t) x. Sum it over the rows of a shard.",
        "A sum of rows times numbers is a product: X[part].T @ something.",
    ),
    "central": (
        "Device 0 receives one array per round, so there are N - 1 rounds each way.",
        "exchange([(arrays[k], 0)]) returns a list with the copy on device 0.",
        "Add the copy by arrays[0][:] += ..., and write by arrays[k][:] = ...",
    ),
    "tree": (
        "How many devices can receive in one round if each sends at most once?",
        "In round r the two devices of a pair are d = 2^r apart. Which devices add?",
        "Devices k = 0, 2d, 4d, ... add what k + d sends, if k + d exists. Then the sum"
        " goes from k to k + d, with the same distances in reverse.",
    ),
    "recursive_doubling": (
        "In a tree at least half of the devices send nothing in a round. What could"
        " they send?",
        "In round r device k exchanges with k ^ 2**r: both send, both add.",
        "If N is no power of 2, device M + j first sends its array to j, and gets the"
        " sum from j in the last round.",
    ),
    "reduce_scatter": (
        "All devices send in each round, each a different part, to the next device.",
        "A part must end, complete, on the device of its number. Where does it start?",
        "In round r device k sends part (k - 1 - r) mod N; the receiver adds it.",
    ),
    "all_gather": (
        "A device can pass on in a round what it received in the round before.",
        "In the first round device k sends part k. Which does it send in the next?",
        "In round r device k sends part (k - r) mod N; the receiver writes it.",
    ),
    "ring": (
        "After a reduce-scatter, who has which part of the sum?",
        "What puzzle 7 asks for at its start is what puzzle 6 leaves at its end.",
        "Call your two solutions one after the other; do yours send to k + 1 only?",
    ),
    "zero1": (
        "Which device needs which part of the summed gradient? See puzzle 6.",
        "Each device then changes its velocity and its part of the parameters only.",
        "In the end each device needs the other parts of the parameters: puzzle 7.",
    ),
    "local_sgd": (
        "The mean is a sum divided by N, and you have all-reduced sums before.",
        "When do you average? Count steps from 1, and think of the last one.",
        "Change the arrays in place: w -= ..., and after the sum w /= N.",
    ),
    "fsdp": (
        "Work layer by layer: what must be on a device before it can compute?",
        "Write shards[k][l] to part k of buffers[k], then gather as in puzzle 7.",
        "Reduce-scatter the gradients, update the shards, and `del` the gradients"
        " before those of the next layer: an array counts while a name refers to it.",
    ),
    "pipeline": (
        "All forwards before all backwards needs no more rounds, but then a stage holds"
        " all M micro-batches at once.",
        "Which work frees memory? Let a stage prefer it whenever it is possible.",
        "Stage s goes forward only while it holds fewer than S - s micro-batches;"
        " decide from what was finished before the round.",
    ),
    "overlap": (
        "What does the link do while backward(l) runs, and what could it do?",
        "While you are in wait(l), no backward pass runs. How late can you call it?",
        "Send each gradient at once; wait only when all layers are computed.",
    ),
    "batch_norm": (
        "The mean of the means is wrong if the shards differ in length. Weight them.",
        "Which sums over samples give mean and variance, and can be added over shards?",
        "A shard's sum of squares is count * (variance + mean^2).",
    ),
    "grid": (
        "Blocks must cover the array even if the last ones stick out: round up.",
        "The element is at block * blockIdx + threadIdx, in x and in y.",
        "Rows have nx elements. A thread is outside if x >= nx or y >= ny; its index"
        " y * nx + x alone does not show it.",
    ),
    "least_squares": (
        "Which equation does x fulfil if ||A x - b|| is the least?",
        "A^T A x = A^T b, and both sides are sums over the devices.",
        "You do not have A_k^T b_k, but it equals A_k^T A_k x_k.",
    ),
    "rebinding": (
        "Call it with [a, b], two NumPy arrays, and an exchange that copies. Does b"
        " change?",
        "x[k] = y puts another array into the list; the caller's array stays.",
        "The first loop writes in place, by [:]. Let the last line do the same.",
    ),
    "who_divides": (
        "Try it by hand with counts of 2 and 1. How much does each sample count?",
        "A sample on the fuller device counts less. All samples should count the same.",
        "Divide once, by the number of all samples.",
    ),
    "idle_device": (
        "What is in grads[k] after the function if shard k is empty?",
        "The sum over devices still adds the gradient of the step before.",
        "What is the sum over no samples? Write that.",
    ),
    "clock": (
        "work() returns at once. When is the second clock reading taken?",
        "Wait before the last reading. Is there unfinished work at the first one, too?",
        "Two calls of wait(): before the first reading, and before the last.",
    ),
    "clip": (
        "Is the norm of a whole the sum of the norms of its parts? Of their squares?",
        "Each device sums the squares of its shard. How long is what must travel?",
        "All-reduce the N sums of squares, one number each; then each device takes the"
        " root, and multiplies its shard by numpy.minimum(1, most / norm).",
    ),
    "accumulate": (
        "How often must gradients travel if the parameters change once?",
        "Each device adds up its micro-batches first. What is in grads[k] before?",
        "Write the first gradient, add the others, all-reduce once, and divide once by"
        " the number of all samples.",
    ),
    "tied": (
        "A weight that is used twice has the sum of two gradients.",
        "Which stages have the weight? What have the other stages to do with it?",
        "Both send their gradient to each other in one round, and both add; with one"
        " stage there is nothing to send.",
    ),
    "dropout": (
        "Which is longer: a mask, or what a mask is drawn from?",
        "All devices need device 0's seed: the second half of puzzle 4.",
        "Rows start:stop of device k begin after the rows of all shards before it. What"
        " is kept is divided by 1 - rate.",
    ),
    "sync_bn_backward": (
        "In the formula, which two sums run over all samples?",
        "Each device can write both sums into buffers[k] before anything is sent.",
        "All-reduce the buffers once, then every device has both means of the batch.",
    ),
}
_given = dict.fromkeys(HINTS, 0)


def hint(puzzle: str | Callable) -> None:
    """Print the next hint for a puzzle, given by its name or your function."""
    name = puzzle if isinstance(puzzle, str) else getattr(puzzle, "__name__", "")
    if name not in HINTS:
        print(f"{name or puzzle!r} is no puzzle: the puzzles are {', '.join(HINTS)}")
        return
    hints, number = HINTS[name], _given[name]
    if number == len(hints):
        print(f"{name}: these were all the hints; the next one is the first again")
        _given[name] = 0
        return
    _given[name] += 1
    print(f"{name}, hint {number + 1} of {len(hints)}: {hints[number]}")
