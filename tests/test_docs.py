"""The documentation is true: its commands run, its Python runs, its links lead somewhere, its names exist.

Commands are the lines of ```bash blocks, and those after "$ " in ```console blocks. They run page by page, in one
temporary folder per page, together with the page's titled Python blocks as files and whatever `examples` they quote.
One rule shortens what trains: `srl train` stops after STEPS steps, and `srl resume` after twice as many. Commands that
install, open a window or repeat the tests are only checked to exist.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from srl import cli
from srl.metrics import read_rows
from srl.runs import Run
from srl.workers.trainer import Progress

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
STEPS = 4000
NOT_RUN = {"make", "pip"}
RECIPES = ("ppo", "appo", "impala")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


def commands_of(page: Path) -> list[str]:
    """Every command of a page, in order."""
    commands: list[str] = []
    for block in blocks_of(page):
        lines = block.text.splitlines()
        if block.language == "console":
            commands += [line[2:] for line in lines if line.startswith("$ ")]
        elif block.language == "bash":
            commands += [line for line in lines if line and not line.startswith("#")]
    return commands


def shortened(command: str) -> str:
    words = [word for word in shlex.split(command) if "=" not in word or word.startswith("--")]
    if words[:2] == ["srl", "train"]:
        return f"{command} --set stop.steps={STEPS} --set stop.reward=none --quiet"
    if words[:2] == ["srl", "resume"]:
        return re.sub(r"--steps \S+", f"--steps {2 * STEPS}", command)
    return command


def opens_a_window(command: str) -> bool:
    return command.startswith("srl play") and "--video" not in command


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # One thread each, so that evaluation does not fight the tests beside it for cores.
    return {**os.environ, "PATH": path, "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}


def run(command: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_says_runs(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.language == "python" and block.title:
            (tmp_path / block.title).write_text(block.text)
    snippets = [block.text for block in blocks_of(page) if block.language == "python" and not block.title]
    if snippets:
        (tmp_path / "snippets.py").write_text("\n".join(snippets))
        run("python snippets.py", tmp_path)
    for command in commands_of(page):
        if command.split()[0] not in NOT_RUN and not opens_a_window(command):
            run(shortened(command), tmp_path)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    run(f"python {shlex.quote(str(example))}", tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_examples_are_the_files(page: Path) -> None:
    for block in blocks_of(page):
        example = ROOT / "examples" / block.title
        if block.title.endswith(".py") and example.exists():
            assert block.text == example.read_text(), f"{page.name} quotes another {block.title}"


def test_every_example_is_in_the_documentation() -> None:
    words = "".join(page.read_text() for page in PAGES)
    assert [example.name for example in EXAMPLES if example.name not in words] == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = {command.split()[1] for command in commands_of(page) if command.startswith("make ")}
        named |= set(re.findall(r"`make ([\w-]+)`", page.read_text()))
        assert named <= targets, f"{page.name}: {named - targets}"


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    for path in re.findall(r"`((?:srl|tests|docs|examples)/[\w./-]+)`", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_the_tree_in_the_readme_is_the_repository() -> None:
    (tree,) = [block for block in blocks_of(ROOT / "README.md") if block.title == "tree"]
    named = [line.split()[0] for line in tree.text.splitlines()]
    inside = named[1 : named.index("examples/")]
    for name in named:
        assert (ROOT / "srl" / name if name in inside else ROOT / name).exists(), name
    packages = {f"{path.parent.name}/" for path in (ROOT / "srl").glob("*/__init__.py")}
    modules = {path.name for path in (ROOT / "srl").glob("*.py")} - {"__init__.py"}
    assert packages | modules == set(inside)


def help_of(*words: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
    return said.getvalue()


def known_flags() -> set[str]:
    """Flags of every verb and built-in recipe, and of the recipes that the pages define."""
    helps = [help_of(verb) for verb in cli.DESCRIPTIONS] + [help_of("train", recipe) for recipe in RECIPES]
    known = set(re.findall(r"--[a-z][a-z-]*", " ".join(helps)))
    for page in PAGES:
        for block in blocks_of(page):
            if block.language == "python" and block.title:
                known |= parameters_of(block.text)
    return known


def parameters_of(source: str) -> set[str]:
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    names = [arg.arg for node in functions for arg in (*node.args.args, *node.args.kwonlyargs)]
    return {"--" + name.replace("_", "-") for name in names}


def code_of(page: Path) -> list[str]:
    """Commands, and what stands between backticks."""
    return [*commands_of(page), *re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text()))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_verbs_and_flags_exist(page: Path) -> None:
    # A misspelling in the tables of mistakes, and the flags of other programs.
    flags = known_flags() | {"--lenght", "--no-filename", "--help"}
    for code in code_of(page):
        for verb in re.findall(r"(?:^|\s)srl ([a-z]+)\b", code):
            assert verb in cli.DESCRIPTIONS, f"{page.name}: {code}"
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code):
            assert flag.replace("_", "-") in flags, f"{page.name}: {flag} in {code}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    run("srl train ppo --steps 12000 --eval-every 10000 --act shm --name ppo --quiet", folder)
    run("srl train impala --steps 12000 --name impala --quiet", folder)
    return [Run(folder / "runs" / name) for name in ("ppo", "impala")]


def test_every_metric_is_documented(runs: list[Run]) -> None:
    names = {name for one in runs for row in read_rows(one.metrics) for name in row}
    assert {"eval/mean_reward", "train/approx_kl", "train/rho"} <= names
    assert missing(names) == set()


@pytest.mark.parametrize("kind", ["actor", "policy", "trainer", "evaluator", "relay"])
def test_every_phase_is_documented(kind: str) -> None:
    source = (ROOT / "srl" / "workers" / f"{kind}.py").read_text()
    phases = re.findall(r'lap\("([\w-]+)"\)|"(wait-[\w-]+)"', source)
    assert len(phases) >= 2
    assert missing({f"perf/{kind}/{lap or wait}" for lap, wait in phases}) == set()


def test_every_field_of_the_summary_is_documented(runs: list[Run]) -> None:
    names = {name for one in runs for name in one.summary()}
    assert {field for field in Progress().__dict__ if field not in ("returns", "lengths", "best")} <= names
    assert missing(names) == set()


def missing(names: set[str]) -> set[str]:
    documented = set(re.findall(r"`([\w/-]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    return names - documented
