"""The commands of `headprune manifest`."""

from __future__ import annotations

from pathlib import Path

import click

from headprune.errors import ExitCode
from headprune.options import FILE, OutputFile


@click.group()
def manifest() -> None:
    """Look at manifests, and merge those of shards."""


@manifest.command()
@click.argument("path", type=FILE)
def validate(path: Path) -> ExitCode:
    """Check a manifest against its schema."""
    from headprune.manifests.files import read_manifest

    read_manifest(path, shards=True)
    click.echo(f"{path} is valid")
    return ExitCode.OK


@manifest.command()
@click.argument("path", type=FILE)
def show(path: Path) -> ExitCode:
    """Print what a manifest says: model, calibration, thresholds, gate."""
    from headprune.manifests.files import read_manifest
    from headprune.manifests.show import describe

    click.echo(describe(read_manifest(path, shards=True)))
    return ExitCode.OK


@manifest.command(
    epilog="""\b
Examples:
  headprune analyze --model ./my-model --calibration text.jsonl --shard 1/2 -o shard-1.json
  headprune analyze --model ./my-model --calibration text.jsonl --shard 2/2 -o shard-2.json
  headprune manifest merge shard-1.json shard-2.json -o manifest.json
"""
)
@click.argument("paths", type=FILE, nargs=-1, required=True, metavar="SHARD.json…")
@click.option(
    "-o", "--output", type=OutputFile(), default=Path("manifest.json"), help="The manifest."
)
def merge(paths: tuple[Path, ...], output: Path) -> ExitCode:
    """Merge the shards of an analysis into the manifest of the whole."""
    from headprune.manifests.merge import merge

    merge(paths, output)
    click.echo(f"wrote {output}")
    return ExitCode.OK
