"""Writes a small llama model with random weights and a real tokenizer: it says nonsense, at a real engine's speeds.

Runs in an environment that has `gguf` and nothing of this project: random_model.py VOCABULARY TEMPLATE MODEL. The
vocabulary is a GGUF file without weights, as llama.cpp's source archive has some, the template one of Jinja.
"""

import sys
from pathlib import Path

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 256, 6, 4, 1024, 32_768  # 6 million weights besides the tokens'
SPREAD = 0.02  # of weights, as models are initialised
SEED = 1


def write(vocabulary: Path, template: Path, model: Path) -> None:
    """Make the file."""
    writer = gguf.GGUFWriter(model, "llama")
    words = 0
    for field in gguf.GGUFReader(vocabulary).fields.values():
        if field.name.startswith("tokenizer.") and field.name != "tokenizer.chat_template":
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
            words = len(field.data) if field.name == "tokenizer.ggml.tokens" else words
    writer.add_chat_template(template.read_text(encoding="utf-8"))
    writer.add_name("random")
    writer.add_vocab_size(words)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    shapes = {"token_embd": (words, WIDTH), "output_norm": (WIDTH,)}  # the output has the embedding's weights
    for layer in range(LAYERS):
        square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        wide = {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        norms = dict.fromkeys(("attn_norm", "ffn_norm"), (WIDTH,))
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in (square | wide | norms).items()}
    draw = np.random.default_rng(SEED)
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
        else:
            packed = gguf.quants.quantize(
                draw.normal(0, SPREAD, shape).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
            )
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
