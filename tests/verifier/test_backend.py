"""Log-likelihoods of the backend against PyTorch, and what it hands to the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from headprune.errors import HeadpruneError
from headprune.verifier.backend import OnnxLM, prefix_ids
from headprune.verifier.forwards import plan, score
from headprune.verifier.session import Forward, GraphSession

from .conftest import World
from .tiny import byte_tokenizer

PROMPTS = {
    "letters": [
        (f"{question}\nAnswer:", f" {letter}")
        for question in ("What is it?", "Which of these?", "A much longer question than others?")
        for letter in "ABCD"
    ],
    "texts": [
        ("Question: how?\nAnswer:", " by hand"),
        ("Question: how?\nAnswer:", " by machine"),
        ("Question: why?\nAnswer:", " for"),
        ("Question: why?\nAnswer:", " because of the weather"),
    ],
    "mixed": [("Once", " A"), ("Once", " upon a time"), ("Once", " B")],
    "contexts": [("The cat", " sat down."), ("The dog", " sat down.")],
    "spaces": [("Trailing space ", "A"), ("Trailing space ", "B")],
    "empty": [("", "Hello"), ("", "A")],
    "repeated": [("Again", " A"), ("Other", " A"), ("Again", " A")],
}


def requests(pairs: Sequence[tuple[str, str]]) -> list[Instance]:
    contexts = list(dict.fromkeys(context for context, _ in pairs))
    return [
        Instance(
            request_type="loglikelihood", doc={}, arguments=pair, idx=index,
            metadata=("test", contexts.index(pair[0]), 1),
        )
        for index, pair in enumerate(pairs)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def session(exported: World) -> GraphSession:
    return GraphSession(exported.ungated / "model.onnx", "cpu")


@pytest.fixture(scope="module")
def model(exported: World) -> Iterator[torch.nn.Module]:
    return AutoModelForCausalLM.from_pretrained(exported.checkpoint).eval()


def expected(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, pair: tuple[str, str]
) -> tuple[float, bool]:
    """PyTorch's answer: whole text at once, no padding, continuation by difference of lengths."""
    context, continuation = pair
    context, continuation = context.rstrip(" "), context[len(context.rstrip(" ")) :] + continuation
    whole = tokenizer(context + continuation)["input_ids"]
    start = len(tokenizer(context)["input_ids"])
    if not context:
        whole = [0, *tokenizer(continuation, add_special_tokens=False)["input_ids"]]
        start = 1
    with torch.no_grad():
        logits = model(torch.tensor([whole])).logits[0].double()
    target = torch.tensor(whole[start:])
    chosen = logits[start - 1 : -1]
    total = chosen.log_softmax(-1).gather(1, target[:, None]).sum()
    return float(total), bool((chosen.argmax(-1) == target).all())


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("letters", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", PROMPTS)
def test_loglikelihoods_are_those_of_pytorch(
    session: GraphSession,
    model: torch.nn.Module,
    name: str,
    batch_size: int,
    letters: bool,
    bos: bool,
) -> None:
    tokenizer = byte_tokenizer(bos=bos, letters=letters)
    lm = OnnxLM(session, tokenizer, name="test", batch_size=batch_size)
    answers = lm.loglikelihood(requests(PROMPTS[name]))
    assert len(answers) == len(PROMPTS[name])
    for pair, (loglikelihood, greedy) in zip(PROMPTS[name], answers, strict=True):
        value, is_greedy = expected(model, tokenizer, pair)
        assert loglikelihood == pytest.approx(value, abs=2e-4)
        assert greedy == is_greedy


def test_greedy_continuation_is_seen_as_greedy(
    session: GraphSession, model: torch.nn.Module
) -> None:
    tokenizer = byte_tokenizer(bos=True)
    ids = tokenizer("Some text")["input_ids"]
    with torch.no_grad():
        best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
    lm = OnnxLM(session, tokenizer, name="test")
    encoded = [(("", ""), ids, [best]), (("", ""), ids, [(best + 1) % 262])]
    lm._questions = [("test", 0)] * 2
    assert [greedy for _, greedy in lm._loglikelihood_tokens(encoded)] == [True, False]


class FakeSession:
    """Logits that say nothing, and a record of what was read."""

    def __init__(self, gated: Sequence[float] = ()) -> None:
        self.read: list[list[int]] = []
        self.gated = list(gated)

    def forward(
        self, sequences: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]
    ) -> Forward:
        self.read += [list(sequence) for sequence in sequences]
        logits = [np.zeros((len(positions), 262), np.float32) for positions in wanted]
        return Forward(
            logits=logits, gated=[self.gated.pop(0) if self.gated else None for _ in logits]
        )


def fake_lm(session: FakeSession, **options: object) -> OnnxLM:
    tokenizer = options.pop("tokenizer", None) or byte_tokenizer(bos=True)
    return OnnxLM(session, tokenizer, name="test", **options)  # type: ignore[arg-type]


