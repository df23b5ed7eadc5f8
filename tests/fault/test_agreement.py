"""A rank that raises an error: the others raise too, and name it, where they would have waited for ever."""

import threading

import pytest
from torch.distributed import HashStore

from layertap.errors import RankFailed
from layertap.fault import agreement
from layertap.fault.agreement import RankAgreement


def in_threads(store, works):
    """Runs a function for each rank, in threads; returns what each raised."""
    raised = {}
    made = []
    for rank in range(len(works)):
        agreement._made[0] = 0  # as in processes of their own
        made.append(RankAgreement(len(works), rank, store))

    def run(rank):
        try:
            with made[rank].reporting_errors():
                works[rank](made[rank])
        except Exception as error:  # noqa: BLE001 - what is asked for
            raised[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return raised


@pytest.fixture(autouse=True)
def numbers():
    before = agreement._made[0]
    yield
    agreement._made[0] = before


def three(one):
    for _ in range(3):
        one.arrive()


def raises(one):
    one.arrive()
    raise ValueError("no such head")


def test_ranks_that_come_go_on():
    assert not in_threads(HashStore(), [three, three, three])


def test_all_ranks_raise_and_name_the_one_that_did():
    raised = in_threads(HashStore(), [three, raises, three])
    assert isinstance(raised[1], ValueError)
    for rank in (0, 2):
        assert isinstance(raised[rank], RankFailed)
        assert str(raised[rank]) == (
            "rank 1 raised an error, so the search ends on all ranks: ValueError: no such head"
        )


def test_an_error_that_follows_from_a_peers_names_the_peer():
    together = threading.Barrier(2)

    def first(one):
        try:
            raise ValueError("no such head")
        finally:
            one._store.set(one._error, "0 ValueError: no such head")
            together.wait()

    def second(one):
        together.wait()
        raise RuntimeError("Connection closed by peer")

    raised = in_threads(HashStore(), [first, second])
    assert isinstance(raised[0], ValueError)
    assert "rank 0 raised an error" in str(raised[1])


def test_a_rank_that_never_comes_is_left_to_the_process_group(monkeypatch):
    monkeypatch.setattr(agreement, "LONGEST", 0.05)
    assert not in_threads(HashStore(), [three, lambda one: None])
