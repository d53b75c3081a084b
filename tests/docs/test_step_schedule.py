"""tools/step_schedule.py: a schedule by hand, its constants, and the four numbers."""

from __future__ import annotations

import numpy
import pytest
import step_schedule
from step_schedule import BATCHES, COMMUNICATION, WAYS, end_of, numbers, spans_of

# Two layers of one array each; a link that takes 10 and 1 per byte.
BY_HAND = {
    "layers": [["a", [4], [0, 1], [0, 2]], ["b", [2], [0, 1], [0, 2]]],
    "image": 0, "update": 0.5, "latency": 10, "per_byte": 1,
    "issue": {"forward": 1, "backward": 1, "other": 0},
}  # fmt: skip


def counted(spans: list[tuple], until: int) -> dict[str, int]:
    """The four numbers of spans in whole microseconds, microsecond by microsecond."""
    busy = numpy.zeros((2, 2, until), int)  # computes or communicates, device, time
    for name, lane, start, end in spans:
        if lane:
            busy[int(bool(COMMUNICATION.match(name))), lane - 1, start:end] = 1
    works, sends = busy
    return {
        "computing": works.sum(),
        "communicating": sends.sum(),
        "overlapped": (sends * works.any(axis=0)).sum(),
        "idle": 2 * until - (works | sends).sum(),
    }


@pytest.mark.parametrize(
    ("way", "end"),
    [
        # Both devices begin at 10, when device 0 has copied 0 bytes of images, and have
        # done both passes of 2 images at 22; the link takes 14 and 12. Device 1 sends a
        # until 36 and b until 48; device 0 sums a until 50, then b, which waits since
        # 48, until 62, sends a until 76, updates a until 78, sends b until 90.
        (WAYS[0], 90 + 1),
        (WAYS[1], 22 + 3 * 16 + 3),  # 6 bytes at once
        # b's backward pass ends at 18: to 30, sum to 42, back to 54. a's: to 44 (its
        # link is busy until 30), sum to 68 (device 0's is, until 54), back to 82.
        (WAYS[2], 82 + 2),
    ],
)
def test_a_schedule_agrees_with_one_by_hand(way, end):
    assert end_of(step_schedule.schedule(BY_HAND, 2, 4, way)) == end


@pytest.mark.parametrize("batch", BATCHES)
def test_the_four_numbers_are_those_counted_in_the_trace(batch):
    spans = spans_of(batch)
    for until in (0, 1, 777, end_of(spans) // 2, end_of(spans)):
        assert numbers(spans, until) == counted(spans, until)


def test_the_prediction_computes_as_long_as_the_trace():
    """And takes about as long, with the same time of Python for the small batch.

    No images take a layer no less than 0, so the small batch can be predicted too long.
    """
    c = step_schedule.constants()
    for batch in BATCHES:
        seen, ours = spans_of(batch), step_schedule.schedule(c, 2, batch, WAYS[0])
        computing = [numbers(s, end_of(s))["computing"] for s in (seen, ours)]
        near = 0.25 if batch == BATCHES[0] else 0.05
        assert computing[1] == pytest.approx(computing[0], rel=near)
        assert end_of(ours) == pytest.approx(end_of(seen), rel=0.25)
        if batch == BATCHES[0]:
            python = [end for _, lane, _, end in seen if lane == 0]
            assert ours[0][3] == pytest.approx(python[0])
    assert 2_000 < step_schedule.TRACE.stat().st_size < 20_000
