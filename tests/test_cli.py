"""The command line: every outcome has its exit code, one clear line, and a next command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import BertConfig, BertForMaskedLM, MambaConfig, MambaForCausalLM

from headprune import cli
from headprune.errors import ExitCode, HeadpruneError
from headprune.manifests import read_manifest


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def assert_refused(
    capsys: pytest.CaptureFixture[str], message: str, *arguments: object, hint: bool = True
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == ExitCode.USAGE, err
    assert out == ""
    lines = err.splitlines()
    while lines and lines[0].startswith(("loading ", "calibration: ")):
        del lines[0]
    first, *rest = lines
    assert first.startswith("Error: ")
    assert message in first
    assert "Traceback" not in err
    assert bool(rest) is hint, err
    assert all(line.startswith("Hint: ") for line in rest)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_is_light() -> None:
    code = """
import sys
from headprune import cli
cli.run(["export", "--help"])
sys.exit(any(name in sys.modules for name in ("torch", "transformers", "onnx", "numpy")))
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("command", sorted(cli.cli.commands))
def test_help_of_every_command_fits_and_gives_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, command, "--help")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    if command != "manifest":
        assert out.count(f"headprune {command} ") >= 2
    assert len(out.splitlines()) > 3


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no calibration file"), (b"", "is empty"), (b"\xff\xfe", "is not UTF-8"),
     (b'{"content": "x"}\n', 'no string field "text"')],
)  # fmt: skip
def test_calibration_files(
    content: bytes | None,
    message: str,
    here: Path,
    llama_directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        (here / "text.jsonl").write_bytes(content)
    assert_refused(
        capsys, message, "analyze", "--model", llama_directory, "--calibration", "text.jsonl"
    )
    assert {path.name for path in here.iterdir()} <= {"text.jsonl"}


def encoder(folder: Path) -> None:
    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)


