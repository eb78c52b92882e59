"""Write a small Llama with random weights and a tokenizer of its own: ``python tiny_hf.py FOLDER``.

Runs in an engine's environment (torch and transformers), without a network.  The rows of the special tokens are zero in
the output layer and all others are scaled up, so the model hardly ever ends an answer by itself: the length of an
answer is the limit the client sets.  One token is one piece of ASCII, so one token is one chunk of a stream.
"""

import os
import string
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<|user|>", "<|assistant|>"]
TEXT = [
    "The quick brown fox jumps over a lazy dog while requests wait in the queue.",
    "A request is preprocessed, waits, is prefilled, and then decoded token by token.",
] * 20
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# vLLM's CPU attention takes head dimensions of 32 and more.
HIDDEN, LAYERS, HEADS, KV_HEADS, CONTEXT, VOCABULARY = 512, 6, 8, 4, 2048, 512


def tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer over ASCII."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    printable = [c for c in string.printable if c.isprintable() and c != " "]
    alphabet = [*printable, "\u0120", "\u010a"]
    made.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=CONTEXT,
    )
    fast.chat_template = CHAT
    return fast


def model(vocabulary: int) -> LlamaForCausalLM:
    """Make the model; the seed is fixed."""
    torch.manual_seed(0)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=CONTEXT,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=3,
            tie_word_embeddings=False,
        )
    ).eval()
    with torch.no_grad():
        made.lm_head.weight.mul_(20)
        made.lm_head.weight[: len(SPECIAL)].zero_()
    made.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=3, do_sample=False)
    return made


if __name__ == "__main__":
    words = tokenizer()
    words.save_pretrained(sys.argv[1])
    model(len(words)).save_pretrained(sys.argv[1])
