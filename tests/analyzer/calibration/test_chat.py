"""Chats go through the tokenizer's chat template, once with BOS or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from headprune.analyzer.calibration import CalibrationSet, choose_sequences, load_documents
from headprune.errors import ExitCode, HeadpruneError
from tests.analyzer.calibration.corpus import write_rows

TURNS = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
BOS = "{{ bos_token }}"


def tokenizer_with(directory: Path, template: str | None) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.chat_template = template
    return tokenizer


def chat(*contents: str) -> dict[str, object]:
    roles = ["user", "assistant"]
    return {
        "messages": [
            {"role": roles[number % 2], "content": content}
            for number, content in enumerate(contents)
        ]
    }


def choose(path: Path, tokenizer: Any, **options: Any) -> CalibrationSet:
    settings = {"lengths": (1, 200), **options}
    return choose_sequences(load_documents((str(path),)), tokenizer, **settings)


@pytest.mark.parametrize(("template", "bos"), [(TURNS, []), (BOS + TURNS, [1])])
def test_the_template_decides_on_bos(
    template: str, bos: list[int], llama_directory: Path, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "chat.jsonl", [chat("hi", "hello")])
    tokenizer = tokenizer_with(llama_directory, template)
    chosen = choose(path, tokenizer, lengths=(20, 9000))
    plain = tokenizer("[user] hi\n[assistant] hello\n", add_special_tokens=False)["input_ids"]
    assert list(chosen.sequences[0]) == [*bos, *plain]


def test_generation_is_not_prompted(llama_directory: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "chat.jsonl", [chat("hi")])
    template = TURNS + "{% if add_generation_prompt %}[assistant]{% endif %}"
    tokenizer = tokenizer_with(llama_directory, template)
    chosen = choose(path, tokenizer, lengths=(8, 9000))
    assert tokenizer.decode(chosen.sequences[0]) == "[user] hi\n"


def test_chats_and_texts_stand_side_by_side(llama_directory: Path, tmp_path: Path) -> None:
    rows = [chat("hi there"), {"text": "[user] hi there"}, chat("hi there"), chat("other")]
    path = write_rows(tmp_path / "mixed.jsonl", rows)
    chosen = choose(path, tokenizer_with(llama_directory, TURNS), lengths=(5, 5))
    assert chosen.info.sequences == 3
    assert chosen.info.duplicates == 1
    assert sum(ids[0] == 1 for ids in chosen.sequences) == 1


def test_a_text_and_a_chat_have_different_hashes(llama_directory: Path, tmp_path: Path) -> None:
    first = load_documents((str(write_rows(tmp_path / "a.jsonl", [chat("hi there")])),))
    content = first[0].documents[0].content
    second = load_documents((str(write_rows(tmp_path / "b.jsonl", [{"text": content}])),))
    tokenizer = tokenizer_with(llama_directory, TURNS)
    hashes = {choose_sequences(s, tokenizer, lengths=(1, 9)).info.sha256 for s in (first, second)}
    assert len(hashes) == 2


def test_a_template_that_writes_the_date_writes_the_same_on_any_day(
    llama_directory: Path, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "chat.jsonl", [chat("hi")])
    template = (
        "{% macro today() %}{{ strftime_now('%A, %d %B %Y') }}{% endmacro %}"
        "{% if strftime_now is defined %}{% set now = strftime_now('%Y-%m-%d') + '!' %}{% endif %}"
        "{{ today() }} or {{ now }}"
    )
    tokenizer = tokenizer_with(llama_directory, template)
    chosen = choose(path, tokenizer, lengths=(20, 9000))
    assert tokenizer.decode(chosen.sequences[0]) == "Friday, 26 July 2024 or 2024-07-26!"


@pytest.mark.parametrize(
    "template",
    [
        "\n\n{{ messages[0]['content'] }}",
        "  {% if true %}\n x{% endif %}\n\n",
        "\n  a\n",
        " {{- 1 }}",
    ],
)
def test_a_template_renders_as_it_does_in_transformers(
    template: str, llama_directory: Path, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "chat.jsonl", [chat("hi")])
    tokenizer = tokenizer_with(llama_directory, template)
    wanted = tokenizer.apply_chat_template(chat("hi")["messages"])["input_ids"]
    assert list(choose(path, tokenizer, lengths=(1, 9000)).sequences[0]) == wanted


@pytest.mark.parametrize(
    ("template", "message"),
    [(None, 'has "messages", but the tokenizer has no chat template'),
     (BOS + BOS + TURNS, "the chat template starts with 2 BOS tokens"),
     ("{{ raise_exception('roles must alternate') }}", "fails: roles must alternate"),
     ("{{ a.b }}", "the chat template fails: 'a' is undefined"),
     ("{% for %}", "the chat template fails: ")],
)  # fmt: skip
def test_what_a_template_cannot_do_is_refused_with_file_and_line(
    template: str | None, message: str, llama_directory: Path, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "chat.jsonl", [chat("hi")])
    with pytest.raises(HeadpruneError) as caught:
        choose(path, tokenizer_with(llama_directory, template))
    assert caught.value.message.startswith(f"{path}, line 1")
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE


def test_bos_in_the_first_message_is_found_too(llama_directory: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "chat.jsonl", [chat("<s>hi")])
    template = BOS + "{{ messages[0]['content'] }}"
    with pytest.raises(HeadpruneError, match="starts with 2 BOS tokens"):
        choose(path, tokenizer_with(llama_directory, template))
