"""ONNX Runtime as a model of lm-evaluation-harness: one forward where its own backend takes four.

Where every continuation of a context is a single token, as with the letters of MMLU, the context
is read once and the logits of its last position score them all. Besides the time, this keeps the
answer out of the prompt: a gate that decides on what it reads must not read the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM
from typing_extensions import override

from headprune.errors import HeadpruneError
from headprune.verifier.answers import Answers, Scored, forward_key
from headprune.verifier.forwards import Request, Work, plan, score
from headprune.verifier.session import GraphSession

Question = tuple[str, int]

CONTEXTS_KEPT = 8
PROGRESS_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What answering one question took.

    Attributes:
        tokens: Tokens read over all forwards of the question.
        gated: Share of cells switched off, or None if the graph does not tell.
    """

    tokens: int
    gated: float | None


class OnnxLM(TemplateLM):  # type: ignore[misc,unused-ignore]
    """Log-likelihoods from a graph, for `lm_eval.evaluate`.

    Args:
        session: The graph.
        tokenizer: The tokenizer of transformers that belongs to it.
        name: What to call the model in progress lines, such as `baseline`.
        max_length: Most tokens that the model can read, or None if there is no limit.
        batch_size: Prompts per forward.
        token_cells: Whether the gate decides per token: its share is averaged over tokens.
        allow_truncation: Cut prompts that are too long from the left instead of refusing them.
        answers: Where answers are kept.
        progress: Told how far it is, about once a second.
    """

    def __init__(
        self,
        session: GraphSession,
        tokenizer: Any,
        *,
        name: str,
        max_length: int | None = None,
        batch_size: int = 1,
        token_cells: bool = False,
        allow_truncation: bool = False,
        answers: Answers | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self.session = session
        self.tokenizer = tokenizer
        self.name = name
        self.max_length = max_length
        self.batch_size = batch_size
        self.truncated = 0
        self.usage: dict[Question, Usage] = {}
        self._prefix = prefix_ids(tokenizer)
        self._token_cells = token_cells
        self._allow_truncation = allow_truncation
        self._answers = Answers(None, "") if answers is None else answers
        self._progress = progress
        self._questions: list[Question] = []
        self._encode = lru_cache(CONTEXTS_KEPT)(self._encode_text)

    @property
    def eot_token_id(self) -> int | None:
        """Token that ends a text."""
        return self.tokenizer.eos_token_id  # type: ignore[no-any-return]

    @property
    def prefix_token_id(self) -> int:
        """Token that stands for an empty context: BOS, or EOS where there is none."""
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        raise HeadpruneError(
            "the tokenizer has neither a BOS nor an EOS token for an empty context",
            hint="add a bos_token or an eos_token to tokenizer_config.json, and export again",
        )

    @override
    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids of a text, with what the tokenizer puts in front of it, never twice."""
        return list(self._encode(string, with_prefix=add_special_tokens is not False))

    @override
    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """Log-likelihood and greediness of each request's continuation, in request order."""
        self._questions = [(request.task_name, request.doc_id) for request in requests]
        self.truncated = 0
        self.usage = {}
        result: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return result

    @override
    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Refused: no task of the verifier asks for perplexity."""
        raise HeadpruneError(
            "the verifier scores multiple-choice tasks only, not perplexity",
            hint="use a multiple-choice task: mmlu, piqa, winogrande",
        )

    @override
    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Refused: no task of the verifier generates text."""
        raise HeadpruneError(
            "the verifier scores multiple-choice tasks only, not generated text",
            hint="use a multiple-choice task: mmlu, piqa, winogrande",
        )

    def _encode_text(self, text: str, *, with_prefix: bool) -> tuple[int, ...]:
        ids = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if not with_prefix or ids[: len(self._prefix)] == self._prefix:
            return ids
        return self._prefix + ids

    def _loglikelihood_tokens(self, requests: list[Request], **_: Any) -> list[tuple[float, bool]]:
        works = self._fitted(plan(requests))
        results: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        scored: list[Scored] = []
        for work, answer in self._run(works):
            scored.append(answer)
            values = zip(work.requests, answer.loglikelihoods, answer.greedy, strict=True)
            for indices, loglikelihood, greedy in values:
                for index in indices:
                    results[index] = (loglikelihood, greedy)
        self._count_usage(works, scored)
        return results

    def _fitted(self, works: list[Work]) -> list[Work]:
        """The works cut to the model's length, longest first.

        Raises:
            HeadpruneError: Prompts are too long and may not be cut.
        """
        limit = self.max_length
        if limit is not None:
            too_long = [work for work in works if len(work.ids) > limit]
            self.truncated = len(too_long)
            if too_long and not self._allow_truncation:
                raise HeadpruneError(
                    f"{len(too_long):,} of {len(works):,} prompts are longer than the {limit:,} "
                    f"tokens that the model can read; the longest has "
                    f"{max(len(work.ids) for work in too_long):,}",
                    hint="pass fewer --shots, or --allow-truncation to cut them from the left",
                )
            works = [self._cut(work, limit) for work in works]
        return sorted(works, key=lambda work: -len(work.ids))

    def _cut(self, work: Work, limit: int) -> Work:
        if len(work.ids) <= limit:
            return work
        prefix = self._prefix if work.ids[: len(self._prefix)] == self._prefix else ()
        kept = limit - len(prefix)
        if kept < max(len(continuation) for continuation in work.continuations):
            raise HeadpruneError(
                f"an answer alone is longer than the model's {limit:,} tokens",
                hint="remove that question from the file in --data",
            )
        return Work(prefix + work.ids[len(work.ids) - kept :], work.continuations, work.requests)

    def _run(self, works: list[Work]) -> Iterable[tuple[Work, Scored]]:
        """Score all works, batch by batch; batches do not depend on what is known already."""
        last = time.monotonic()
        waiting = _waiting(works, self._questions)
        total, done = len(waiting), 0
        for start in range(0, len(works), self.batch_size):
            batch = works[start : start + self.batch_size]
            for work, answer in zip(batch, self._answer(batch), strict=True):
                yield work, answer
                for question in _questions_of(work, self._questions):
                    waiting[question] -= 1
                    done += waiting[question] == 0
            if time.monotonic() - last >= PROGRESS_SECONDS or done == total:
                last = time.monotonic()
                self._progress(f"{self.name} {done:,}/{total:,} questions")

    def _answer(self, batch: list[Work]) -> list[Scored]:
        keys = [forward_key(self.name, work.ids, work.continuations) for work in batch]
        known = [self._answers.get(key) for key in keys]
        if None not in known:
            return [scored for scored in known if scored is not None]
        answers = self._score(batch)
        for key, before, scored in zip(keys, known, answers, strict=True):
            if before is None:
                self._answers.put(key, scored)
        return answers

    def _score(self, batch: list[Work]) -> list[Scored]:
        spans = [max(len(c) for c in work.continuations) for work in batch]
        wanted = [
            range(len(work.ids) - span, len(work.ids))
            for work, span in zip(batch, spans, strict=True)
        ]
        forward = self.session.forward([work.ids for work in batch], wanted)
        scored = []
        for work, logits, gated in zip(batch, forward.logits, forward.gated, strict=True):
            pairs = [score(logits[len(logits) - len(c) :], c) for c in work.continuations]
            scored.append(
                Scored(
                    loglikelihoods=tuple(loglikelihood for loglikelihood, _ in pairs),
                    greedy=tuple(greedy for _, greedy in pairs),
                    gated=gated,
                )
            )
        return scored

    def _count_usage(self, works: list[Work], scored: list[Scored]) -> None:
        forwards: dict[Question, list[tuple[int, float | None]]] = {}
        for work, answer in zip(works, scored, strict=True):
            for question in _questions_of(work, self._questions):
                forwards.setdefault(question, []).append((len(work.ids), answer.gated))
        for question, reads in forwards.items():
            cells = [tokens if self._token_cells else 1 for tokens, _ in reads]
            shares = [gated for _, gated in reads if gated is not None]
            self.usage[question] = Usage(
                tokens=sum(tokens for tokens, _ in reads),
                gated=float(np.average(shares, weights=cells)) if shares else None,
            )


def prefix_ids(tokenizer: Any) -> tuple[int, ...]:
    """Special tokens that the tokenizer puts in front of a text: one BOS, or nothing.

    Raises:
        HeadpruneError: It puts a BOS there twice.
    """
    text = "a"
    whole = tokenizer(text)["input_ids"]
    bare = tokenizer(text, add_special_tokens=False)["input_ids"]
    starts = [k for k in range(len(whole) - len(bare) + 1) if whole[k : k + len(bare)] == bare]
    prefix = tuple(whole[: starts[0]]) if starts else ()
    if prefix.count(tokenizer.bos_token_id) > 1:
        raise HeadpruneError(
            "the tokenizer puts two BOS tokens in front of a text",
            hint="mend the post-processor or the template in tokenizer.json",
        )
    return prefix


def _questions_of(work: Work, questions: Sequence[Question]) -> list[Question]:
    return sorted({questions[index] for indices in work.requests for index in indices})


def _waiting(works: Iterable[Work], questions: Sequence[Question]) -> dict[Question, int]:
    """Forwards that each question waits for."""
    waiting: dict[Question, int] = {}
    for work in works:
        for question in _questions_of(work, questions):
            waiting[question] = waiting.get(question, 0) + 1
    return waiting
