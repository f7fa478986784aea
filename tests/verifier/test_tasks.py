"""Local tasks ask what the official ones ask, to the letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from lm_eval.tasks import TaskManager
from lm_eval.utils import hash_string

from headprune.errors import ExitCode, HeadpruneError
from headprune.verifier.announce import announce
from headprune.verifier.quiet import quiet
from headprune.verifier.tasks import KINDS, OFFICIAL, LoadedTask, check_names, load_tasks

from .tiny import write_jsonl

DATES = ["2020-01-01", "2021-02-03 04:05:06", "1999-12-31", "2024-02-29"]


def mmlu_rows(subject: str, count: int) -> list[dict[str, Any]]:
    """Questions with what a careless reader would change: space, lines, dates, numbers, empties."""
    texts = [
        "  padded \n",
        "1.50",
        "2020-01-01",
        "naïve ∑ {{braces}}",
        "line\r\nbreak",
        "None",
        "a",
    ]
    return [
        {
            "subject": subject,
            "question": texts[number % len(texts)],
            "choices": DATES if number % 2 else [" a", "", "null", str(number)],
            "answer": number % 4,
        }
        for number in range(count)
    ]


def piqa_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"goal": f"goal {n} ", "sol1": f" way {n}", "sol2": f"way\n{n}", "label": n % 2}
        for n in range(count)
    ]


def winogrande_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"sentence": f"The {n} did not fit because the _ was big.", "option1": f"box {n}",
         "option2": f"bag {n}", "answer": str(1 + n % 2)}
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    subjects = ("anatomy", "abstract_algebra")
    for split, count in (("dev", 5), ("test", 8)):
        rows = [row for subject in subjects for row in mmlu_rows(subject, count)]
        write_jsonl(tmp_path / "mmlu" / f"{split}.jsonl", rows)
        write_jsonl(tmp_path / "demo" / f"{split}.jsonl", mmlu_rows("lost_words", count))
    write_jsonl(tmp_path / "piqa" / "validation.jsonl", piqa_rows(9))
    write_jsonl(tmp_path / "winogrande" / "validation.jsonl", winogrande_rows(9))
    return tmp_path


def official(path: Path, splits: dict[str, list[dict[str, Any]]]) -> Any:
    """The harness's own task, its download replaced by rows in memory."""
    rows = DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})
    manager = TaskManager(include_path=str(path.parent), include_defaults=False)
    name = next(n for n, entry in manager.task_index.items() if entry.yaml_path == path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.load_dataset", lambda **_: rows)
        return manager.load([name])["tasks"][name]


def built(task: Any, shots: int) -> list[tuple[Any, ...]]:
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=3)
    task.build_all_requests()
    return [
        (i.doc_id, i.idx, hash_string(i.args[0]), *i.args, task.doc_to_target(i.doc))
        for i in task.instances
    ]


@pytest.mark.parametrize("shots", [0, 5])
def test_mmlu_prompts_are_the_official_ones(data: Path, shots: int) -> None:
    with load_tasks(("mmlu",), data, shots) as (task,):
        assert list(task.parts) == ["abstract_algebra", "anatomy"]
        for subject, part in task.parts.items():
            theirs = official(
                KINDS["mmlu"].folder / f"mmlu_{subject}.yaml",
                {"dev": mmlu_rows(subject, 5), "test": mmlu_rows(subject, 8)},
            )
            with quiet():
                assert built(part, shots) == built(theirs, shots)


@pytest.mark.parametrize(("name", "rows"), [("piqa", piqa_rows), ("winogrande", winogrande_rows)])
@pytest.mark.parametrize("shots", [0, 3])
def test_other_prompts_are_the_official_ones(data: Path, name: str, rows: Any, shots: int) -> None:
    write_jsonl(data / name / "train.jsonl", rows(30))
    kind = KINDS[name]
    with load_tasks((name,), data, shots) as (task,):
        assert task.shots_from == ("train" if shots else "none")
        theirs = official(kind.folder / kind.definition, {"train": rows(30), "validation": rows(9)})
        with quiet():
            assert built(task.parts[name], shots) == built(theirs, shots)


def test_shots_without_a_train_file_come_from_the_other_questions(data: Path) -> None:
    with load_tasks(("piqa",), data, 3) as (task,), quiet():
        assert task.shots_from == "validation"
        for _, _, _, context, _, _ in built(task.parts["piqa"], 3):
            blocks = context.split("\n\n")
            assert len(blocks) == 4
            goal = blocks[-1].split("\n")[0]
            assert all(goal not in block for block in blocks[:-1])
    refused = pytest.raises(HeadpruneError, match="has 8 examples for few-shot prompts, expected 9")
    with refused, load_tasks(("piqa",), data, 9):
        pass


def test_demo_asks_like_mmlu(data: Path) -> None:
    with load_tasks(("demo",), data, 2) as (task,), quiet():
        prompts = [row[3] for row in built(task.parts["lost_words"], 2)]
    first = "The following are multiple choice questions (with answers) about lost words.\n\n"
    assert all(prompt.startswith(first) for prompt in prompts)
    with load_tasks(("mmlu",), data, 2) as (task,), quiet():
        theirs = [row[3] for row in built(task.parts["anatomy"], 2)]
    assert [p.removeprefix(first) for p in prompts] == [p.split("\n\n", 1)[1] for p in theirs]


