"""The `headprune` command: options and wiring; each command's work is in its stage's package.

Nothing heavy is imported before a command runs, so that `--help` is instant.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from headprune import __version__
from headprune.errors import ExitCode, HeadpruneError
from headprune.manifest_commands import manifest
from headprune.options import FILE, Names, OutputFile, Range, ShardOf, Size
from headprune.progress import Progress

CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100}
MAX_SEED = 2**63 - 1
GATE_OPTIONS = ("mode", "score", "fraction", "threshold", "share", "decode")


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="headprune", message="%(prog)s %(version)s")
def cli() -> None:
    """Find the attention heads that a language model does not use, gate them, prove it harmless.

    \b
    calibration text -> analyze -> manifest.json -> export -> gated ONNX -> verify -> exit code

    Start with `headprune demo`: the whole way on a small model that comes with the package.

    \b
    Exit codes: 0 done or PASS, 1 FAIL, 2 unusable input, 3 INCONCLUSIVE, 4 INVALID,
    5 internal error, 130 interrupted.
    """  # noqa: D301  click reads the backspace


@cli.command(
    epilog="""\b
Examples:
  headprune analyze --model ./my-model --calibration text.jsonl
  headprune analyze --model org/name --sequences 20 --length 10:512
  headprune analyze --model ./my-model --calibration chats.jsonl=3 --calibration docs.parquet
  headprune analyze --model ./my-model --calibration builtin --scores thon_ln,ahon_ln
"""
)
@click.option("--model", required=True, help="Model directory, or hub id such as org/name.")
@click.option(
    "--calibration",
    metavar="SOURCE[=WEIGHT]",
    multiple=True,
    help="File (.jsonl, .txt, .md, .parquet), hub:ORG/NAME[:CONFIG[:SPLIT]], or `builtin` for the "
    "demo's text; may be repeated, shares by weight.  [default: FineWeb-Edu from the hub]",
)
@click.option("--sequences", type=click.IntRange(min=1), default=100, help="Documents to take.")
@click.option(
    "--length",
    type=Range(),
    default=(10, 3000),
    show_default=False,
    help="Each is cut to a random length in this range, in tokens. [default: 10:3000]",
)
@click.option(
    "--scores",
    type=Names(),
    default=("all",),
    show_default=False,
    help="Score ids, comma-separated. [default: all]",
)
@click.option(
    "-o", "--output", type=OutputFile(), default=Path("manifest.json"), help="The manifest."
)
@click.option("--batch-size", type=click.IntRange(min=1), default=1, help="Sequences a forward.")
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=MAX_SEED),
    default=0,
    help="Seed of documents and lengths.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
    default="auto",
    help="Data type of the model; auto: float32 on the CPU, else the checkpoint's own.",
)
@click.option(
    "--device",
    default="cpu",
    help="PyTorch device, such as cuda; auto: spread the layers over all GPUs.",
)
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Read the weights a layer at a time. [default: if they exceed --memory]",
)
@click.option("--memory", type=Size(), help="Memory for weights. [default: 80 % of what is free]")
@click.option("--shard", type=ShardOf(), help="Profile the I-th of N shares; see manifest merge.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted analysis.")
@click.option("--restart", is_flag=True, help="Throw away an interrupted analysis.")
@click.option("--revision", help="Commit, tag or branch on the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Run model code that the model brings.")
def analyze(**options: Any) -> ExitCode:
    """Profile a model on calibration text; write the manifest and the raw scores beside it.

    An interrupted analysis leaves what it found in <manifest>.partial, for --resume. Under torchrun
    or accelerate launch the processes share the work.
    """
    quiet_libraries()
    from headprune.analyzer.ranks import launched_rank
    from headprune.analyzer.run import AnalyzeRequest, analyze

    lengths = options.pop("length")
    progress = Progress(quiet=launched_rank().index > 0)
    try:
        manifest = analyze(AnalyzeRequest(lengths=lengths, progress=progress, **options))
    except KeyboardInterrupt:
        progress.close()
        click.echo("Hint: the same command with --resume goes on from here", err=True)
        raise
    finally:
        progress.close()
    if manifest is None:
        return ExitCode.OK
    from headprune.manifests.show import describe

    click.echo(describe(manifest))
    click.echo(f"wrote {options['output']}")
    return ExitCode.OK


@cli.command(
    epilog="""\b
Examples:
  headprune export --manifest manifest.json
  headprune export --manifest manifest.json --score ahon_ln --fraction 0.10 -o gated
  headprune export --manifest manifest.json --gate static --share 0.95 -o static
  headprune export --manifest manifest.json --gate none -o baseline
