"""The whole way on a tiny exported model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headprune.demo.assets import questions_directory
from headprune.errors import ExitCode, HeadpruneError
from headprune.manifests import read_manifest
from headprune.schemas.validation import validate
from headprune.verifier import VerifyRequest, recheck, summary, verify
from headprune.verifier.session import GraphSession

from .conftest import World, read_json, verify_demo
from .tiny import make_manifest, save_checkpoint


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Batch sizes of all forwards."""
    seen: list[int] = []
    forward = GraphSession.forward

    def counted(self, sequences, wanted):
        seen.append(len(sequences))
        return forward(self, sequences, wanted)

    monkeypatch.setattr(GraphSession, "forward", counted)
    return seen


def test_ungated_against_itself_gives_no_flips_and_passes(world: World) -> None:
    verdict = verify_demo(world, candidate=world.ungated, baseline=world.ungated)
    task = verdict.tasks[0]
    assert verdict.status == "PASS"
    assert verdict.exit_code is ExitCode.OK
    assert (task.flips, task.changed, task.divergence, task.difference) == (0, 0, 0, 0)
    assert task.baseline_accuracy == 1
    assert task.mcnemar_p == 1


def test_gated_against_itself_gives_no_flips(world: World) -> None:
    verdict = verify_demo(world, baseline=world.dynamic)
    assert verdict.tasks[0].changed == 0
    assert verdict.tasks[0].gated > 0.1


def test_opened_gate_is_the_ungated_graph(world: World) -> None:
    own = verify_demo(world)
    other = verify_demo(world, baseline=world.ungated)
    assert own.baseline_kind == "own graph, gate open"
    assert other.baseline_kind == "directory"
    assert own.tasks == other.tasks
    for mine, theirs in zip(own.rows, other.rows, strict=True):
        assert mine.baseline.gated == 0
        assert mine.baseline.loglikelihoods == pytest.approx(
            theirs.baseline.loglikelihoods, abs=1e-4
        )


