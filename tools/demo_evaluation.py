"""Accuracy of a model on the demo questions, and the reference gate in plain PyTorch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo_world.questions import ANSWER_LETTERS, Question, prompt

# (layer index, head outputs before o_proj [batch, position, head, head_dim]) -> new outputs
HeadHook = Callable[[int, Tensor], Tensor]


def load_model(directory: Path) -> LlamaForCausalLM:
    """Loads a model for evaluation."""
    model = LlamaForCausalLM.from_pretrained(directory)
    model.train(mode=False)
    return model


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Loads the tokenizer that lies beside a model."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(directory)
    return tokenizer


@contextmanager
def head_hook(model: LlamaForCausalLM, hook: HeadHook) -> Iterator[None]:
    """Lets `hook` replace the head outputs of every layer before the output projection."""
    with ExitStack() as stack:
        for index, layer in enumerate(model.model.layers):

            def replace(_: nn.Module, inputs: tuple[Tensor], index: int = index) -> Tensor:
                shape = inputs[0].shape
                heads = inputs[0].view(*shape[:-1], model.config.num_attention_heads, -1)
                return hook(index, heads).reshape(shape)

            handle = layer.self_attn.o_proj.register_forward_pre_hook(replace)
            stack.callback(handle.remove)
        yield


def thon_ln(heads: Tensor) -> Tensor:
    """Norm of each head's output over the mean norm of the layer's heads. [..., head]"""
    norms: Tensor = torch.linalg.vector_norm(heads.float(), dim=-1)
    mean = norms.mean(dim=-1, keepdim=True)
    return norms / mean


@torch.inference_mode()
def pooled_scores(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, documents: Sequence[str]
) -> Tensor:
    """Collects thon_ln over documents. [token, layer, head]"""
    pooled: list[Tensor] = []
    for document in documents:
        scores: list[Tensor] = []

        def collect(_: int, heads: Tensor, scores: list[Tensor] = scores) -> Tensor:
            scores.append(thon_ln(heads)[0])
            return heads

        with head_hook(model, collect):
            model.model(torch.tensor([tokenizer(document)["input_ids"]]))
        pooled.append(torch.stack(scores, dim=1))
    return torch.cat(pooled)


def gate_below(threshold: float) -> HeadHook:
    """Zeroes each head at each token where its thon_ln is below the threshold."""

    def gate(_: int, heads: Tensor) -> Tensor:
        return heads * (thon_ln(heads) >= threshold).unsqueeze(-1)

    return gate


def silence_layers(layers: Sequence[int]) -> HeadHook:
    """Zeroes every head of the named layers."""
    return lambda layer, heads: heads * 0 if layer in layers else heads


@torch.inference_mode()
def predictions(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Question],
    examples: Sequence[Question] = (),
    batch_size: int = 32,
) -> list[int]:
    """Returns the choice that the model prefers for each question.

    Args:
        model: The model in evaluation mode.
        tokenizer: Its tokenizer.
        questions: The questions to answer.
        examples: The dev split; those of a question's own subject go before it.
        batch_size: Questions per forward pass.
    """
    letters = tokenizer.convert_tokens_to_ids([f"Ġ{letter}" for letter in ANSWER_LETTERS])
    rows: list[list[int]] = tokenizer(
        [prompt(q, [shot for shot in examples if shot.subject == q.subject]) for q in questions]
    )["input_ids"]
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    chosen = [0] * len(rows)
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        # Causal attention never looks at the padding, which stands on the right.
        ids = nn.utils.rnn.pad_sequence(
            [torch.tensor(rows[index]) for index in indices], batch_first=True
        )
        last = torch.tensor([len(rows[index]) - 1 for index in indices])
        hidden = model.model(ids).last_hidden_state[torch.arange(len(indices)), last]
        best = model.lm_head(hidden)[:, letters].argmax(dim=-1)
        for index, choice in zip(indices, best.tolist(), strict=True):
            chosen[index] = choice
    return chosen


def accuracy(chosen: Sequence[int], questions: Sequence[Question]) -> float:
    """Returns the share of questions that are answered right."""
    return sum(c == q.answer for c, q in zip(chosen, questions, strict=True)) / len(questions)
