"""TODO: one idea."""

from __future__ import annotations

from pathlib import Path

from d2lpar.figures import page
from d2lpar.records import summary
from d2lpar.runs.in_turn import LIBRARIES, Arm, absent, write


def report(
    header: dict, arms: dict[str, Arm], lines: list[dict], seconds: dict, out: Path
) -> None:
    """Write <benchmark>.jsonl, .png and .svg, and print a line an arm."""
    write(header, lines, out)
    for arm in arms:
        text = summary.summarize(seconds[arm]) if arm in seconds else "not measured"
        print(f"{arm:52}", text, "s")
    draw(header, {name: arm.is_peer for name, arm in arms.items()}, lines, seconds, out)


def draw(
    header: dict,
    is_peer: dict[str, bool],
    lines: list[dict],
    seconds: dict[str, list[float]],
    out: Path,
) -> list[Path]:
    """<benchmark>.png and .svg: a bar an arm, its quartiles, every sample a dot."""
    why = absent(lines)
    names = list(is_peer)
    on = f"{header['cpu_model']}, {header['cores']} cores"
    if header.get("on_gpus"):
        on = f"{', '.join(header['on_gpus'])}; host: {on}"
    versions = header["versions"]
    libraries = ", ".join(f"{name} {versions[name]}" for name in LIBRARIES[1:])
    commit = (header["git_commit"] or "not recorded")[:7]
    with page.plain_style():
        from matplotlib.figure import Figure

        width = 7.2
        figure = Figure(figsize=(width, 0.47 * len(names) + 1.9), layout="constrained")
        beside = ": ours and the peers" if any(is_peer.values()) else ""
        title = f"Seconds for {header['work']}{beside}"
        figure.set_label(title)
        figure.suptitle(page.wrap(title, width - 0.3, page.LARGE)[0], x=0.02, ha="left")
        caption = (
            f"Bars: medians{' (blue: ours, grey: peers)' if beside else ''}; whiskers: "
            "quartiles; dots: every sample that counts. "
            f"Hardware: {on}. Versions: {libraries}. "
            f"{header['date'][:10]}, commit {commit}."
        )
        text, _ = page.wrap(caption, width - 0.3, page.SMALL)
        figure.supxlabel(text, x=0.02, ha="left", size=page.SMALL)
        axes = figure.subplots()
        longest = max(
            [1e-9, *(max(seconds[name]) for name in names if name in seconds)]
        )
        for row, name in enumerate(names):
            if name not in seconds:
                words = f"{name}: {why.get(name, 'not measured')}"
                text, _ = page.wrap(words, width - 0.6, page.SMALL)
                axes.text(0.005 * longest, row, text, va="center", size=page.SMALL)
                continue
            s = summary.summarize(seconds[name])
            color = "0.7" if is_peer[name] else page.COLORS[6]
            whiskers = [[s.median - s.q1], [s.q3 - s.median]]
            axes.barh(row + 0.2, s.median, 0.36, xerr=whiskers, color=color, capsize=3)
            axes.plot(seconds[name], [row + 0.2] * s.n, "k.", ms=3)
            text = f"{name}: {s.median:.3g} s (n={s.n})"
            axes.text(0.005 * longest, row - 0.2, text, va="center", size=page.NORMAL)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 1.05 * longest)
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("seconds")
        return page.save({header["benchmark"]: figure}, out)
