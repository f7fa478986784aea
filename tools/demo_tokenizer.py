"""A byte-level BPE tokenizer for the demo world."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
VOCABULARY_SIZE = 1024


def train_tokenizer(
    texts: Iterable[str], max_length: int, vocabulary_size: int = VOCABULARY_SIZE
) -> PreTrainedTokenizerFast:
    """Trains the merges on `texts`; every byte is in the vocabulary, so any text can be encoded.

    Args:
        texts: The training text.
        max_length: The longest sequence that the model takes, for the tokenizer's own record.
        vocabulary_size: Upper bound for the number of tokens.

    Returns:
        A tokenizer that puts one BOS before every sequence.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
