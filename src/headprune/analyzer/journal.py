"""What an unfinished analysis has found, on disk: a killed run loses the batch in hand alone.

Beside the manifest to be written lies a directory `<manifest>.partial`. Every finished unit of work
(a batch, or one layer for a batch) is a file of its scores; when these outgrow the snapshot, a new
snapshot of all scores takes their place. Each file is moved into place whole.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from headprune.analyzer.score_table import LayerScores, ScoreTable
from headprune.errors import WRITABLE, HeadpruneError
from headprune.files import staged_file, write_text_whole

SNAPSHOT = "snapshot.safetensors"
SMALL = 64 << 20


class Journal:
    """The directory of one unfinished analysis; use it as a context manager.

    Args:
        directory: Where it lies.
        plan: What the analysis was asked to do, in JSON's types; a continued one must ask the same.
        table: Receives all scores: those found before, and those recorded.
        resume: Go on with what an earlier run left.
        restart: Throw away what an earlier run left.

    Raises:
        HeadpruneError: An earlier run left something and neither was asked; it had another plan;
            or another process works on it.
    """

    def __init__(
        self,
        directory: Path,
        plan: dict[str, Any],
        table: ScoreTable,
        *,
        resume: bool = False,
        restart: bool = False,
    ) -> None:
        self.directory = directory
        self.table = table
        self.done: set[str] = set()
        self._plan = plan
        self._number = 0
        self._loose: list[Path] = []
        self._size = self._snapshot_size = 0
        self._lock = lock(directory)
        try:
            self._check(resume=resume, restart=restart)
            if restart:
                self._clear()
            write_text_whole(directory / "plan.json", json.dumps(plan))
            self._replay()
        except BaseException:
            self.close()
            if not (directory / "plan.json").is_file():
                shutil.rmtree(directory, ignore_errors=True)
            raise

    def record(self, unit: str, scores: Sequence[LayerScores]) -> None:
        """Keep the scores of one unit of work, on disk and in the table."""
        path = self.directory / f"part-{self._number:06d}.safetensors"
        with staged_file(path) as staging:
            save_file(
                dict(part_tensors(scores)),
                staging,
                metadata={
                    "unit": unit,
                    "sequences": json.dumps(scores[0].sequences),
                    "names": json.dumps({s.layer: by_rows(s.values) for s in scores}),
                },
            )
        self._number += 1
        for layer in scores:
            self.table.record(layer)
        self._remember(unit, path)
        if self._size > max(SMALL, self._snapshot_size):
            self._compact()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        # An analysis that could not begin leaves nothing; one that was stopped can go on.
        if error is not None and not self.done:
            self.finish()
        self.close()

    def close(self) -> None:
        """Let go of the directory; what is in it stays for a later run."""
        self._lock.close()

    def finish(self) -> None:
        """Remove the directory: the manifest is written."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _check(self, *, resume: bool, restart: bool) -> None:
        if not (self.directory / "plan.json").is_file():
            if resume:
                raise HeadpruneError(
                    f"there is nothing to resume: no {self.directory}",
                    hint="leave out --resume to begin",
                )
            return
        if restart:
            return
        if not resume:
            raise HeadpruneError(
                f"{self.directory} holds an analysis that was interrupted",
                hint="pass --resume to go on with it, or --restart to throw it away",
            )
        plan = json.loads((self.directory / "plan.json").read_text("utf-8"))
        other = sorted(k for k in plan.keys() | self._plan if plan.get(k) != self._plan.get(k))
        if other:
            raise HeadpruneError(
                f"cannot resume {self.directory}: {', '.join(other)} differ from the interrupted "
                "analysis",
                hint="pass the same options and files, or --restart to throw it away",
            )

    def _clear(self) -> None:
        for path in self.directory.iterdir():
            if path.name != "lock":
                path.unlink()

    def _replay(self) -> None:
        for leftover in self.directory.glob(".*"):
            leftover.unlink()
        snapshot = self.directory / SNAPSHOT
        if snapshot.is_file():
            self._snapshot_size = snapshot.stat().st_size
            with safe_open(snapshot, "np") as content:
                self.done |= set(json.loads(content.metadata()["done"]))
                self.table.absorb({name: content.get_tensor(name) for name in content.keys()})  # noqa: SIM118  not a dict
        for path in sorted(self.directory.glob("part-*")):
            self._number = int(path.stem.removeprefix("part-")) + 1
            with safe_open(path, "np") as content:
                unit = content.metadata()["unit"]
                if unit in self.done:
                    path.unlink()  # The snapshot has it: the run ended while clearing up.
                    continue
                for scores in read_part(content):
                    self.table.record(scores)
            self._remember(unit, path)

    def _remember(self, unit: str, path: Path) -> None:
        self.done.add(unit)
        self._loose.append(path)
        self._size += path.stat().st_size

    def _compact(self) -> None:
        path = self.directory / SNAPSHOT
        with staged_file(path) as staging:
            save_file(
                self.table.tensors(), staging, metadata={"done": json.dumps(sorted(self.done))}
            )
        for part in self._loose:
            part.unlink()
        self._loose, self._size = [], 0
        self._snapshot_size = path.stat().st_size


def lock(directory: Path) -> TextIO:
    """Make the directory and hold it for this process, until the file returned is closed.

    Raises:
        HeadpruneError: Another process holds it, or it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        held = (directory / "lock").open("w")
    except OSError as error:
        raise HeadpruneError(
            f"cannot write {directory}: {error.strerror}", hint=WRITABLE
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        raise HeadpruneError(
            f"another analysis is writing to {directory}", hint="wait for it, or pass another -o"
        ) from error
    return held


def part_tensors(scores: Sequence[LayerScores]) -> Iterable[tuple[str, NDArray[np.float32]]]:
    """A layer's scores of one shape side by side in one tensor: `[score, row, head]`."""
    for layer in scores:
        for rows, names in by_rows(layer.values).items():
            yield f"{layer.layer}.{rows}", np.stack([layer.values[name] for name in names])


def by_rows(values: dict[str, NDArray[np.float32]]) -> dict[int, list[str]]:
    """Names of the scores by their number of rows, sequences or tokens."""
    groups: dict[int, list[str]] = {}
    for name, array in values.items():
        groups.setdefault(len(array), []).append(name)
    return groups


def read_part(content: Any) -> Iterable[LayerScores]:
    """The scores in an open part file, layer by layer."""
    metadata = content.metadata()
    sequences = tuple(json.loads(metadata["sequences"]))
    names = json.loads(metadata["names"])
    for layer, groups in sorted((int(k), v) for k, v in names.items()):
        values: dict[str, NDArray[np.float32]] = {}
        for rows, group in groups.items():
            stacked = content.get_tensor(f"{layer}.{rows}")
            values |= dict(zip(group, stacked, strict=True))
        yield LayerScores(layer=layer, sequences=sequences, values=values)
