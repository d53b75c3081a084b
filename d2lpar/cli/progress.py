"""TODO: one idea."""

from __future__ import annotations

import logging
import signal
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from d2lpar.records.kinds import (
    FrameRecord,
    PointRecord,
    PrecisionRecord,
    StepRecord,
    TimingRecord,
)

log = logging.getLogger("d2lpar")


def _result_line(run_) -> str:
    from d2lpar.records.kinds import timed_epochs
    from d2lpar.records.precision_table import merged
    from d2lpar.records.summary import summarize

    header = run_.header
    if run_.of(TimingRecord):
        result = f"{len(run_.of(TimingRecord))} timings"
    elif run_.of(StepRecord):
        fastest = max(
            run_.of(StepRecord), key=lambda s: s.global_batch_size / median(s.seconds)
        )
        result = (
            f"up to {fastest.global_batch_size / median(fastest.seconds):,.0f} "
            f"samples/s, at a batch of {fastest.global_batch_size:,}"
        )
    elif run_.of(PointRecord):
        last = run_.of(PointRecord)[-1]
        result = f"residual: {last.residual_norm:.6g}, {last.seconds:.3g} sec"
    elif run_.of(PrecisionRecord):
        result = "; ".join(
            f"{row.precision} {row.test_acc:.3f}, {row.images_per_sec:,.0f} images/s"
            for row in merged(run_.of(PrecisionRecord))
            if row.supported and row.weights == "trained"
        )
    else:
        seconds = summarize([epoch.seconds for epoch in timed_epochs(run_)])
        learnt = (
            f"quality {run_.of(FrameRecord)[0].quality:.3f} to {run_.of(FrameRecord)[-1].quality:.3f}"
            if run_.of(FrameRecord)
            else f"test acc: {run_.epochs[-1].test_acc:.2f}"
        )
        result = f"{learnt}, {seconds} sec/epoch"
    return (
        f"{header.variant + ': ' if header.variant else ''}{result} "
        f"on {', '.join(header.devices)}"
        + (" [synthetic data]" if header.synthetic else "")
    )


def _show_progress(jobs: list, repeats: int, out: Path) -> list:
    """Measure the jobs under a progress bar; the finished runs, in the jobs' order."""
    from d2lpar.records import files
    from d2lpar.records.kinds import (
        EPOCHS,
        AllReduceRecord,
        Header,
        PointRecord,
        ScaledEpoch,
        StepRecord,
        TimingRecord,
    )
    from d2lpar.runs import sweep

    counted = (
        *EPOCHS, PointRecord, TimingRecord, StepRecord, AllReduceRecord, ScaledEpoch,
    )  # fmt: skip
    headers: dict[str, Header] = {}
    total = repeats * sum(job.settings.get("num_epochs", 0) for job in jobs)
    if jobs[0].variant:  # solvers stop where they have converged
        total = None
    unit = "line" if jobs[0].variant else "epoch" if total else "timing"
    with tqdm(total=total or None, unit=unit, dynamic_ncols=True, leave=False) as bar:
        with (
            logging_redirect_tqdm([log]),
            _terminate_like_ctrl_c(),
            closing(sweep.sweep(jobs, repeats, out)) as items,
        ):
            for item in items:
                if isinstance(item, Header):
                    headers[files.run_name(item)] = item
                    words = (
                        item.chapter,
                        item.variant,
                        f"{item.num_devices} device(s)",
                    )
                    bar.set_description(", ".join(filter(None, words)))
                    continue
                if not isinstance(item, counted):
                    continue
                bar.set_postfix(_progress_of(item))
                bar.leave = True  # but an error before any epoch stays one line
                bar.update()
    return sweep.finished_runs(list(headers.values()), out)


def _progress_of(line) -> dict[str, str]:
    """What the bar shows of a record's line."""
    from d2lpar.records.kinds import (
        AllReduceRecord,
        GanEpochRecord,
        PointRecord,
        ScaledEpoch,
        StepRecord,
        TimingRecord,
    )
    from d2lpar.records.summary import summarize

    if isinstance(line, TimingRecord):
        ms = 1e3 * summarize(line.seconds).median
        return {line.operation: f"{line.library}, {line.form}: {ms:.3g} ms"}
    if isinstance(line, StepRecord):
        ms = 1e3 * median(line.seconds)
        return {"batch": str(line.global_batch_size), "step": f"{ms:.3g} ms"}
    if isinstance(line, AllReduceRecord):
        return {"all-reduce": f"{line.variant}, {line.num_bytes:,} bytes"}
    if isinstance(line, ScaledEpoch):
        return {"batch": str(line.global_batch_size), "acc": f"{line.test_acc}"}
    if isinstance(line, PointRecord):
        return {"residual": f"{line.residual_norm:.4g}"}
    if isinstance(line, GanEpochRecord):
        shown = {"D": f"{line.d_loss:.3f}", "G": f"{line.g_loss:.3f}"}
    else:
        shown = {"loss": f"{line.train_loss:.3f}", "acc": f"{line.test_acc:.3f}"}
    return {**shown, "samples_per_sec": f"{line.samples_per_sec:,.0f}"}


@contextmanager
def _terminate_like_ctrl_c():
    """SIGTERM ends a sweep as Ctrl-C does: the measuring process with it."""

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
