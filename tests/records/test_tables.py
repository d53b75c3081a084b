"""Tables as plain text: alignment, and nothing lost."""

from d2lpar.records.tables import plain_table


def test_numbers_are_aligned_to_the_right_and_words_to_the_left():
    rows = [["cgls", "0.5", "12.0"], ["averaging", "12.25", "never"]]
    assert plain_table(["method", "s", "to 0.75"], rows).splitlines() == [
        "method         s  to 0.75",
        "cgls         0.5     12.0",
        "averaging  12.25    never",
    ]


def test_a_column_without_a_measured_number_is_aligned_like_numbers():
    table = plain_table(["name", "nccl"], [["a", "-"]])
    assert table.splitlines()[1] == "a        -"


def test_a_table_without_rows_is_its_header():
    assert plain_table(["a", "bb"], []) == "a  bb"


def test_a_table_without_names_has_no_header():
    assert plain_table([], [["batch", "3.1 MiB"], ["all", "10 MiB"]]).splitlines() == [
        "batch  3.1 MiB",
        "all     10 MiB",
    ]
