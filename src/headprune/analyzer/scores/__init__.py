"""Score functions, one file per quantity; every file of this folder is found by itself.

A third-party package adds scores by an entry point in the group `headprune.scores` that names a
module with `@score` functions.
"""

from headprune.analyzer.scores.registry import Score, find_scores, score

__all__ = ["Score", "find_scores", "score"]
