"""What `make house` counts, and what must not grow."""

from __future__ import annotations

from tests import house

TEXT = '''"""A docstring
of two lines."""

# a comment
X = 1  # another
"""Said of X."""


def f():
    """Says."""
    return (
        X
    )
'''


def test_comments_docstrings_and_blank_lines_are_no_code() -> None:
    assert house.lines_of_code(TEXT) == 5


def test_a_public_class_name_stands_once() -> None:
    assert house.twice(house.public_classes()) == {}


def test_few_module_names_stand_twice() -> None:
    assert len(house.twice(house.module_names())) <= 11


def test_a_worker_decides_in_one_place() -> None:
    assert house.worker_protocols() == ["feedq/worker/core.py"]


def test_a_record_and_a_claim_pass_through_few_files() -> None:
    """`tests/contract/test_house_paths.py` traces one of each, and finds no others."""
    assert (len(house.RECORD_PATH), len(house.CLAIM_PATH)) == (9, 8)
    assert sum((house.PACKAGE / name).read_text().count("\n") for name in house.RECORD_PATH) <= 2_400
