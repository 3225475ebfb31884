"""Size budgets: the core stays small, files and functions stay readable. Run by `make check`.

The core is counted in lines of code, because what is written to explain it should cost nothing; files and functions are
counted whole, because they are read whole.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "srl"
NOT_CORE = ("algorithms", "models", "envs", "recipes")
CORE_LINES, FILE_LINES, FUNCTION_LINES, USUAL_LINES, USUAL_SHARE = 7500, 400, 60, 30, 0.9


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file with its length in lines, docstring left out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            assert node.end_lineno is not None
            yield f"{path.relative_to(ROOT.parent)}:{node.name}", node.end_lineno - body[0].lineno + 1


SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(path: Path) -> int:
    """Lines that do something: no comments, docstrings or blank lines."""
    text = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for t in tokens if t.type not in SILENT for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main() -> int:
    """Print what is over budget; the exit code says whether anything is."""
    sizes = {path: len(path.read_text().splitlines()) for path in sorted(ROOT.rglob("*.py"))}
    core = sum(code_lines(path) for path in sizes if path.relative_to(ROOT).parts[0] not in NOT_CORE)
    lengths = dict(pair for path in sizes for pair in functions(path))
    usual = sum(length <= USUAL_LINES for length in lengths.values()) / len(lengths)
    problems = [f"{path}: {lines} lines, at most {FILE_LINES}" for path, lines in sizes.items() if lines > FILE_LINES]
    problems += [
        f"{name}: {length} lines, at most {FUNCTION_LINES}"
        for name, length in lengths.items()
        if length > FUNCTION_LINES
    ]
    if core > CORE_LINES:
        problems.append(f"core: {core} lines of code, at most {CORE_LINES}")
    if usual < USUAL_SHARE:
        problems.append(f"only {usual:.0%} of functions have at most {USUAL_LINES} lines; {USUAL_SHARE:.0%} should")
    print(
        "\n".join(problems)
        or f"budgets hold: core {core} lines of code, {usual:.1%} of functions at most {USUAL_LINES} lines"
    )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