def test_bad_gate_fails_and_writes_every_report(
    world: World, tmp_path: Path, runs: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    report, junit = tmp_path / "out" / "verdict.json", tmp_path / "junit.xml"
    lines: list[str] = []
    verdict = verify_demo(world, report=report, junit=junit, progress=lines.append)
    assert verdict.status == "FAIL"
    assert verdict.exit_code is ExitCode.FAIL
    assert len(runs) == 2 * 60, "one forward a question and model"
    assert read_json(report)["status"] == "FAIL"
    validate(read_json(report), "verdict-v1", where="report", hint="-")
    assert '<failure type="FAIL"' in junit.read_text("utf-8")
    assert recheck(report) == verdict
    assert sorted(path.name for path in report.parent.iterdir()) == ["verdict.json"]
    assert lines[0] == "demo: all 60 questions, the observed difference decides"
    assert lines[-1] == "candidate 60/60 questions"
    assert capfd.readouterr() == ("", "")
    assert "FAIL" in summary(verdict)
    again = report.with_name("again.json")
    verify_demo(world, report=again)
    assert again.read_bytes() == report.read_bytes()
    assert str(tmp_path.parent.parent) not in report.read_text("utf-8")


def test_batches_give_the_answers_of_single_prompts(world: World, runs: list[int]) -> None:
    single = verify_demo(world)
    runs.clear()
    batched = verify_demo(world, batch_size=8)
    assert runs == 2 * [8, 8, 8, 8, 8, 8, 8, 4]
    for one, other in zip(single.rows, batched.rows, strict=True):
        assert replace(one, baseline=other.baseline, candidate=other.candidate) == other
        for a, b in ((one.baseline, other.baseline), (one.candidate, other.candidate)):
            assert a.choice == b.choice
            assert a.loglikelihoods == pytest.approx(b.loglikelihoods, abs=1e-4)
            assert a.gated == pytest.approx(b.gated, abs=1e-6)


def test_sample_is_decided_by_the_bound(world: World) -> None:
    lines: list[str] = []
    verdict = verify_demo(
        world, candidate=world.ungated, baseline=world.ungated, samples=40, progress=lines.append
    )
    assert verdict.status == "INCONCLUSIVE"
    assert verdict.exit_code is ExitCode.INCONCLUSIVE
    assert verdict.tasks[0].questions == 40
    assert not verdict.tasks[0].setup.complete
    assert "40 of 60 questions" in lines[0]
    assert "268 are needed even if no answer changes" in lines[0]
    wide = verify_demo(
        world, candidate=world.ungated, baseline=world.ungated, samples=40, margin=10
    )
    assert wide.status == "PASS"


def test_baseline_at_chance_is_invalid(world: World, tmp_path: Path) -> None:
    lines = (world.data / "demo" / "test.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for number, row in enumerate(rows):
        row["answer"] = (row["answer"] + number) % 4
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdict = verify_demo(world, data=tmp_path)
    assert verdict.exit_code is ExitCode.INVALID
    assert "guessing" in verdict.reasons[0]


def test_changed_graph_is_invalid_before_anything_runs(
    world: World, tmp_path: Path, runs: list[int]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(world.dynamic, copy)
    data = copy / "model.onnx.data"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    report = tmp_path / "r.json"
    verdict = verify_demo(world, candidate=copy, report=report)
    assert verdict.exit_code is ExitCode.INVALID
    assert verdict.reasons[0] == (
        "the candidate's model.onnx.data is not the file that its manifest.json describes"
    )
    assert runs == []
    assert recheck(report) == verdict


def test_other_tokenizer_is_invalid(world: World, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(world.dynamic, copy)
    path = copy / "tokenizer.json"
    path.write_text(path.read_text("utf-8").replace('"<s>"', '"<S>"'), "utf-8")
    verdict = verify_demo(world, candidate=copy)
    assert verdict.exit_code is ExitCode.INVALID
    assert "tokenizer" in verdict.reasons[0]


def test_manifest_of_another_model_is_refused(world: World, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "other", seed=1)
    with pytest.raises(HeadpruneError, match="another model than the manifest") as caught:
        verify_demo(world, manifest=make_manifest(tmp_path / "other"))
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("name", ["static", "ungated"])
def test_gate_that_cannot_be_opened_needs_a_baseline(world: World, name: str) -> None:
    with pytest.raises(HeadpruneError) as caught:
        verify_demo(world, candidate=getattr(world, name))
    assert "--baseline DIR" in str(caught.value.hint)
    assert caught.value.exit_code is ExitCode.USAGE


def test_static_gate_against_a_baseline(world: World) -> None:
    verdict = verify_demo(world, candidate=world.static, baseline=world.ungated)
    assert verdict.status == "FAIL"
    assert verdict.tasks[0].gated is None


def test_several_tasks_and_the_worst_decides(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.data / "demo", tmp_path / "demo")
    (tmp_path / "piqa").mkdir()
    rows = [
        {"goal": f"goal {n}", "sol1": f"way {n}", "sol2": f"another {n}", "label": n % 2}
        for n in range(12)
    ]
    (tmp_path / "piqa" / "validation.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    verdict = verify_demo(world, data=tmp_path, tasks=("demo", "piqa"))
    assert [task.status for task in verdict.tasks] == ["FAIL", "INVALID"]
    assert verdict.status == "INVALID"
    assert all(reason.startswith("piqa: ") for reason in verdict.reasons)
    assert not verdict.tasks[1].setup.complete, "12 of PIQA's 1,838 questions"


def test_too_long_prompts_are_refused_or_counted(
    world: World, tmp_path: Path, runs: list[int]
) -> None:
    with pytest.raises(HeadpruneError, match="60 of 60 prompts are longer than the 128 tokens"):
        verify_demo(shortened(world, tmp_path), shots=3)
    assert runs == []
    verdict = verify_demo(shortened(world, tmp_path), shots=3, allow_truncation=True)
    assert verdict.tasks[0].setup.truncated == 60
    assert {row.tokens for row in verdict.rows} == {128}


def shortened(world: World, folder: Path) -> World:
    """The model with a configuration that says it reads 128 tokens."""
    copy = folder / "short"
    if not copy.exists():
        shutil.copytree(world.dynamic, copy)
        config = json.loads((copy / "config.json").read_text("utf-8"))
        (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 128}))
    return replace(world, dynamic=copy)


def test_interrupted_run_resumes(
    world: World, tmp_path: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "r.json"
    whole = verify_demo(world)
    counted = GraphSession.forward
    runs.clear()

    def interrupt(self, sequences, wanted):
        if len(runs) == 70:
            raise KeyboardInterrupt
        return counted(self, sequences, wanted)

    monkeypatch.setattr(GraphSession, "forward", interrupt)
    with pytest.raises(KeyboardInterrupt):
        verify_demo(world, report=report)
    kept = tmp_path / "r.json.rows.jsonl"
    assert len(kept.read_text("utf-8").splitlines()) == 71
    monkeypatch.setattr(GraphSession, "forward", counted)
    kept.write_text(kept.read_text("utf-8")[:-5], "utf-8")  # the last line was cut short
    runs.clear()
    lines: list[str] = []
    assert verify_demo(world, report=report, progress=lines.append) == whole
    assert lines[0] == "resuming: 69 forwards are answered already"
    assert len(runs) == 120 - 69
    assert not kept.exists()


def test_answers_of_other_inputs_are_not_used(
    world: World, tmp_path: Path, runs: list[int]
) -> None:
    kept = tmp_path / "r.json.rows.jsonl"
    kept.write_text('{"key": "of another graph"}\n{"forward": "x", "lls": [0.0]}\n', "utf-8")
    lines: list[str] = []
    verify_demo(world, report=tmp_path / "r.json", progress=lines.append)
    assert "starting anew" in lines[0]
    assert len(runs) == 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ("mmul",)}, "Unknown task 'mmul'. Did you mean 'mmlu'? Available: mmlu, piqa"),
        ({"tasks": ()}, "no task given"),
        ({"tasks": ("demo", "demo")}, "a task is given twice"),
        ({"tasks": ("piqa",)}, "no file "),
        ({"data": Path("nowhere")}, "no folder nowhere"),
        ({"shots": 4}, "has 3 examples for few-shot prompts, expected 4"),
        ({"shots": -1}, "the number of shots is -1"),
        ({"samples": 0}, "the number of samples is 0"),
        ({"margin": -1.0}, "the margin is -1.0"),
        ({"margin": float("nan")}, "the margin is nan"),
        ({"candidate": Path("nowhere")}, "no exported model at nowhere"),
        ({"provider": "tpu"}, "Unknown provider 'tpu'. Available: auto, cpu, cuda"),
    ],
)  # fmt: skip
def test_unusable_input_is_one_clear_line(
    world: World, options: dict[str, object], message: str
) -> None:
    with pytest.raises(HeadpruneError) as caught:
        verify_demo(world, **options)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE


