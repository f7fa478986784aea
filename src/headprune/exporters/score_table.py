"""The scores that a dynamic gate can compute inside the graph.

Each is the L2 norm of a head's output, so they differ only in which tokens enter a decision and in
whether the layer's mean is divided out. To add such a score, add a line. A score of another
quantity also needs its ONNX operators in `head_gate.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headprune.errors import HeadpruneError
from headprune.manifests.model import Gate, Granularity

Tokens = Literal["each", "real", "last"]


@dataclass(frozen=True, kw_only=True)
class DynamicScore:
    """How the gate computes one score; heads are inactive below the threshold.

    Attributes:
        tokens: `each` token decides for itself; or one decision per sequence, from the mean over
            its `real` tokens or from its `last` real token.
        layer_mean: Divide by the mean over the layer's heads.
    """

    tokens: Tokens
    layer_mean: bool

    @property
    def granularity(self) -> Granularity:
        """Whether one decision holds for a token or for a sequence."""
        return "token" if self.tokens == "each" else "sequence"


DYNAMIC_SCORES = {
    "ahon": DynamicScore(tokens="real", layer_mean=False),
    "ahon_ln": DynamicScore(tokens="real", layer_mean=True),
    "lthon": DynamicScore(tokens="last", layer_mean=False),
    "lthon_ln": DynamicScore(tokens="last", layer_mean=True),
    "thon": DynamicScore(tokens="each", layer_mean=False),
    "thon_ln": DynamicScore(tokens="each", layer_mean=True),
}


def resolve_gate(gate: Gate | None) -> Gate | None:
    """The gate as it will be built and written down.

    A score of the last token needs nothing of the tokens before it, so its decode rule `running`
    is written as `new`.

    Raises:
        HeadpruneError: The gate is dynamic, and no graph can be built for it.
    """
    if gate is None or gate.mode == "static":
        return gate
    score = DYNAMIC_SCORES.get(gate.score)
    if score is None or gate.inactive_when != "below":
        raise HeadpruneError(
            f"a dynamic gate on {gate.score} (inactive {gate.inactive_when} the threshold) cannot "
            f"be built into a graph; expected one of {', '.join(DYNAMIC_SCORES)}",
            hint="pass --gate static to fold the same heads into the weights, "
            "or --score with one of these",
        )
    if gate.granularity != score.granularity:
        raise HeadpruneError(
            f"the gate says that {gate.score} has {gate.granularity} granularity, "
            f"expected {score.granularity}",
            hint="choose the gate with `headprune export --score`, not by hand",
        )
    if (gate.decode is None) != (score.granularity == "token"):
        expected = "none" if score.granularity == "token" else "running or new"
        raise HeadpruneError(
            f"the gate on {gate.score} has the decode rule {gate.decode}, expected {expected}",
            hint="choose the gate with `headprune export --score`, not by hand",
        )
    return replace(gate, decode="new") if score.tokens == "last" else gate
