"""English: the messages of layertap.ranks."""

MESSAGES = {
    "ranks.agree": "the recorded data show no difference between them",
    "ranks.first_nan": "the first NaN is in step {step}, on {ranks}",
    "ranks.head": "{count} ranks, {steps} steps that all of them recorded",
    "ranks.losses": "rank {rank}: mean loss {mean:.6g}, largest {most:.6g}",
    "ranks.no_weights": "no weights were recorded on all ranks; what='param,step_grad' shows whether they differ",
    "ranks.parted": "the ranks differ: from step {step} on {site} is not the same on ranks {groups}",
    "ranks.rank_site": "rank {rank} ({site})",
    "ranks.same_batch": (
        "all ranks had the same batch in {count} of {steps} steps: is the sampler distributed over the ranks?"
    ),
    "ranks.sampled": "{count} of {total} steps were compared",
    "ranks.stands_out": (
        "rank {rank} differs from the others: {site} is more than {far} × theirs in {count} of {steps} steps"
    ),
}
