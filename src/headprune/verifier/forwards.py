"""Requests as forwards: what the model must read, and what its logits say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headprune.errors import HeadpruneError
from headprune.verifier.session import Array

Request = tuple[tuple[str, str], list[int], list[int]]


@dataclass(frozen=True)
class Work:
    """One forward: what the model reads, and which continuations end there.

    Attributes:
        ids: Token ids to read.
        continuations: Token ids of each continuation; a continuation of n tokens is scored at the
            last n positions.
        requests: For each continuation the indices of the requests that it answers.
    """

    ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    requests: tuple[tuple[int, ...], ...]


def plan(requests: Sequence[Request]) -> list[Work]:
    """Group requests into forwards: one per context whose continuations differ in the last token.

    Most tokenizers have a token for a space and a letter; where the space is a token of its own,
    it is read with the context.

    Raises:
        HeadpruneError: A context or a continuation has no tokens.
    """
    contexts: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
    for index, (texts, context, continuation) in enumerate(requests):
        if not context or not continuation:
            part = "context" if not context else "continuation"
            raise HeadpruneError(
                f"the {part} {texts[0 if not context else 1]!r} has no tokens",
                hint="mend that question in the file in --data",
            )
        group = contexts.setdefault(tuple(context), {})
        group.setdefault(tuple(continuation), []).append(index)
    works = []
    for ids, group in contexts.items():
        if len({continuation[:-1] for continuation in group}) == 1:
            shared = next(iter(group))[:-1]
            works.append(Work(ids + shared, tuple(group), tuple(map(tuple, group.values()))))
        else:
            works += [
                Work(ids + continuation[:-1], (continuation,), (tuple(indices),))
                for continuation, indices in group.items()
            ]
    return works


def score(logits: Array, continuation: Sequence[int]) -> tuple[float, bool]:
    """Log-likelihood of a continuation, and whether each token has the largest logit.

    Args:
        logits: Logits of the positions that predict the continuation, [token, vocabulary].
        continuation: Token ids.
    """
    values = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf: a score that is not finite makes INVALID
        shifted = values - values.max(axis=-1, keepdims=True)
        normaliser = np.log(np.exp(shifted).sum(axis=-1))
    rows = np.arange(len(continuation))
    loglikelihood = float((shifted[rows, list(continuation)] - normaliser).sum())
    return loglikelihood, bool((values.argmax(axis=-1) == np.asarray(continuation)).all())
