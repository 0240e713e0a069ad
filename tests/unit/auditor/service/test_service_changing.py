"""Bookies that change their registration as Pulsar's driver does: unregistered for a moment, but not lost."""

from __future__ import annotations

from auditor.service.watch.changing import REGISTRATION_CHANGE_S_MAX, RegistrationChanges
from bookie.model.ids import BookieId

A, B = BookieId("a:1"), BookieId("b:1")


def test_a_change_of_registration_does_not_count_until_it_lasts() -> None:
    changing = RegistrationChanges()
    assert changing.observe({A, B}, {A, B}, 10.0) == set()
    assert changing.observe({A, B}, {B}, 20.0) == {A}
    assert changing.left_s(20.0) == REGISTRATION_CHANGE_S_MAX
    assert changing.observe({A, B}, {B}, 20.0 + REGISTRATION_CHANGE_S_MAX / 2) == {A}
    assert changing.observe({A, B}, {B}, 20.0 + REGISTRATION_CHANGE_S_MAX) == set()
    assert changing.left_s(20.0 + REGISTRATION_CHANGE_S_MAX) is None
    assert changing.observe({A, B}, {B}, 30.0 + REGISTRATION_CHANGE_S_MAX) == set()


def test_the_wait_starts_again_for_each_absence() -> None:
    changing = RegistrationChanges()
    changing.observe({A}, {A}, 0.0)
    assert changing.observe({A}, set(), 1.0) == {A}
    assert changing.observe({A}, {A}, 1.1) == set()
    assert changing.observe({A}, set(), 5.0) == {A}
    assert changing.observe({A}, set(), 5.0 + REGISTRATION_CHANGE_S_MAX) == set()


def test_there_is_no_wait_for_earlier_losses_or_for_bookies_without_a_cookie() -> None:
    changing = RegistrationChanges()
    assert changing.observe({A, B}, {B}, 0.0) == set()
    assert changing.observe({A}, set(), 1.0) == set()