"""
)
@click.option("--manifest", "manifest_path", type=FILE, required=True, help="Of `analyze`.")
@click.option("--format", "target", type=click.Choice(["onnx"]), default="onnx", help="Artefact.")
@click.option("--model", help="Model directory or hub id. [default: the one analyzed]")
@click.option("--from-onnx", type=FILE, help="Gate this ONNX file, made by --gate none.")
@click.option(
    "--gate",
    "mode",
    type=click.Choice(["dynamic", "static", "none"]),
    default="dynamic",
    help="Decide in every forward, switch heads off for good, or no gate.",
)
@click.option("--score", default="thon_ln", help="Score that decides.")
@click.option("--fraction", type=float, help="Share of cells to gate. [default: 0.10]")
@click.option("--threshold", type=float, help="Threshold, in place of a fraction.")
@click.option(
    "--share", type=float, help="Static: off if inactive in this share of the cells. [default: 0.9]"
)
@click.option(
    "--decode",
    type=click.Choice(["running", "new"]),
    help="Sequence scores while decoding: the whole sequence, or the new tokens.",
)
@click.option("--heads", help="Heads always off: LAYER or LAYER.HEAD with ranges: 3,5.0,7-9.2-4.")
@click.option("-o", "--output", type=FILE, help="Directory. [default: <model>-<gate>-onnx]")
@click.option("--force", is_flag=True, help="Replace the output directory.")
@click.option("--trust-remote-code", is_flag=True, help="Run model code that the model brings.")
def export(**options: Any) -> ExitCode:
    """Write a gated ONNX graph that holds all it needs: tokenizer, configuration, manifest."""
    quiet_libraries()
    from headprune.exporters import ExportRequest, export_onnx
    from headprune.manifests.files import read_manifest
    from headprune.manifests.gates import choose_gate, parse_heads

    manifest_path: Path = options["manifest_path"]
    manifest = read_manifest(manifest_path)
    mode = options["mode"]
    gate = None
    if mode != "none":
        gate = choose_gate(
            manifest,
            manifest_path.parent,
            heads=parse_heads(options["heads"], manifest) if options["heads"] else (),
            **{
                k: options[k] for k in ("mode", "score", "fraction", "threshold", "share", "decode")
            },
        )
    progress = Progress()
    try:
        result = export_onnx(
            ExportRequest(
                manifest=manifest,
                output=options["output"] or default_directory(manifest.model.name, mode),
                gate=gate,
                model=options["model"] or analyzed_model(manifest, options["from_onnx"]),
                from_onnx=options["from_onnx"],
                revision=manifest.model.revision if not options["model"] else None,
                trust_remote_code=options["trust_remote_code"],
                force=options["force"],
                progress=progress,
            )
        )
    finally:
        progress.close()
    from headprune.manifests.show import describe_gate

    click.echo(describe_gate(gate, manifest.model.head_count))
    if result.export_error is not None:
        click.echo(f"ungated graph against PyTorch: logits differ by {result.export_error:.1e}")
    click.echo(f"wrote {result.directory}")
    return ExitCode.OK


@cli.command(
    epilog="""\b
Examples:
  headprune verify --manifest manifest.json --candidate gated --report verdict.json
  headprune verify --manifest manifest.json --candidate gated --samples 3000 --junit junit.xml
  headprune verify --manifest manifest.json --candidate static --baseline baseline --provider cuda
  headprune verify --recheck verdict.json
"""
)
@click.option(
    "--manifest", "manifest_path", type=FILE, help="Of `analyze`; needed but with --recheck."
)
@click.option("--candidate", type=FILE, help="Exported directory. [default: <model>-dynamic-onnx]")
@click.option(
    "--baseline",
    type=FILE,
    help="Another exported directory. [default: the candidate's own graph with its gate held open]",
)
@click.option(
    "--tasks",
    type=Names(),
    default=("mmlu",),
    show_default="mmlu",
    help="mmlu, piqa, winogrande, demo (the packaged questions); comma-separated.",
)
@click.option("--data", type=FILE, help="Folder with local task files. [default: the hub]")
@click.option("--shots", type=click.IntRange(min=0), default=5, help="Examples in the prompt.")
@click.option("--margin", type=float, default=1.0, help="Accuracy points that may be lost.")
@click.option("--samples", type=click.IntRange(min=1), help="Random questions. [default: all]")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of --samples.")
@click.option(
    "--provider",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="ONNX Runtime execution provider.",
)
@click.option("--batch-size", type=click.IntRange(min=1), default=1, help="Prompts a forward.")
@click.option("--report", type=FILE, help="Write the verdict as JSON.")
@click.option("--junit", type=FILE, help="Write the verdict as JUnit XML.")
@click.option("--allow-truncation", is_flag=True, help="Cut prompts that the model can't hold.")
@click.option("--recheck", type=FILE, help="Decide again from the rows of this report.")
def verify(**options: Any) -> ExitCode:
    """Measure the gated model beside the ungated one; exit 0 PASS, 1 FAIL, 3 unsure, 4 invalid."""
    quiet_libraries()
    from headprune.manifests.files import read_manifest
    from headprune.verifier import VerifyRequest, recheck, summary, verify

    report, manifest_path = options.pop("recheck"), options.pop("manifest_path")
    if report is not None:
        verdict = recheck(report)
        click.echo(summary(verdict))
        return verdict.exit_code
    if manifest_path is None:
        raise click.UsageError("Missing option '--manifest'.", click.get_current_context())
    manifest = read_manifest(manifest_path)
    candidate = options.pop("candidate") or default_directory(manifest.model.name, "dynamic")
    progress = Progress()
    try:
        verdict = verify(
            VerifyRequest(manifest=manifest, candidate=candidate, progress=progress, **options)
        )
    finally:
        progress.close()
    click.echo(summary(verdict))
    return verdict.exit_code


@cli.command(
    epilog="""\b
