"""The list of mutants fits the code. `make mutants` says whether the tests that it names notice them."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.listed import MUTANTS

ROOT = Path(__file__).parents[2]


def test_the_text_of_each_mutant_stands_once_in_the_package() -> None:
    sources = [path for kind in ("py", "sql") for path in sorted(ROOT.glob(f"feedq/**/*.{kind}"))]
    package = "\0".join(path.read_text() for path in sources)
    counts = {mutant.what: package.count(mutant.text) for mutant in MUTANTS}
    assert {what: count for what, count in counts.items() if count != 1} == {}


def test_each_mutant_is_a_change_that_existing_tests_are_to_notice() -> None:
    assert len(MUTANTS) >= 60
    assert len({(mutant.text, mutant.instead) for mutant in MUTANTS}) == len(MUTANTS)
    assert [mutant.what for mutant in MUTANTS if not mutant.tests or mutant.text == mutant.instead] == []
    named = {test.partition("::")[0] for mutant in MUTANTS for test in mutant.tests}
    assert [test for test in named if not (ROOT / test).exists()] == []
