"""Artefacts are made once, remembered within bounds, and never half."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from areal_judge.judge.languages.toolchains import ArtefactCache


@dataclass(frozen=True)
class Thing:
    name: str
    size_bytes: int = 10
    lasting: bool = True


class Workshop:
    """Makes things when told to, and counts."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.cancelled: list[str] = []
        self.gate = asyncio.Event()
        self.began = asyncio.Event()

    def maker(self, thing: Thing):  # type: ignore[no-untyped-def]
        async def make() -> Thing:
            self.made.append(thing.name)
            self.began.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(thing.name)
                raise
            return thing

        return make


@pytest.fixture
def shop() -> Workshop:
    return Workshop()


async def test_whoever_asks_meanwhile_shares_what_is_being_made(shop: Workshop) -> None:
    cache: ArtefactCache[Thing] = ArtefactCache(100)
    asking = [asyncio.ensure_future(cache.get("a", shop.maker(Thing("a")))) for _ in range(5)]
    await asyncio.sleep(0)
    shop.gate.set()
    answers = await asyncio.gather(*asking)
    assert [cached for _, cached in answers] == [False, True, True, True, True]
    assert shop.made == ["a"]
    assert cache.misses == 1


async def test_the_least_recently_used_goes_first_when_room_is_short(shop: Workshop) -> None:
    shop.gate.set()
    cache: ArtefactCache[Thing] = ArtefactCache(25)
    for name in ("a", "b", "a", "c", "a", "b"):
        await cache.get(name, shop.maker(Thing(name)))
    assert shop.made == ["a", "b", "c", "b"]
    assert cache.size_bytes == 20


async def test_what_is_larger_than_all_the_room_is_given_and_not_kept(shop: Workshop) -> None:
    shop.gate.set()
    cache: ArtefactCache[Thing] = ArtefactCache(25)
    for _ in range(2):
        await cache.get("big", shop.maker(Thing("big", size_bytes=26)))
    assert shop.made == ["big", "big"]
    assert cache.size_bytes == 0


async def test_what_might_end_otherwise_is_made_anew(shop: Workshop) -> None:
    shop.gate.set()
    cache: ArtefactCache[Thing] = ArtefactCache(100)
    for _ in range(2):
        await cache.get("slow", shop.maker(Thing("slow", lasting=False)))
    assert shop.made == ["slow", "slow"]


async def test_a_fault_reaches_all_who_wait_and_is_forgotten(shop: Workshop) -> None:
    cache: ArtefactCache[Thing] = ArtefactCache(100)

    async def fail() -> Thing:
        await shop.gate.wait()
        raise OSError("no")

    asking = [asyncio.ensure_future(cache.get("a", fail)) for _ in range(3)]
    await asyncio.sleep(0)
    shop.gate.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(answer) for answer in answers] == [OSError] * 3
    assert (await cache.get("a", shop.maker(Thing("a"))))[1] is False


async def test_one_who_leaves_takes_nothing_from_those_who_wait(shop: Workshop) -> None:
    cache: ArtefactCache[Thing] = ArtefactCache(100)
    first, second = (asyncio.ensure_future(cache.get("a", shop.maker(Thing("a")))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    shop.gate.set()
    assert (await second)[0] == Thing("a")
    assert shop.cancelled == []


async def test_nothing_is_made_for_nobody(shop: Workshop) -> None:
    cache: ArtefactCache[Thing] = ArtefactCache(100)
    asking = [asyncio.ensure_future(cache.get("a", shop.maker(Thing("a")))) for _ in range(2)]
    await shop.began.wait()
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)
    assert shop.cancelled == ["a"]
    shop.gate.set()
    assert await cache.get("a", shop.maker(Thing("a"))) == (Thing("a"), False)


async def test_closing_ends_what_is_under_way(shop: Workshop) -> None:
    cache: ArtefactCache[Thing] = ArtefactCache(100)
    asking = asyncio.ensure_future(cache.get("a", shop.maker(Thing("a"))))
    await shop.began.wait()
    await cache.close()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert shop.cancelled == ["a"]
