"""The balance of sampled tokens: what is in no book for long is lost, and nothing is counted twice over a restart."""

from __future__ import annotations

from areal.ledger.values import SampleMeta
from areal.record.episode_ends import GENERATED, IN_FLIGHT, TokenFate, wasted_share, wasted_text
from areal.rollout.contract.values import SampleDone
from areal.rollout.controller.token_book import WINDOW_S, TokenBook
from hypothesis import given
from hypothesis import strategies as st


def sample(sampled: int, moved: int = 0) -> SampleMeta:
    return SampleMeta(1, 0.0, 0, 0, 1, sampled + 5, False, 0, sampled=sampled, moved=moved)


def watch(book: TokenBook, at: float, held: int = 0) -> float:
    """Look twice a second for a little longer than a gap must last; returns the time then."""
    for tick in range(int(2 * WINDOW_S) + 2):
        book.look(at + tick / 2, held)
    return at + WINDOW_S + 1


def fates(book: TokenBook) -> dict[str, int]:
    return {str(name): count for name, count in book.counts().items() if count}


def test_what_nobody_has_is_lost_after_a_while_and_not_before():
    book = TokenBook()
    book.told("server/s", "1", {GENERATED: 100})
    book.told("worker/w", "1", {IN_FLIGHT: 30, TokenFate.ABORTED: 10})
    for tick in range(int(2 * WINDOW_S)):
        book.look(tick / 2, held=40)
    assert fates(book) == {GENERATED: 100, "aborted": 10, IN_FLIGHT: 90}
    watch(book, 100.0, held=40)
    assert fates(book) == {GENERATED: 100, "aborted": 10, "lost": 20, IN_FLIGHT: 70}
    watch(book, 200.0, held=40)
    assert fates(book)["lost"] == 20


def test_what_a_worker_had_in_work_is_lost_with_it_and_what_it_ended_stays_counted():
    book = TokenBook()
    book.told("server/s", "1", {GENERATED: 60})
    book.told("worker/w", "1", {IN_FLIGHT: 25, TokenFate.ABORTED: 35})
    at = watch(book, 0.0)
    assert fates(book) == {GENERATED: 60, "aborted": 35, IN_FLIGHT: 25}
    book.told("worker/w", "2", {IN_FLIGHT: 0, TokenFate.ABORTED: 0})
    watch(book, at)
    assert fates(book) == {GENERATED: 60, "aborted": 35, "lost": 25}


def test_a_late_word_of_a_process_that_was_replaced_counts_nothing():
    book = TokenBook()
    book.told("server/s", "1", {GENERATED: 10})
    book.told("server/s", "2", {GENERATED: 3})
    book.told("server/s", "1", {GENERATED: 11})
    book.told("server/s", "2", {GENERATED: 4})
    assert book.counts()[GENERATED] == 14


def test_tokens_that_a_killed_server_had_not_told_are_counted_with_those_who_have_them():
    book = TokenBook()
    book.told("server/s", "1", {GENERATED: 50})
    book.told("worker/w", "1", {TokenFate.EVALUATED: 58})
    watch(book, 0.0)
    assert fates(book) == {GENERATED: 58, "evaluated": 58}


def test_beats_that_are_apart_are_no_gap():
    book = TokenBook()
    for tick in range(400):  # a server's beat is half a second ahead of the worker's, at 100 tokens a second
        book.told("server/s", "1", {GENERATED: 50 * (tick + 1)})
        book.told("worker/w", "1", {TokenFate.ABORTED: 50 * tick})
        book.look(tick / 2, held=0)
    assert TokenFate.LOST not in fates(book)
    watch(book, 200.0)
    assert fates(book)["lost"] == 50


def test_groups_end_once_and_what_moved_is_told_apart():
    book = TokenBook()
    book.told("server/s", "1", {GENERATED: 100})
    book.ended(TokenFate.SERVED, [sample(20, moved=5), SampleDone(0, 1, 1.0, 0, 0, 1, sampled=10)])
    book.ended(TokenFate.ABORTED, [sample(30, moved=9)])
    book.ended(TokenFate.STALE, [sample(1)])
    assert fates(book) == {GENERATED: 100, "served": 25, "migrated": 5, "aborted": 30, "stale": 1, IN_FLIGHT: 39}
    assert wasted_share(book.counts()) == 0.31
    assert wasted_text(book.counts()) == "31.00%: lost 0, stale 1, aborted 30"


def test_before_the_first_token_there_is_no_share():
    assert wasted_share(TokenBook().counts()) is None
    assert wasted_text({}) == "—"


COUNTS = st.dictionaries(st.sampled_from([GENERATED, IN_FLIGHT, *TokenFate]), st.integers(0, 99))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("told"), st.sampled_from("ab"), st.integers(1, 3), COUNTS),
        st.tuples(st.just("ended"), st.sampled_from(list(TokenFate)), st.integers(0, 50), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none(), st.none()),
    ),
    max_size=30,
)


@given(EVENTS)
def test_a_restart_forgets_and_doubles_nothing_and_all_fates_add_up_at_the_end(events):
    """`plain` is never restarted; incarnations only grow, counts of one never fall."""
    book, plain = TokenBook(), TokenBook()
    newest: dict[str, tuple[int, dict[str, int]]] = {}
    for kind, who, number, counts in events:
        if kind == "told":
            incarnation, before = newest.get(who, (1, {}))
            fresh = max(incarnation, number)
            grown = {} if fresh > incarnation else before
            newest[who] = (
                fresh,
                {str(k): grown.get(k, 0) + v for k, v in counts.items()}
                | {k: v for k, v in grown.items() if k not in counts},
            )
            for one in (book, plain):
                one.told(who, str(fresh), newest[who][1])
        elif kind == "ended":
            for one in (book, plain):
                one.ended(who, [sample(number, number // 2)])
        else:
            kept = book.kept()
            book = TokenBook()
            book.restore(kept)
    assert fates(book) == fates(plain)
    book.close()
    counts = book.counts()
    assert counts[IN_FLIGHT] == 0
    assert sum(counts.get(fate, 0) for fate in TokenFate) == counts.get(GENERATED, 0)
