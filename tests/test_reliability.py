"""Every promise of docs/reliability.md has a test that exists, and every way to fail in the design has a promise."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
PAGE = (ROOT.parent / "docs" / "reliability.md").read_text()
ROWS = [line for line in PAGE.partition("## Exact resume")[0].splitlines() if line.startswith("| ")][1:]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_the_test_of_a_promise_exists(file: str, name: str) -> None:
    assert name in functions(ROOT / file)


def test_every_promise_has_a_test() -> None:
    without = [row for row in ROWS if not re.search(r"`[\w/]+\.py::\w+` *[,|]", row)]
    assert [row.split("|")[1].strip() for row in without] == []
    assert len(set(NAMED)) > 30


@pytest.mark.parametrize(
    "what",
    ["raises", "hangs", "aborts", "dies", "stalls", "a trainer dies", "a host disappears", "control dies", "more than"],
)
def test_what_the_design_names_is_there(what: str) -> None:
    assert any(what in row.split("|")[1] for row in ROWS)
