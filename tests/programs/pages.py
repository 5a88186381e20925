"""Training steps of other people's libraries, as the pages about them have them."""

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "how-to" / "libraries"
_BLOCK = re.compile(r"^```python\n# (\w+)_step\.py\n(.*?)^```", re.M | re.S)
_WORDS = {"width": 256, "layers": 2, "tokens": 32, "words": 128}
SMALL = {
    "linen": _WORDS,
    "nnx": _WORDS,
    "equinox": _WORDS,
    "keras": {"width": 64, "rows": 2},
    "tunix": {
        "tokens": 32,
        "num_layers": 2,
        "embed_dim": 64,
        "hidden_dim": 128,
        "num_heads": 8,
        "num_kv_heads": 8,
        "head_dim": 16,
        "vocab_size": 256,
    },
    "levanter": {
        "tokens": 32,
        "words": 128,
        "hidden_dim": 64,
        "intermediate_dim": 128,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 4,
    },
    "penzai": _WORDS | {"width": 512},
    "graph": {"nodes": 8, "edges": 32, "width": 16, "rounds": 2},
    "halo": {"size": 64},
    "maxtext": {
        "base_emb_dim": 64,
        "base_mlp_dim": 128,
        "base_num_decoder_layers": 2,
        "base_num_query_heads": 4,
        "base_num_kv_heads": 4,
        "head_dim": 16,
        "vocab_size": 128,
        "per_device_batch_size": 1,
        "max_target_length": 32,
        "override_model_config": True,
        "attention": "dot_product",
    },
}
"""Sizes of which a step takes a moment on CPUs, by its file's name."""
LOUD = {"levanter", "maxtext", "penzai", "tunix"}
"""Their libraries warn about what they import themselves."""
LIBRARY = {"linen": "flax", "nnx": "flax", "graph": "jraph", "halo": "jax"}


def sources():
    """The factories of all pages, by their files' names."""
    return {
        name: text
        for page in sorted(PAGES.glob("*.md"))
        for name, text in _BLOCK.findall(page.read_text())
    }


def written(name, folder):
    """The step of a page, small, as `lagom report` takes it."""
    (folder / f"{name}_step.py").write_text(sources()[name])
    file = folder / f"{name}_small.py"
    file.write_text(
        f"from {name}_step import make_step as real\n\n\n"
        f"def make_step(devices):\n    return real(devices, **{SMALL[name]!r})\n"
    )
    return f"{file}:make_step"
