"""English: the messages of layertap.training_diff."""

MESSAGES = {
    "training_diff.above": "above rounding from: {place}",
    "training_diff.compared": "compared: {records} records of {steps} steps",
    "training_diff.data_unknown": (
        "they differ from step {step} on, from the first site on, and no batch was recorded: the data "
        "may differ, or the model"
    ),
    "training_diff.epoch_batch": "epoch {epoch}, batch {batch}",
    "training_diff.error": "relative error ≈ {error}",
    "training_diff.fault": "they differ from step {step} on, by more than rounding explains",
    "training_diff.first_bit": "first bit that differs: {place}",
    "training_diff.grown": (
        "they differ by rounding from step {first} on and by more than that from step {above} on: "
        "rounding that grew, or a small fault; these runs cannot show which"
    ),
    "training_diff.identical": "all {records} records of {steps} steps are bit-identical",
    "training_diff.nothing_common": "the two trainings have no step and site in common",
    "training_diff.only_in": "only in {name}: {site}",
    "training_diff.other_data": (
        "the batches differ from step {step} on: the data, its order or its augmentation, not the model"
    ),
    "training_diff.rank": "rank {rank}",
    "training_diff.rounding": "they differ from step {step} on, by no more than rounding explains",
    "training_diff.shards_disagree": "its shards are inconsistent",
    "training_diff.sites_alone": "what both have is bit-identical, but {count} sites are on one side only",
    "training_diff.step": "step {step}",
    "training_diff.steps_alone": (
        "the {steps} steps that both have are bit-identical, but {count} steps are on one side only"
    ),
    "training_diff.steps_only_in": "{count} steps ({extra} … {extra2}) are only in {name}",
}