def test_the_demo_needs_no_data(world: World) -> None:
    verdict = verify_demo(world, data=None, samples=2)
    with (questions_directory() / "demo" / "test.jsonl").open(encoding="utf-8") as file:
        subjects = {json.loads(line)["subject"] for line in file}
    assert {row.subject for row in verdict.rows} <= subjects


def test_hints_do_not_write_over_what_is_there(world: World, tmp_path: Path) -> None:
    """A folder or file of the user's is never the output of the command in a hint."""
    (tmp_path / "weights").write_text("no manifest")
    (tmp_path / "verdict.json").write_text("{}")
    (tmp_path / "folder").mkdir()
    for attempt, command in (
        (lambda: read_manifest(tmp_path / "weights"), "headprune analyze --model DIR -o manifest"),
        (lambda: recheck(tmp_path / "verdict.json"), "headprune verify --manifest manifest.json"),
        (
            lambda: verify_demo(world, candidate=tmp_path / "folder"),
            "headprune export --manifest manifest.json -o DIR",
        ),
    ):
        with pytest.raises(HeadpruneError) as caught:
            attempt()
        assert caught.value.hint is not None
        assert command in caught.value.hint
        assert str(tmp_path) not in caught.value.hint


def test_provider_asked_for_must_be_there(world: World) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(HeadpruneError, match="has no CUDAExecutionProvider"):
        verify_demo(world, provider="cuda")
    lines: list[str] = []
    assert verify_demo(world, provider="auto", samples=2, progress=lines.append).provider == "cpu"
    assert "running on cpu" in lines


def test_request_has_the_documented_defaults(world: World) -> None:
    request = VerifyRequest(manifest=world.manifest, candidate=world.dynamic)
    assert (request.tasks, request.shots, request.margin) == (("mmlu",), 5, 1.0)
    with pytest.raises(HeadpruneError, match="cannot load the task 'mmlu'"):
        verify(request)
