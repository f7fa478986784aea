"""The tasks: lm-evaluation-harness's own definitions, on the hub's data or on local files.

A local task is a YAML file made at run time that includes the official one and replaces nothing
but the place of its data, so prompts, few-shot rule and scoring stay the official ones.
"""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.tasks import TaskManager

from headprune.demo.assets import questions_directory
from headprune.errors import HeadpruneError, first_line
from headprune.verifier.local_data import (
    LAYOUT,
    Check,
    Row,
    are_texts,
    group_by,
    is_blank_sentence,
    is_text,
    one_of,
    read_rows,
    write_rows,
)
from headprune.verifier.model import ShotsFrom
from headprune.verifier.quiet import quiet

OFFICIAL = Path(lm_eval.tasks.__file__).parent
MMLU_TEMPLATE = OFFICIAL / "mmlu" / "default" / "_default_template_yaml"
MMLU_FIELDS: dict[str, Check] = {
    "subject": is_text, "question": is_text, "choices": are_texts(4), "answer": one_of(0, 1, 2, 3),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """How a task is defined and where its data lies.

    Attributes:
        folder: Folder of the official definition.
        definition: File of the official definition, for a task in one part.
        letters: Whether the choices are the same letters in every question.
        questions: Questions of the whole task; None if the data says what the whole is.
        test: Name of the split that is asked.
        shots: Name of the split that few-shot examples come from.
        fields: What every row needs.
        by_subject: Whether the task has one part per value of `subject`.
        packaged: Whether its data comes with the package, not from the hub.
    """

    folder: Path
    letters: bool
    questions: int | None
    test: str
    shots: ShotsFrom
    fields: dict[str, Check]
    definition: str = ""
    by_subject: bool = False
    packaged: bool = False


KINDS = {
    "mmlu": TaskKind(
        folder=MMLU_TEMPLATE.parent, letters=True, questions=14042, test="test", shots="dev",
        fields=MMLU_FIELDS, by_subject=True,
    ),
    "piqa": TaskKind(
        folder=OFFICIAL / "piqa", definition="piqa.yaml", letters=False, questions=1838,
        test="validation", shots="train",
        fields={"goal": is_text, "sol1": is_text, "sol2": is_text, "label": one_of(0, 1)},
    ),
    "winogrande": TaskKind(
        folder=OFFICIAL / "winogrande", definition="default.yaml", letters=False, questions=1267,
        test="validation", shots="train",
        fields={
            "sentence": is_blank_sentence, "option1": is_text, "option2": is_text,
            "answer": one_of("1", "2"),
        },
    ),
    "demo": TaskKind(
        folder=MMLU_TEMPLATE.parent, letters=True, questions=None, test="test", shots="dev",
        fields=MMLU_FIELDS, by_subject=True, packaged=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoadedTask:
    """A task with its data.

    Attributes:
        name: Task name.
        kind: How it is defined.
        parts: lm-evaluation-harness's task objects by subject, sorted; one, named as the task,
            where there are no subjects.
        shots_from: Split that the few-shot examples come from.
    """

    name: str
    kind: TaskKind
    parts: dict[str, Any]
    shots_from: ShotsFrom

    @property
    def sizes(self) -> dict[str, int]:
        """Number of questions per part."""
        return {name: len(part.eval_docs) for name, part in self.parts.items()}

    def is_complete(self, questions: int) -> bool:
        """Whether so many questions are the whole task; trimmed local files are a subset."""
        whole = self.kind.questions
        return questions == (sum(self.sizes.values()) if whole is None else whole)


def check_names(names: Sequence[str]) -> None:
    """Raise for a task that does not exist, or is asked for twice.

    Raises:
        HeadpruneError: The list of tasks is empty or names something else than tasks.
    """
    if not names:
        raise HeadpruneError("no task given", hint="pass --tasks mmlu")
    for name in names:
        if name not in KINDS:
            close = difflib.get_close_matches(name, KINDS, n=1)
            guess = f" Did you mean '{close[0]}'?" if close else ""
            raise HeadpruneError(
                f"Unknown task '{name}'.{guess} Available: {', '.join(KINDS)}",
                hint=f"pass --tasks {close[0] if close else 'mmlu'}",
            )
    if len(set(names)) < len(names):
        raise HeadpruneError(
            f"a task is given twice: {', '.join(names)}",
            hint=f"pass --tasks {','.join(dict.fromkeys(names))}",
        )


@contextmanager
def load_tasks(names: Sequence[str], data: Path | None, shots: int) -> Iterator[list[LoadedTask]]:
    """The tasks with their data, ready for `shots` few-shot examples, while the block runs.

    Args:
        names: Task names.
        data: Folder of local files; None for the hub, and the packaged ones of `demo`.
        shots: Few-shot examples in front of every question.

    Raises:
        HeadpruneError: A task or its data is missing or unusable.
    """
    check_names(names)
    if data is not None and not data.is_dir():
        raise HeadpruneError(f"no folder {data}", hint="pass --data DIR with the tasks' files")
    # The data set cache of local files lies here too: nothing stale is read, nothing stays behind.
    with tempfile.TemporaryDirectory(prefix="headprune-", ignore_cleanup_errors=True) as folder:
        yield [_load(name, data, shots, Path(folder) / name) for name in names]


def _load(name: str, data: Path | None, shots: int, folder: Path) -> LoadedTask:
    kind = KINDS[name]
    if data is None and kind.packaged:
        data = questions_directory()
    shots_from: ShotsFrom = kind.shots if shots else "none"
    if data is None:
        include = kind.folder
    else:
        include = folder
        shots_from = _write_local(name, kind, data / name, shots_from, folder)
    with quiet():
        manager = TaskManager(include_path=str(include), include_defaults=False)
        try:
            loaded = manager.load(_part_names(name, kind, manager))["tasks"]
        except Exception as error:  # the data set library raises many types, all about the data
            raise HeadpruneError(
                f"cannot load the task '{name}': {first_line(error)}",
                hint="pass --data DIR to read local files" if data is None else LAYOUT,
            ) from error
    parts = {}
    for full_name, task in sorted(loaded.items()):
        subject = full_name.removeprefix(f"{name}_") if kind.by_subject else name
        _set_shots(task, shots, f"{name}: {subject}")
        parts[subject] = task
    return LoadedTask(name=name, kind=kind, parts=parts, shots_from=shots_from)


def _part_names(name: str, kind: TaskKind, manager: TaskManager) -> list[str]:
    if not kind.by_subject:
        return [name]
    return [part for part in manager.all_subtasks if part.startswith(f"{name}_")]


def _set_shots(task: Any, shots: int, where: str) -> None:
    available = len(task.fewshot_docs()) if shots else 0
    if task.config.test_split is None:  # there the harness draws one to spare
        available -= 1
    if shots and shots > available:
        raise HeadpruneError(
            f"{where} has {available} examples for few-shot prompts, expected {shots}",
            hint=f"pass --shots {available} or fewer",
        )
    task.set_config(key="num_fewshot", value=shots)


def _write_local(
    name: str, kind: TaskKind, data: Path, shots_from: ShotsFrom, folder: Path
) -> ShotsFrom:
    """Write the task's definitions and rows into `folder`; returns where its shots come from.

    Without examples of its own (`train`), a task takes its shots from the other questions.
    """
    folder.mkdir(parents=True)
    splits = {kind.test: read_rows(data / f"{kind.test}.jsonl", kind.fields)}
    if shots_from == "train" and not (data / "train.jsonl").exists():
        shots_from = "validation"
    elif shots_from != "none":
        splits[kind.shots] = read_rows(data / f"{kind.shots}.jsonl", kind.fields)
    if not kind.by_subject:
        _write_part(kind.folder / kind.definition, name, splits, folder, {})
        return shots_from
    by_subject = {split: group_by(rows, "subject") for split, rows in splits.items()}
    for subject in by_subject[kind.test]:
        for split, groups in by_subject.items():
            if subject not in groups:
                raise HeadpruneError(
                    f"{data / f'{split}.jsonl'} has no rows of '{subject}'",
                    hint=f"add examples of it, or remove its questions from {kind.test}.jsonl",
                )
        rows = {split: groups[subject] for split, groups in by_subject.items()}
        official = kind.folder / f"mmlu_{subject}.yaml"
        described: dict[str, Any] = {}
        if name != "mmlu":
            official = MMLU_TEMPLATE
            described["description"] = _description(subject)
        elif not official.exists():
            raise HeadpruneError(
                f"{data}: '{subject}' is not a subject of {name}",
                hint="name the subjects as the official task does, such as abstract_algebra",
            )
        _write_part(official, f"{name}_{subject}", rows, folder, described)
    return shots_from


def _description(subject: str) -> str:
    """MMLU's first line."""
    words = subject.replace("_", " ")
    return f"The following are multiple choice questions (with answers) about {words}.\n\n"


def _write_part(
    official: Path, name: str, splits: dict[str, list[Row]], folder: Path, extra: dict[str, Any]
) -> None:
    files = {}
    for split, rows in splits.items():
        files[split] = str(folder / f"{name}.{split}.parquet")
        write_rows(rows, Path(files[split]))
    local: dict[str, Any] = {
        "include": str(official),
        "task": name,
        "dataset_path": "parquet",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files, "cache_dir": str(folder / "cache")},
        **extra,
    }
    if "train" not in splits:
        local["training_split"] = None
    if official.parent == MMLU_TEMPLATE.parent and "dev" not in files:
        local["fewshot_split"] = None
    (folder / f"{name}.yaml").write_text(json.dumps(local), "utf-8")  # JSON is YAML
