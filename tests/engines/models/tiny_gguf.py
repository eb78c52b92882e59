"""Write a small Llama with random weights as a GGUF file: ``python tiny_gguf.py FILE``.

Runs in OpenVINO's environment, where ``gguf`` and ``tokenizers`` are installed: a second, and no torch.
"""

import json
import string
import sys

import gguf
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = ["The quick brown fox jumps over a lazy dog while requests wait in the queue."] * 20
HIDDEN, LAYERS, HEADS, KV_HEADS, CONTEXT, VOCABULARY = 768, 8, 12, 4, 2048, 320


def vocabulary() -> tuple[list[str], list[str]]:
    """Train a byte-level BPE tokenizer over ASCII; return its pieces in order, and its merges."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    printable = [c for c in string.printable if c.isprintable() and c != " "]
    alphabet = [*printable, "\u0120", "\u010a"]
    made.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    spec = json.loads(made.to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in spec["merges"]]
    return sorted(spec["vocab"], key=spec["vocab"].get), merges


def write(path: str) -> None:
    """Write the file; the seed is fixed."""
    pieces, merges = vocabulary()
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(2 * HIDDEN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10000.0)
    out.add_rope_dimension_count(HIDDEN // HEADS)
    out.add_vocab_size(len(pieces))
    out.add_file_type(1)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(pieces)
    out.add_token_types([3 if piece in SPECIAL else 1 for piece in pieces])
    out.add_token_merges(merges)
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    out.add_pad_token_id(0)
    out.add_add_bos_token(False)
    out.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    _weights(out, len(pieces))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _weights(out: gguf.GGUFWriter, pieces: int) -> None:
    draw = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int, scale: float = 0.05) -> None:
        out.add_tensor(name, (draw.standard_normal((rows, columns)) * scale).astype(np.float16))

    def ones(name: str) -> None:
        out.add_tensor(name, np.ones(HIDDEN, np.float32))

    matrix("token_embd.weight", pieces, HIDDEN, 1.0)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight")
        ones(block + "ffn_norm.weight")
        matrix(block + "attn_q.weight", HIDDEN, HIDDEN)
        matrix(block + "attn_k.weight", HIDDEN // HEADS * KV_HEADS, HIDDEN)
        matrix(block + "attn_v.weight", HIDDEN // HEADS * KV_HEADS, HIDDEN)
        matrix(block + "attn_output.weight", HIDDEN, HIDDEN)
        matrix(block + "ffn_gate.weight", 2 * HIDDEN, HIDDEN)
        matrix(block + "ffn_up.weight", 2 * HIDDEN, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, 2 * HIDDEN)
    ones("output_norm.weight")
    # The special tokens get no weight, so that an answer is as long as the client lets it be.
    last = draw.standard_normal((pieces, HIDDEN)) * 0.5
    last[: len(SPECIAL)] = 0
    out.add_tensor("output.weight", last.astype(np.float16))


if __name__ == "__main__":
    write(sys.argv[1])
