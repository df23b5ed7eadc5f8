"""A monitor as a callback of transformers.Trainer (pip install 'layertap[hf,accelerate]').

python examples/train_transformers.py [OUTPUT_DIR]
"""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import layertap as lt
from layertap.monitor import epoch_statistics
from layertap.training.transformers import MonitorCallback


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (20, 16))]
    callback = MonitorCallback(
        layers_to_monitor={"transformer.h.1": {"alias": "last_block", "record_type": "epoch_full"}},
        epochs_to_record=[1, 3],
        output_dir=folder / "monitor",
    )
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        num_train_epochs=3,
        per_device_train_batch_size=8,  # 8, 8, 4
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=rows, callbacks=[callback]).train()

    print(callback.monitor.receipt)
    for found in epoch_statistics(lt.Run(folder / "monitor")):
        print(f"epoch {found.epoch} {found.site}: {found.statistics.count} values, std {found.statistics.std:.4f}")


if __name__ == "__main__":
    main()