Examples:
  headprune demo
  headprune demo -o somewhere
  headprune demo --negative-control
"""
)
@click.option("-o", "--output", type=FILE, default=Path("headprune-demo"), help="Folder for files.")
@click.option(
    "--negative-control",
    is_flag=True,
    help="Silence three whole layers: the verdict must be FAIL, and is, with exit 1.",
)
def demo(output: Path, negative_control: bool) -> ExitCode:  # noqa: FBT001
    """Go the whole way on the embedded model: analyze, export, verify."""
    quiet_libraries()
    from headprune.demo.run import run_demo

    progress = Progress()
    try:
        return run_demo(output, negative_control=negative_control, progress=progress)
    finally:
        progress.close()


cli.add_command(manifest)


def default_directory(model: str, mode: str) -> Path:
    """`<model>-<gate>-onnx`, or `<model>-onnx` without a gate."""
    name = model.rsplit("/", maxsplit=1)[-1]
    return Path(f"{name}-onnx" if mode == "none" else f"{name}-{mode}-onnx")


def analyzed_model(manifest: Any, from_onnx: Path | None) -> str | None:
    """Where the analyzed model lies: on the hub, or where this machine last saw its weights."""
    from headprune.analyzer.sources import recall_directory

    if manifest.model.revision is not None:
        return str(manifest.model.name)
    found = recall_directory(manifest.model)
    if found is None and from_onnx is None:
        raise HeadpruneError(
            f"the manifest is of the local model {manifest.model.name}, and no directory with its "
            "weights is known here",
            hint="pass --model DIR",
        )
    return None if found is None else str(found)


def quiet_libraries() -> None:
    """Keep other packages' progress bars and notices out of our output, unless the user asks."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code of whatever became of it."""
    try:
        code = cli.main(list(arguments), prog_name="headprune", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return int(ExitCode.USAGE)
    except SystemExit:
        # click ends so when nobody reads its output any more (`| head`); 1 would mean FAIL.
        return int(ExitCode.INTERRUPTED)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  no user sees a traceback unasked
        if os.environ.get("HEADPRUNE_TRACEBACK"):
            traceback.print_exc()
        code, message, hint = explain(error)
        click.echo(message, err=True)
        if hint:
            click.echo(f"Hint: {hint}", err=True)
    return int(code or ExitCode.OK)


def explain(error: BaseException) -> tuple[ExitCode, str, str | None]:
    """Exit code, message and hint for every way in which a command can end early."""
    match error:
        case HeadpruneError():
            return error.exit_code, f"Error: {error.message}", error.hint
        case click.UsageError(ctx=click.Context() as context):
            hint = f"{context.command_path} --help"
            return ExitCode.USAGE, f"Error: {error.format_message()}", hint
        case click.ClickException():
            return ExitCode.USAGE, f"Error: {error.format_message()}", None
        case click.Abort() | KeyboardInterrupt():
            return ExitCode.INTERRUPTED, "Interrupted.", None
        case ModuleNotFoundError():
            hint = 'pip install "headprune[all]"'
            return ExitCode.USAGE, f"Error: the package {error.name} is not installed", hint
        case _:
            hint = "this is a bug; HEADPRUNE_TRACEBACK=1 shows where"
            what = f"Error: internal: {type(error).__name__}: {error}"
            return ExitCode.INTERNAL, what, hint


def main() -> None:
    """Entry point of the console command."""
    sys.exit(run(sys.argv[1:]))