def test_one_forward_a_question_without_the_letter_in_it() -> None:
    session = FakeSession()
    fake_lm(session).loglikelihood(requests(PROMPTS["letters"]))
    tokenizer = byte_tokenizer(bos=True)
    contexts = {context for context, _ in PROMPTS["letters"]}
    assert sorted(session.read) == sorted(tokenizer(text)["input_ids"] for text in contexts)


def test_space_of_its_own_is_read_with_the_context() -> None:
    session = FakeSession()
    tokenizer = byte_tokenizer(bos=True, letters=False)
    fake_lm(session, tokenizer=tokenizer).loglikelihood(requests(PROMPTS["letters"]))
    assert len(session.read) == 3
    assert all(tokenizer.decode(ids).endswith("Answer: ") for ids in session.read)


def test_texts_are_read_to_their_last_but_one_token() -> None:
    session = FakeSession()
    fake_lm(session).loglikelihood(requests(PROMPTS["contexts"]))
    decoded = sorted(byte_tokenizer(bos=True).decode(ids[1:]) for ids in session.read)
    assert decoded == ["The cat sat down", "The dog sat down"]


@pytest.mark.parametrize("text", ["Hello", "<s>Hello"])
def test_bos_is_added_once(text: str) -> None:
    lm = fake_lm(FakeSession())
    assert lm.tok_encode(text) == byte_tokenizer(bos=True)("Hello")["input_ids"]
    assert lm.tok_encode(text).count(0) == 1
    assert lm.tok_encode("Hello", add_special_tokens=False).count(0) == 0


def test_tokenizer_without_bos_gets_none() -> None:
    lm = fake_lm(FakeSession(), tokenizer=byte_tokenizer(bos=False))
    assert lm.tok_encode("Hello").count(0) == 0


def test_two_bos_are_refused() -> None:
    def twice(text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [0, 0, 5] if add_special_tokens else [5]}

    twice.bos_token_id = 0  # type: ignore[attr-defined]
    with pytest.raises(HeadpruneError, match="two BOS"):
        prefix_ids(twice)


def test_empty_context_without_bos_or_eos_is_an_error() -> None:
    tokenizer = SimpleNamespace(bos_token_id=None, eos_token_id=None)
    with pytest.raises(HeadpruneError, match="neither a BOS nor an EOS"):
        OnnxLM.prefix_token_id.fget(SimpleNamespace(tokenizer=tokenizer))


def test_usage_is_averaged_over_the_forwards_of_a_question() -> None:
    pairs = [("Q", " ab"), ("Q", " abcdef")]
    lengths = [
        1 + 1 + 6,
        1 + 1 + 2,
    ]  # BOS, Q, and the continuation but its last byte; longest first
    session = FakeSession([0.5, 0.2])
    lm = fake_lm(session)
    lm.loglikelihood(requests(pairs))
    usage = lm.usage["test", 0]
    assert usage.tokens == sum(lengths)
    assert usage.gated == pytest.approx(0.35)
    lm = fake_lm(FakeSession([0.5, 0.2]), token_cells=True)
    lm.loglikelihood(requests(pairs))
    assert lm.usage["test", 0].gated == pytest.approx((8 * 0.5 + 4 * 0.2) / 12)


def test_truncation_keeps_bos_and_the_end() -> None:
    session = FakeSession()
    lm = fake_lm(session, max_length=6, allow_truncation=True)
    lm.loglikelihood(requests([("A long question", " A"), ("short", " A")]))
    assert lm.truncated == 1
    decoded = [byte_tokenizer(bos=True).decode(ids) for ids in session.read]
    assert sorted(decoded) == ["<s>short", "<s>stion"]
    with pytest.raises(HeadpruneError, match="1 of 2 prompts are longer than the 6 tokens"):
        fake_lm(FakeSession(), max_length=6).loglikelihood(
            requests([("A long question", " A"), ("short", " A")])
        )


def test_other_kinds_of_requests_are_refused() -> None:
    lm = fake_lm(FakeSession())
    with pytest.raises(HeadpruneError, match="perplexity"):
        lm.loglikelihood_rolling([])
    with pytest.raises(HeadpruneError, match="generated text"):
        lm.generate_until([])
    with pytest.raises(HeadpruneError, match="has no tokens"):
        lm.loglikelihood(requests([("Some text", "")]))


def test_plan_groups_by_context_only() -> None:
    works = plan(
        [
            (("", ""), [1, 2], [7]),
            (("", ""), [1], [2]),
            (("", ""), [1, 2], [8]),
            (("", ""), [1], [3, 4]),
        ]
    )
    assert [(work.ids, work.continuations, work.requests) for work in works] == [
        ((1, 2), ((7,), (8,)), ((0,), (2,))),
        ((1,), ((2,),), ((1,),)),
        ((1, 3), ((3, 4),), ((3,),)),
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_logits_give_a_score_that_is_not_finite(value: float) -> None:
    logits = np.zeros((1, 5), np.float32)
    logits[0, 2] = value
    assert not np.isfinite(score(logits, [1])[0])
    assert not np.isfinite(score(logits, [2])[0])


def test_half_precision_logits_do_not_overflow() -> None:
    logits = np.full((1, 5), 60000, np.float16)
    assert score(logits, [3])[0] == pytest.approx(-np.log(5))
