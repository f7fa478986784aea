"""What a run can show, said before it starts."""

from __future__ import annotations

from headprune.verifier import statistics
from headprune.verifier.tasks import LoadedTask

COMMON_FLIP_RATE = 0.02


def announce(task: LoadedTask, questions: int, margin: float) -> str:
    """One line: how many questions, what decides, and whether they can certify the margin.

    Args:
        task: The task.
        questions: Number of questions that will be asked.
        margin: Points of accuracy that the candidate may lose.
    """
    if task.is_complete(questions):
        parts = [f"all {questions:,} questions, the observed difference decides"]
    else:
        whole = task.kind.questions or sum(task.sizes.values())
        parts = [f"{questions:,} of {whole:,} questions, a confidence bound decides"]
        parts += _shortage(questions, margin)
    if task.shots_from == "validation":
        parts.append("no train.jsonl, the shots are drawn from the other questions")
    return f"{task.name}: {'; '.join(parts)}"


def _shortage(questions: int, margin: float) -> list[str]:
    if margin == 0:
        return ["no sample can certify a margin of 0"]
    least = statistics.smallest_certifying(margin / 100)
    if questions < least:
        few = f"too few to certify a margin of {margin:g} points"
        return [f"{few}: {least:,} are needed even if no answer changes"]
    needed = statistics.questions_needed(COMMON_FLIP_RATE, margin / 100)
    if questions < needed:
        few = f"enough for a margin of {margin:g} points only if few answers change: about"
        return [f"{few} {needed:,} are needed where {COMMON_FLIP_RATE:.0%} flip"]
    return []
