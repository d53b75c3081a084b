"""Records of any content: `plot` and `compare` draw them, or say in a line why not."""

import dataclasses
import json
import os
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from d2lpar.cli import main
from d2lpar.datasets import face_images, punks
from d2lpar.errors import D2lparError
from d2lpar.records import fields, files, kinds

PICTURE = face_images.to_png(face_images.sheet(punks.synthetic_punks(1, 0), 1))
SHEET = face_images.to_png(face_images.sheet(punks.synthetic_punks(5, 0), 5))

TEXT = st.text(max_size=12).filter(lambda text: not fields.not_text(text))
BY_TYPE = {
    "str": TEXT,
    "bool": st.booleans(),
    "dict": st.dictionaries(
        st.sampled_from(["build", "cuda", "tf32", "peer_access", "deterministic"]),
        st.none() | st.booleans() | TEXT,
    ),
    "Whole": st.integers(0, 50) | st.integers(0, 2**63 - 1),
    "Number": st.integers(1, 50) | st.integers(1, 2**63 - 1),
    "Real": st.floats(-3, 3) | st.floats(-1e200, 1e200),
    "Amount": st.floats(0, 3) | st.floats(0, 1e200),
    "Positive": st.floats(0.1, 9) | st.floats(1e-12, 1e15),
    "Share": st.floats(0, 1),
    "Name": st.sampled_from(("a", "book", "x+y=1", "averaging", "cgls")),
    "Variant": st.sampled_from(("", "averaging", "concise", "d2l", "ddp")),
    "Date": st.sampled_from(("2024-01-31", "2024-01-31T12:00:00+00:00")),
    "Picture": st.just(PICTURE),
    "DeviceKind": st.sampled_from(("cpu", "gpu")),
    "Resumed": st.sampled_from(("elsewhere", "here")),
    "Weights": st.sampled_from(("trained", "stretched", "equalised")),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


def of_type(annotation):
    """What an annotation admits, from everyday values to the ends of its range."""
    name = annotation.partition(" = ")[0]
    if name.endswith(" | None"):
        return st.none() | of_type(name.removesuffix(" | None"))
    if name.startswith("list["):
        return st.lists(of_type(name[5:-1]), max_size=4)
    if name.startswith("dict["):
        return st.dictionaries(TEXT, of_type(name[10:-1]), max_size=3)
    if name in fields.KEYS:
        known = {key: of_type(kind) for key, kind in fields.KEYS[name].items()}
        return st.fixed_dictionaries({}, optional=known)
    return BY_TYPE[name]


@st.composite
def lines_of(draw, kind, **given_values):
    """A line of a kind whose fields all fit."""
    values = {
        f.name: draw(given_values.get(f.name, of_type(f.type)))
        for f in dataclasses.fields(kind)
        if f.name != "repeat"
    }
    return kind(**values)


ONE_TO_4 = st.lists(of_type("Positive"), min_size=1, max_size=4)
PARTS = st.just({}) | st.fixed_dictionaries(
    {part: of_type("Real") for part in kinds.PARTS}
)
FITTING = {
    kinds.StepRecord: {
        **dict.fromkeys(("seconds", "without_overlap"), ONE_TO_4),
        "without_python": st.lists(of_type("Amount"), min_size=1, max_size=4),
        "parts": PARTS,
        "global_batch_size": st.sampled_from((64, 128, 1024)) | of_type("Number"),
    },
    kinds.AllReduceRecord: {
        "variant": st.sampled_from(("book", "kvstore local")),
        "num_arrays": st.sampled_from((1, 8)),
    },
    kinds.PrecisionRecord: {
        "precision": st.sampled_from(kinds.PRECISIONS),
        "why_not": st.sampled_from(("", "no")),
    },
    kinds.TimingRecord: {
        "operation": st.sampled_from(
            (
                "x2",
                "sum",
                "trig",
                "product",
                "copy",
                "all-reduce",
                "host to device",
                "device to device",
            )
        ),
        "library": st.sampled_from(("MXNet", "NumPy")),
        "form": st.sampled_from(("as written", "dot", "float64")),
        **dict.fromkeys(("seconds", "naive_seconds"), ONE_TO_4),
    },
    kinds.FrameRecord: {
        "samples": st.none() | st.just(SHEET),
        "nearest": st.just([0, 1, 2, 3, 4]),
        "distances": st.just([0.1, 0.2, 0.3, 0.4, 1e200]),
    },
    kinds.ArmSample: {"arm": st.sampled_from("ab"), "work": st.sampled_from("xy")},
    kinds.ArmAbsent: {"arm": st.sampled_from("ab"), "work": st.sampled_from("xy")},
}
TOGETHER = (  # the kinds of a record's lines
    (kinds.EpochRecord, kinds.Sample),
    (kinds.GanEpochRecord, kinds.FrameRecord),
    (kinds.PointRecord,),
    (kinds.StepRecord, kinds.AllReduceRecord, kinds.ScaledEpoch),
    (kinds.PrecisionRecord,),
    (kinds.TimingRecord,),
    (kinds.ArmSample, kinds.ArmAbsent),
)


@st.composite
def records(draw, together):
    """The text of a record whose lines are of these kinds and fit, each by itself."""
    arms = together[0] in kinds.ARMS
    names = draw(st.lists(TEXT, min_size=1, max_size=3))
    counted = {"num_devices": st.just(len(names)), "devices": st.just(names)}
    header = draw(
        lines_of(kinds.BenchmarkHeader) if arms else lines_of(kinds.Header, **counted)
    )
    fitting = {**FITTING, kinds.PointRecord: {
        "device_residual_norms": st.lists(
            of_type("Amount"), min_size=len(names), max_size=len(names)
        )
    }}  # fmt: skip
    for kind in (kinds.StepRecord, kinds.AllReduceRecord, kinds.ScaledEpoch):
        some_devices = {"num_devices": st.integers(0, len(names))}
        fitting[kind] = {**fitting.get(kind, {}), **some_devices}
    lines = []
    for kind in together:
        some = draw(st.lists(lines_of(kind, **fitting.get(kind, {})), max_size=4))
        if hasattr(kind, "resumed") or kind is kinds.FrameRecord:
            some = sorted({line.epoch: line for line in some}.values(),
                          key=lambda line: line.epoch)  # fmt: skip
        lines += some
    return [json.loads(files.to_line(line)) for line in (header, *lines)]


def command(*words):
    """What `d2lpar` does in this process; an error of ours is an answer."""
    try:
        main.d2lpar.main([*map(str, words)], "d2lpar", standalone_mode=False)
    except D2lparError as error:
        assert "\n" not in str(error), error
        return str(error)


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def draw_and_compare(folder, lines):
    path = folder / "record.jsonl"
    write(path, lines)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Matplotlib, on glyphs and equal limits
        answers = [command("plot", path, "--out", folder / "out")]
        for how in ("--json", "--csv", f"--out={folder / 'out'}"):
            answers.append(command("compare", path, path, how))
    assert {entry.name for entry in folder.iterdir()} <= {"record.jsonl", "out"}
    return answers


@pytest.fixture(autouse=True, scope="module")
def layout_alone():
    """Pictures are laid out, which finds what cannot be drawn, but not rendered."""

    def lay_out(figure, png, svg):
        figure.draw_without_rendering()
        png.touch(), svg.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("d2lpar.figures.page._write", lay_out)
        yield


FUZZ = settings(
    max_examples=int(os.environ.get("D2LPAR_EXAMPLES", 6)),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("together", TOGETHER, ids=lambda all: all[0].kind)
@FUZZ
@given(data=st.data())
def test_what_fits_is_drawn_or_refused_in_a_line(tmp_path_factory, together, data):
    lines = data.draw(records(together))
    draw_and_compare(tmp_path_factory.mktemp("fits"), lines)


@pytest.mark.parametrize("together", TOGETHER, ids=lambda all: all[0].kind)
@FUZZ
@given(data=st.data())
def test_a_value_of_any_kind_is_drawn_or_refused(tmp_path_factory, together, data):
    lines = data.draw(records(together))
    line = data.draw(st.sampled_from(lines))
    key = data.draw(st.sampled_from(sorted(line)))
    line[key] = data.draw(JSON)
    draw_and_compare(tmp_path_factory.mktemp("any"), lines)


HEADER = kinds.Header(
    chapter="a", preset="book", num_devices=1, device_kind="cpu", devices=["cpu(0)"],
    threads_per_device=1, cores=2, cpu_model="A CPU", dataset="d", dataset_sha256="0",
    synthetic=False, seed=0, settings={}, command="c", versions={}, git_commit=None,
    git_dirty=None, date="2026-01-01",
)  # fmt: skip
MEASURED = kinds.PrecisionRecord(
    precision="float32", weights="trained", per_device_batch_size=1, why_not="",
    test_acc=0.5, agreement=1.0, images_per_sec=9.0, images_per_sec_q1=9.0,
    images_per_sec_q3=9.0, n=1, weight_bytes=1,
)  # fmt: skip
REFUSED = kinds.PrecisionRecord("float32", "trained", 1, "no")
NONE_MEASURED = "holds no measured precision"
TIMED = kinds.TimingRecord(
    "x2", "NumPy", "1", "dot", "float32", [5], 8, 9, [0.1], [0.1], [], ["host"], None
)
# What generated records have found: settings of the header, lines, and the refusal.
FOUND = [
    ({}, [TIMED, dataclasses.replace(TIMED, form="as written", threads=2)], None),
    ({"rows": 3}, [kinds.EpochRecord(1, 1.0, 1.0, 1.0, 0.5)], None),
    ({"n_test": None}, [MEASURED], None),
    ({}, [dataclasses.replace(MEASURED, weights="stretched")], NONE_MEASURED),
    ({}, [MEASURED, dataclasses.replace(REFUSED, repeat=1)], NONE_MEASURED),
    ({}, [kinds.StepRecord(8, 1, [0.1], [0.1]),
          kinds.AllReduceRecord("book", 8, 1, [0.1])], None),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "lines", "refusal"), FOUND)
def test_what_was_found_is_drawn_or_refused(tmp_path, settings, lines, refusal):
    header = dataclasses.replace(HEADER, settings=settings)
    record = [json.loads(files.to_line(line)) for line in (header, *lines)]
    answer = draw_and_compare(tmp_path, record)[0]
    assert answer is None if refusal is None else refusal in answer
