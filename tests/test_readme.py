"""Every command of the README and of the commands' own examples runs as written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import click
import pyarrow as pa
import pytest
from pyarrow import parquet

from headprune import cli
from headprune.analyzer.scores import find_scores
from headprune.demo.assets import calibration_file, model_directory, questions_directory
from headprune.errors import ExitCode
from headprune.exporters.score_table import DYNAMIC_SCORES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line for block in BLOCKS for line in block.splitlines() if line.startswith("headprune ")
]
VERDICTS = {ExitCode.OK, ExitCode.FAIL, ExitCode.INCONCLUSIVE, ExitCode.INVALID}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the README assumes: a model, text, and questions laid out as MMLU."""
    shutil.copytree(model_directory(), tmp_path / "my-model")
    lines = calibration_file().read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "text.jsonl").write_text("".join(lines[:20]), "utf-8")
    texts = [json.loads(line)["text"] for line in lines]
    (tmp_path / "notes.txt").write_text("\n\n".join(texts[20:60]), "utf-8")
    parquet.write_table(pa.table({"text": texts[60:70]}), tmp_path / "more.parquet")
    (tmp_path / "data" / "mmlu").mkdir(parents=True)
    for split, count in (("dev", 5), ("test", 40)):
        rows = (questions_directory() / "demo" / f"{split}.jsonl").read_text("utf-8").splitlines()
        relabelled = [{**json.loads(row), "subject": "anatomy"} for row in rows[:count]]
        content = "".join(json.dumps(row) + "\n" for row in relabelled)
        (tmp_path / "data" / "mmlu" / f"{split}.jsonl").write_text(content, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_of_the_readme_runs(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(COMMANDS) >= 7
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        code = cli.run(words)
        err = capsys.readouterr().err
        expected = VERDICTS if words[0] == "verify" else {ExitCode.OK}
        assert code in expected, f"{command}\n{err}"


def test_the_setup_blocks_are_the_first_two() -> None:
    """CI runs these two as they stand."""
    assert "headprune demo" in BLOCKS[0].splitlines()[-1]
    assert "pytest" in BLOCKS[1]
    assert not any(line.startswith("headprune ") for block in BLOCKS[:2] for line in block)


def examples() -> list[tuple[str, list[str]]]:
    return [
        (name, shlex.split(line)[1:])
        for name, command in cli.cli.commands.items()
        for line in (command.epilog or "").splitlines()
        if line.strip().startswith("headprune ")
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    examples(),
    ids=lambda value: value if isinstance(value, str) else " ".join(value[1:]),
)
def test_examples_in_help_use_options_that_exist(name: str, words: list[str]) -> None:
    command = cli.cli.commands[name]
    assert isinstance(command, click.Command)
    with command.make_context(name, list(words[1:])):
        pass


def test_the_readme_knows_every_score() -> None:
    documented = set(re.findall(r"`([a-z_]+)`", README))
    for score in find_scores(["all"]):
        assert score.id.removesuffix("_ln") in documented, score.id
    for name in DYNAMIC_SCORES:
        assert name in documented


def test_the_readme_knows_every_exit_code_and_task() -> None:
    for code in ExitCode:
        assert f"| {int(code)} |" in README
    for task in ("mmlu", "piqa", "winogrande"):
        assert f"| `{task}`" in README


def test_links_into_the_repository_exist() -> None:
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text("utf-8")):
            assert (ROOT / target).exists(), f"{document.name}: {target}"