def linear_attention(folder: Path) -> None:
    config = MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, state_size=4)
    MambaForCausalLM(config).save_pretrained(folder)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def broken_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def more_layers_than_weights(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def two_bos(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    template = tokenizer["post_processor"]["single"]
    tokenizer["post_processor"]["single"] = [template[0], *template]
    path.write_text(json.dumps(tokenizer))


BAD_MODELS = {
    "encoder": (encoder, "BertForMaskedLM, expected a decoder-only"),
    "linear attention": (linear_attention, "(mamba) has no softmax attention in any layer"),
    "without weights": (without_weights, "holds no weights"),
    "pickled": (pickled_weights, "holds no weights"),
    "without config": (without_config, "no config.json"),
    "broken config": (broken_config, "cannot read the configuration"),
    "broken weights": (broken_weights, "cannot load the weights"),
    "incomplete": (more_layers_than_weights, "are incomplete"),
    "without tokenizer": (without_tokenizer, "cannot load the tokenizer"),
    "two BOS": (two_bos, "adds 2 BOS tokens"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_models(
    case: str,
    here: Path,
    llama_directory: Path,
    text_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil, message = BAD_MODELS[case]
    folder = here / "model"
    shutil.copytree(llama_directory, folder)
    spoil(folder)
    capsys.readouterr()
    assert_refused(capsys, message, "analyze", "--model", folder, "--calibration", text_file)
    assert [path.name for path in here.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("model", "message"),
    [("nowhere", "no model at nowhere"), ("./no/where", "no model at"), ("/no/where", "no model"),
     ("org/name", "no directory org/name, and the hub"), ("", "no model at")],
)  # fmt: skip
def test_no_such_model(
    model: str, message: str, here: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, message, "analyze", "--model", model, "--calibration", text_file)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--length", "10"], "is not MIN:MAX"), (["--sequences", "0"], "0 is not in the range"),
     (["--seed", "9" * 23], "not in the range"), (["-o", ""], "empty one"),
     (["--shard", "4/3"], "expected 1/N to N/N"), (["--memory", "lots"], "not a size"),
     (["--device", "meta"], "computes nothing"),
     (["--scores", "ahon_nl"], "Did you mean ahon_ln?"), (["--length", "9:3"], "MIN not over MAX"),
     (["--dtype", "int8"], "'int8'"), (["--device", "gpu"], "gpu"), (["--batch-size", "x"], "'x'")],
)  # fmt: skip
def test_options_of_analyze(
    options: list[str],
    message: str,
    here: Path,
    llama_directory: Path,
    text_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = ("analyze", "--model", llama_directory, "--calibration", text_file)
    assert_refused(capsys, message, *base, *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--threshold", "nan"], "expected a finite number"), (["--threshold", "inf"], "finite"),
     (["--fraction", "1.5"], "expected a number from 0 to 1"), (["--fraction", "nan"], "0 to 1"),
     (["--fraction", "0.1", "--threshold", "1"], "both"), (["--score", "thonln"], "thon_ln?"),
     (["--gate", "static", "--share", "2"], "the share is 2.0"), (["--heads", "x"], "'x'"),
     (["--heads", "99"], "no head 99.0"), (["--heads", "0.99"], "no head 0.99"),
     (["--decode", "new"], "decode rule"), (["--format", "tflite"], "'tflite'")],
)  # fmt: skip
def test_options_of_export(
    options: list[str],
    message: str,
    here: Path,
    llama_manifest: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert_refused(capsys, message, "export", "--manifest", llama_manifest, *options)
    assert not list(here.iterdir())


def edit(manifest: Path, copy: Path, **changes: object) -> Path:
    document = json.loads(manifest.read_text())
    for key, value in changes.items():
        place = document
        *path, last = key.split("__")
        for part in path:
            place = place[part]
        place[last] = value
    copy.write_text(json.dumps(document))
    return copy


@pytest.mark.parametrize(
    "changes",
    [{"schema_version": "2.0"}, {"extra": 1}, {"scores": {}}, {"model__layers": []},
     {"model__weights_sha256": "x"}, {"model__name": "/home/me/model"}, {"calibration": None},
     {"scores__ahon__quantiles": [1.0]}, {"scores__ahon__inactive_when": "left"},
     {"scores__ahon__heads__mean": [[1.0]]}, {"raw_scores__file": "../x.safetensors"}],
)  # fmt: skip
@pytest.mark.parametrize("command", [["manifest", "validate"], ["manifest", "show"], ["export"]])
def test_edited_manifests(
    changes: dict[str, object],
    command: list[str],
    here: Path,
    llama_manifest: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = edit(llama_manifest, here / "m.json", **changes)
    option = ["--manifest"] if command == ["export"] else []
    code, out, err = run(capsys, *command, *option, path)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith(f"Error: {path}")
    assert all(len(line) < 400 for line in err.splitlines())


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"schema_version": NaN}', "\x00"])
def test_files_that_are_no_manifest(
    text: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "m.json").write_text(text)
    code, _, err = run(capsys, "manifest", "validate", "m.json")
    assert code == ExitCode.USAGE
    assert err.startswith("Error: m.json")


def test_a_missing_manifest_names_the_command_that_makes_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "export", "--manifest", "m.json")
    assert code == ExitCode.USAGE
    assert "headprune analyze" in err


def test_export_finds_the_model_that_was_analyzed_or_asks_for_it(
    llama_directory: Path, text_file: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = here / "model"
    shutil.copytree(llama_directory, copy)
    options = ["--calibration", str(text_file), "--sequences", "2", "--scores", "thon_ln"]
    assert run(capsys, "analyze", "--model", copy, *options)[0] == 0
    manifest = read_manifest(here / "manifest.json")
    assert cli.analyzed_model(manifest, None) == str(copy)
    shutil.rmtree(copy)
    with pytest.raises(HeadpruneError, match="no directory with its weights"):
        cli.analyzed_model(manifest, None)


def test_validate_and_show(llama_manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "manifest", "validate", llama_manifest)[0] == 0
    code, out, _ = run(capsys, "manifest", "show", llama_manifest)
    assert code == 0
    for name in read_manifest(llama_manifest).scores:
        assert f"\n{name} " in out


def test_outcomes_map_to_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def outcome(error: BaseException) -> tuple[int, str]:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(cli.cli, "main", fail)
        code, _, err = run(capsys, "analyze")
        return code, err

    assert outcome(KeyboardInterrupt())[0] == ExitCode.INTERRUPTED
    code, err = outcome(RuntimeError("boom"))
    assert code == ExitCode.INTERNAL
    assert "boom" in err
    assert "Traceback" not in err
    assert outcome(HeadpruneError("x", hint="y", exit_code=ExitCode.INVALID))[0] == ExitCode.INVALID
    code, err = outcome(ModuleNotFoundError("no", name="torch"))
    assert code == ExitCode.USAGE
    assert "headprune[all]" in err


@pytest.mark.parametrize("code", [0, 1, 3, 4])
def test_a_commands_exit_code_is_the_processs(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.cli, "main", lambda *_, **__: ExitCode(code))
    assert cli.run([]) == code


@pytest.mark.parametrize("name", ["fifo", "folder", "notes.txt", "notes.txt/m.json"])
def test_analyze_replaces_manifests_alone(
    name: str, here: Path, llama_directory: Path, text_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Checked before the work; a device, a folder, a file of the user's stay what they are."""
    os.mkfifo(here / "fifo")
    (here / "folder").mkdir()
    (here / "notes.txt").write_text("mine")
    before = sorted(here.iterdir())
    arguments = ["--model", llama_directory, "--calibration", text_file, "-o", name]
    code, _, err = run(capsys, "analyze", *arguments)
    assert code == ExitCode.USAGE
    assert err.startswith("Error: "), "nothing was begun"
    assert sorted(here.iterdir()) == before
    assert (here / "fifo").is_fifo()
    assert (here / "notes.txt").read_text() == "mine"


def test_help_shows_paragraphs_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--help")[1]
    assert "\\b" not in out
    assert "\b" not in out
    assert "  calibration text -> analyze" in out


def test_a_closed_pipe_is_not_a_fail(llama_manifest: Path) -> None:
    command = f"{sys.executable} -m headprune manifest show {llama_manifest}"
    script = f"{command} | (exec <&-; sleep 2); exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in result.stderr
