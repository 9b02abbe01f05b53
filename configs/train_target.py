"""The embedded target: 11.0M parameters on the running Python's standard library.

COMMAND  python -m experiments.train --config=configs/train_target.py --workdir=runs/target
COST     6.1M tokens (2.7 passes), 81 minutes on two busy cores; about 55 on two quiet ones
RESULT   held-out loss 3.31 nats a token (3.6 bytes a token); training loss 2.5 in the last steps
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            # A folder to distil from; empty to learn the text itself (and train the tokenizer).
            "teacher": "",
            # Rows of a teacher's own text that join the training windows; a target has no teacher.
            "self_generated": {
                "rows": 0,
                "prompt_length": 48,
                "temperatures": (0.0, 0.6, 1.0),
                "batch_size": 64,
            },
            "export": "",  # where the Hugging Face folder goes; empty: WORKDIR/export
            "model": {
                "vocab_size": 4096,
                "hidden_size": 384,
                "intermediate_size": 1024,
                "num_hidden_layers": 6,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "head_dim": 64,
                "max_position_embeddings": 1024,
                "tie_word_embeddings": True,
            },
            # (steps, rows a batch, tokens a row): long windows last, so that far positions are trained too.
            "stages": ((2600, 8, 256), (400, 4, 512)),
            "learning_rate": 1.5e-3,
            "warmup_steps": 150,
            "final_fraction": 0.05,
            "weight_decay": 0.1,
            "clip_norm": 1.0,
            "seed": 0,
            "checkpoint_every": 150,
            "evaluate_every": 150,
            "evaluation_batches": 8,
        }
    )
