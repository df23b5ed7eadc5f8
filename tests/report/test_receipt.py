"""The receipt in words."""

from layertap.site import Receipt, SiteReceipt


def receipt(**changes):
    sites = (
        SiteReceipt(path="a", role="output", kind="Linear", fired=2, tensors=2),
        *(SiteReceipt(path=f"b.{i}", role="output", kind="ReLU", why="never called") for i in range(11)),
        SiteReceipt(
            path="c", role="input", kind="Linear", fired=1, tensors=1, skipped={"None": 3}, dropped=1, direct=2
        ),
    )
    return Receipt(
        **{"sites": sites, "steps": 2, "records": 3, "bytes": 2048, "seconds": 2.0, "overhead": 0.1} | changes
    )


def test_it_says_what_came_and_what_it_cost():
    assert str(receipt()).splitlines()[0] == (
        "recorded 3 tensors from 2 of 13 sites in 2 step(s), 2.0 KiB of tensors kept; "
        "2.00 s, of which 0.100 s (5%) inside layertap"
    )


def test_it_groups_silence_by_reason_in_natural_order():
    assert "  b.0, b.1, b.2, b.3 and 7 more: never called" in str(receipt()).splitlines()


def test_it_hides_no_loss():
    text = str(receipt(error="a: OSError: full", lost=4))
    for part in (
        "stopped early: a: OSError: full",
        "lost: 4 records",
        "not kept, because the budget was used up: 1",
        "None × 3",
        "2 calls",
    ):
        assert part in text


def test_it_survives_run_json():
    assert Receipt.from_dict(receipt().to_dict()) == receipt()


def test_a_note_is_told_once():
    assert str(receipt(notes=("2 steps were skipped",))).count("2 steps were skipped") == 1