def test_texts_that_look_like_dates_or_numbers_stay_texts(tmp_path: Path) -> None:
    rows = [
        {"subject": "s", "question": question, "choices": DATES, "answer": 1}
        for question in ("2020-01-01", "2020-01-02 03:04:05")
    ]
    write_jsonl(tmp_path / "demo" / "test.jsonl", rows)
    with load_tasks(("demo",), tmp_path, 0) as (task,), quiet():
        prompts = [row[3] for row in built(task.parts["s"], 0)]
    assert prompts[0].split("\n\n")[1] == (
        "2020-01-01\nA. 2020-01-01\nB. 2021-02-03 04:05:06\nC. 1999-12-31\nD. 2024-02-29\nAnswer:"
    )


def test_every_official_subject_is_known() -> None:
    names = [path.stem for path in KINDS["mmlu"].folder.glob("mmlu_*.yaml")]
    assert len(names) == 57


def test_trimmed_files_are_not_the_whole_task(data: Path) -> None:
    with load_tasks(("mmlu", "demo"), data, 0) as tasks:
        mmlu, demo = tasks
    assert not mmlu.is_complete(16)
    assert mmlu.is_complete(14042)
    assert demo.is_complete(8)
    assert not demo.is_complete(7)
    assert "16 of 14,042 questions" in announce(mmlu, 16, 1.0)
    assert announce(demo, 8, 1.0) == "demo: all 8 questions, the observed difference decides"


def announced(questions: int, margin: float) -> str:
    task = LoadedTask(name="mmlu", kind=KINDS["mmlu"], parts={}, shots_from="dev")
    return announce(task, questions, margin)


def test_announcement_says_what_a_sample_can_show() -> None:
    assert "too few to certify a margin of 1 points: 268 are" in announced(267, 1.0)
    assert "about 1,3" in announced(600, 1.0)
    assert announced(3000, 1.0) == "mmlu: 3,000 of 14,042 questions, a confidence bound decides"
    assert "no sample can certify a margin of 0" in announced(3000, 0.0)


def test_nothing_is_left_behind(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with load_tasks(("demo",), data, 0):
        assert any(scratch.iterdir())
    assert not any(scratch.iterdir())


def test_changed_files_are_read_anew(data: Path) -> None:
    with load_tasks(("piqa",), data, 0) as (task,):
        assert task.parts["piqa"].eval_docs[0]["goal"] == "goal 0 "
    changed = [{**row, "goal": row["goal"].upper()} for row in piqa_rows(9)]
    write_jsonl(data / "piqa" / "validation.jsonl", changed)
    with load_tasks(("piqa",), data, 0) as (task,):
        assert task.parts["piqa"].eval_docs[0]["goal"] == "GOAL 0 "


def spoil(path: Path, line: int, text: str) -> None:
    lines = path.read_text("utf-8").splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines), "utf-8")


GOOD = {"subject": "anatomy", "question": "q", "choices": list("abcd"), "answer": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 3 is not JSON"),
        ("[1]", "line 3: expected a JSON object"),
        (json.dumps({**GOOD, "answer": 4}), "line 3: the task cannot use answer = 4"),
        (json.dumps({**GOOD, "answer": "B"}), 'line 3: the task cannot use answer = "B"'),
        (json.dumps({**GOOD, "answer": True}), "line 3: the task cannot use answer = true"),
        (json.dumps({**GOOD, "choices": list("abc")}), "line 3: the task cannot use choices"),
        (json.dumps({**GOOD, "question": None}), "line 3: the task cannot use question = null"),
        (json.dumps({"question": "q", "choices": [], "answer": 0}), "line 3: no field 'subject'"),
        (json.dumps({**GOOD, "subject": "knitting"}), "'knitting' is not a subject of mmlu"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(data: Path, text: str, message: str) -> None:
    spoil(data / "mmlu" / "test.jsonl", 3, text)
    with pytest.raises(HeadpruneError) as caught, load_tasks(("mmlu",), data, 0):
        pass
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code is ExitCode.USAGE


def test_missing_examples_are_named(data: Path) -> None:
    write_jsonl(data / "mmlu" / "dev.jsonl", mmlu_rows("anatomy", 5))
    refused = pytest.raises(HeadpruneError, match=r"dev.jsonl has no rows of 'abstract_algebra'")
    with refused, load_tasks(("mmlu",), data, 2):
        pass
    (data / "mmlu" / "dev.jsonl").unlink()
    with load_tasks(("mmlu",), data, 0):
        pass
    with (
        pytest.raises(HeadpruneError, match=r"no file .*dev.jsonl"),
        load_tasks(("mmlu",), data, 2),
    ):
        pass
    (data / "mmlu" / "test.jsonl").write_text("\n", "utf-8")
    with pytest.raises(HeadpruneError, match="has no rows"), load_tasks(("mmlu",), data, 0):
        pass


def test_unknown_names() -> None:
    with pytest.raises(HeadpruneError) as caught:
        check_names(("winogrand",))
    assert caught.value.message == (
        "Unknown task 'winogrand'. Did you mean 'winogrande'? "
        "Available: mmlu, piqa, winogrande, demo"
    )
    with pytest.raises(HeadpruneError, match=r"^Unknown task 'xyz'\. Available"):
        check_names(("xyz",))
    assert all((OFFICIAL / name).is_dir() for name in ("mmlu", "piqa", "winogrande"))
