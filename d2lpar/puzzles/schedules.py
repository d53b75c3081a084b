"""Machines that exist only as rules: a pipeline of stages, and a device with a link."""

from __future__ import annotations

from collections.abc import Sequence

from d2lpar.puzzles.interconnect import MAX_ROUNDS


class Pipeline:
    """Stages of a network. In a round each works on one micro-batch at most."""

    SCORES = ("rounds", "bubbles", "micro-batches held")

    def __init__(self, num_stages: int, num_batches: int):
        self.done = {
            direction: [[False] * num_batches for _ in range(num_stages)]
            for direction in ("forward", "backward")
        }
        self.finished = [0] * num_stages  # micro-batches that came back
        self.in_hand = [0] * num_stages  # micro-batches that went forward only
        self.rounds = self.idle = self.held = 0

    def run(self, work: Sequence[tuple[int, str, int]]) -> None:
        """One round: work on each (stage, "forward" or "backward", micro-batch)."""
        if self.rounds >= MAX_ROUNDS:
            raise ValueError(f"more than {MAX_ROUNDS} rounds: does a loop not end?")
        stages: set = set()
        for item in work:
            if not isinstance(item, tuple) or len(item) != 3:
                raise ValueError("run takes a list of (stage, direction, micro-batch)")
            stage, direction, batch = item
            if stage not in range(len(self.in_hand)):
                raise ValueError(f"there is no stage {stage!r}")
            if stage in stages:
                raise ValueError(f"stage {stage} works twice in one round")
            stages.add(stage)
            if batch not in range(len(self.done["forward"][0])):
                raise ValueError(f"there is no micro-batch {batch!r}")
            if direction not in self.done:
                raise ValueError(f"{direction!r}: write 'forward' or 'backward'")
            self._check(stage, direction, batch)
        for stage, direction, batch in work:
            self.done[direction][stage][batch] = True
            self.in_hand[stage] += 1 if direction == "forward" else -1
            self.finished[stage] += direction == "backward"
        self.rounds += 1
        self.idle += len(self.in_hand) - len(work)
        self.held = max(self.held, *self.in_hand)

    def _check(self, stage: int, direction: str, batch: int) -> None:
        """Raise ValueError if what this work needs is not there from earlier rounds."""
        if self.done[direction][stage][batch]:
            raise ValueError(f"stage {stage} has done {direction} of {batch} before")
        needs = [("forward", stage - 1)]
        if direction == "backward":
            needs = [("forward", stage), ("backward", stage + 1)]
        for what, other in needs:
            exists = other in range(len(self.in_hand))
            if exists and not self.done[what][other][batch]:
                raise ValueError(
                    f"stage {stage} cannot do {direction} of micro-batch {batch}: "
                    f"stage {other} has not finished its {what}"
                )

    def scores(self) -> tuple[int, int, int]:
        """Rounds, places of a stage that stayed empty, most that one stage held."""
        return self.rounds, self.idle, self.held


class Overlap:
    """A device that computes layers backward, and a link that sums one at a time."""

    SCORES = ("seconds",)

    def __init__(self, compute: Sequence[int], seconds: Sequence[int]):
        self.compute, self.seconds = compute, seconds
        self.now, self.link_free = 0, 0
        self.computed = [False] * len(compute)
        self.summed = [-1] * len(compute)  # when the sum is there
        self.waited = [False] * len(compute)

    def backward(self, l: int) -> None:
        """Compute the gradient of layer l; return when it is there."""
        if l not in range(len(self.compute)):
            raise ValueError(f"there is no layer {l!r}")
        if self.computed[l]:
            raise ValueError(f"the gradient of layer {l} has been computed before")
        if not all(self.computed[l + 1 :]):
            raise ValueError(f"layer {l} needs the gradients of all layers after it")
        self.now += self.compute[l]
        self.computed[l] = True

    def send(self, l: int) -> None:
        """Queue the all-reduce of layer l; return at once."""
        if l not in range(len(self.compute)) or not self.computed[l]:
            raise ValueError(f"there is no gradient of layer {l!r} yet")
        if self.summed[l] >= 0:
            raise ValueError(f"layer {l} has been sent before")
        self.link_free = max(self.now, self.link_free) + self.seconds[l]
        self.summed[l] = self.link_free

    def wait(self, l: int) -> None:
        """Return when the sum of layer l is there."""
        if l not in range(len(self.compute)) or self.summed[l] < 0:
            raise ValueError(f"layer {l!r} has not been sent")
        self.now = max(self.now, self.summed[l])
        self.waited[l] = True

    def scores(self) -> tuple[int]:
        """Seconds until the last wait has returned."""
        return (self.now,)

    def least(self) -> int:
        """Seconds if each layer is sent as soon as its gradient is there: the least."""
        now = free = 0
        for compute, send in zip(reversed(self.compute), reversed(self.seconds)):
            now += compute
            free = max(now, free) + send
        return free
