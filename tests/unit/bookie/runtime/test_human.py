"""Sizes and durations in a readable form."""

from bookie.runtime.human import agreeing, counted, duration, printable, size


def test_sizes_have_binary_units() -> None:
    assert [size(value) for value in (0, 1023, 1536, 5 << 40, 1 << 60)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 TiB", "1,024.0 PiB"
    ]  # fmt: skip


def test_time_spans_have_their_two_largest_units() -> None:
    spans = [duration(value) for value in (-1, 400, 2_500, 60_000, 61_000, 3_600_000, 7_500_000, 90_000_000)]
    assert spans == ["0.0 s", "0.4 s", "2.5 s", "1 min", "1 min 1 s", "1 h", "2 h 5 min", "1 d 1 h"]


def test_names_do_not_break_lines() -> None:
    assert printable("a\nb\u202e") == "a\\nb\\u202e"


def test_a_noun_agrees_with_its_number() -> None:
    assert [counted(number, "ledger") for number in (0, 1, 2)] == ["0 ledgers", "1 ledger", "2 ledgers"]
    nouns = ("entry", "last copy", "day", "batch", "process", "bookie")
    assert [counted(1, noun) for noun in nouns] == [f"1 {noun}" for noun in nouns]
    plurals = ["2 entries", "2 last copies", "2 days", "2 batches", "2 processes", "2 bookies"]
    assert [counted(2, noun) for noun in nouns] == plurals
    assert counted(12_345, "entry", ",") == "12,345 entries"


def test_a_verb_agrees_with_its_number() -> None:
    assert [agreeing(number, "is", "are") for number in (0, 1, 2)] == ["are", "is", "are"]
