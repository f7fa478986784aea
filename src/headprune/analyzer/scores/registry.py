"""The registry of score functions, and the aggregations and the normalisation they share."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, wraps
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headprune.errors import HeadpruneError

if TYPE_CHECKING:
    from headprune.analyzer.capture import Capture
    from headprune.manifests.model import Direction, Granularity

PAPER = "arXiv 2504.03889"
TINY = torch.finfo(torch.float32).tiny

ScoreFunction = Callable[["Capture"], Tensor]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A registered score.

    Attributes:
        id: Its id, such as `ahon_ln`.
        title: Its name in words.
        granularity: `sequence`: the function gives `[batch, head]`; `token`: it gives
            `[batch, position, head]`.
        inactive_when: Side of the threshold on which a head is inactive.
        reads_weights: Whether it reads attention weights (`first_weight`, `entropy`).
        reference: Where it is defined.
        summary: First line of the function's docstring.
        function: Computes it from one layer's capture.
        base: For a layer-normalised score, what is divided by its mean over the layer's heads.
    """

    id: str
    title: str
    granularity: Granularity
    inactive_when: Direction
    reads_weights: bool
    reference: str
    summary: str
    function: ScoreFunction
    base: ScoreFunction | None = None


_scores: dict[str, Score] = {}


def score(
    score_id: str,
    *,
    title: str,
    inactive_when: Direction,
    granularity: Granularity = "sequence",
    reads_weights: bool = False,
    layer_normalised: bool = False,
    reference: str = PAPER,
) -> Callable[[ScoreFunction], ScoreFunction]:
    """Register a score function.

    Args:
        score_id: Lower-case id.
        title: Its name in words.
        inactive_when: `above` or `below`: where a head counts as inactive.
        granularity: `sequence` for `[batch, head]`, `token` for `[batch, position, head]`.
        reads_weights: Set if the function reads `first_weight` or `entropy`.
        layer_normalised: Register `<score_id>_ln` too: the score over its mean in the layer.
        reference: Paper or page that defines it.

    Raises:
        ValueError: The id is taken, or the function has no docstring.
    """

    def register(function: ScoreFunction) -> ScoreFunction:
        summary = (function.__doc__ or "").strip().splitlines()
        if not summary:
            raise ValueError(f"score {score_id} has no docstring: say what it measures")
        function = _once_a_capture(function)

        def add(
            name: str, words: str, run: ScoreFunction, base: ScoreFunction | None = None
        ) -> None:
            if name in _scores:
                raise ValueError(f"there are two scores with the id {name}")
            _scores[name] = Score(
                id=name,
                title=words,
                granularity=granularity,
                inactive_when=inactive_when,
                reads_weights=reads_weights,
                reference=reference,
                summary=summary[0],
                function=run,
                base=base,
            )

        add(score_id, title, function)
        if layer_normalised:
            add(
                f"{score_id}_ln", f"{title}, layer-normalised", _over_layer_mean(function), function
            )
        return function

    return register


def _once_a_capture(function: ScoreFunction) -> ScoreFunction:
    """The function, computed once for all scores that are made of it."""

    @wraps(function)
    def remembered(capture: Capture) -> Tensor:
        if function not in capture.computed:
            capture.computed[function] = function(capture)
        return capture.computed[function]

    return remembered


def _over_layer_mean(function: ScoreFunction) -> ScoreFunction:
    @wraps(function)
    def normalised(capture: Capture) -> Tensor:
        return layer_normalise(function(capture))

    return normalised


def layer_normalise(scores: Tensor) -> Tensor:
    """Divide by the mean over the layer's heads, the last dimension; 0 / 0 counts as 0."""
    return scores / scores.mean(dim=-1, keepdim=True).clamp(min=TINY)


def masked_mean(quantity: Tensor, mask: Tensor) -> Tensor:
    """Mean over real tokens of a `[batch, position, head]` quantity: `[batch, head]`."""
    lengths = mask.sum(dim=1)[:, None]
    if bool((lengths < mask.shape[1]).any()):
        quantity = torch.where(mask[..., None], quantity, 0.0)
    return quantity.sum(dim=1, dtype=torch.float64).div(lengths).float()


def at_first(quantity: Tensor, mask: Tensor) -> Tensor:
    """The quantity at each sequence's first real token: `[batch, head]`."""
    return _at(quantity, mask.int().argmax(dim=1))


def at_last(quantity: Tensor, mask: Tensor) -> Tensor:
    """The quantity at each sequence's last real token: `[batch, head]`."""
    positions = mask.shape[1]
    return _at(quantity, positions - 1 - mask.int().flip(1).argmax(dim=1))


def _at(quantity: Tensor, position: Tensor) -> Tensor:
    return quantity[torch.arange(quantity.shape[0], device=quantity.device), position]


@cache
def all_scores() -> dict[str, Score]:
    """Every score by id: those of this folder, then those of installed packages."""
    folder = importlib.import_module("headprune.analyzer.scores")
    for module in sorted(pkgutil.iter_modules(folder.__path__), key=lambda m: m.name):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    for entry in entry_points(group="headprune.scores"):
        entry.load()
    return dict(_scores)


def find_scores(names: Iterable[str]) -> tuple[Score, ...]:
    """The scores of these ids, in the registry's order; `all` names every score.

    Raises:
        HeadpruneError: There is no score of that id.
    """
    known = all_scores()
    wanted = set(names)
    if "all" in wanted:
        return tuple(known.values())
    for name in sorted(wanted - known.keys()):
        close = difflib.get_close_matches(name, known, n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        raise HeadpruneError(
            f"there is no score {name!r}.{guess}", hint=f"available: {', '.join(known)}"
        )
    return tuple(entry for name, entry in known.items() if name in wanted)
