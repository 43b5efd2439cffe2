"""The embedded engine's end of a weight group: a real gloo broadcast, checked, given up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import xxhash
from areal.broadcast import ProcessGroup, join_group, rendezvous_server
from areal.engine.group import GroupReceiver
from areal.errors import DataError, InfraError

TENSORS = {"a": torch.arange(12, dtype=torch.float32).view(3, 4), "b": torch.arange(5).to(torch.bfloat16)}


def bucket(name: str, **changed: Any) -> dict[str, Any]:
    raw = {key: tensor.reshape(-1).view(torch.uint8).numpy().data for key, tensor in TENSORS.items()}
    body = {
        "names": list(TENSORS),
        "dtypes": ["float32", "bfloat16"],
        "shapes": [[3, 4], [5]],
        "xxh3": [xxhash.xxh3_128_hexdigest(data) for data in raw.values()],
        "group_name": name,
        "load_format": "flattened_bucket",
    }
    return {**body, **changed}


def flat() -> torch.Tensor:
    return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in TENSORS.values()])


async def joined(receiver: GroupReceiver, name: str, pool: ThreadPoolExecutor) -> ProcessGroup:
    """The trainer's end of a group of two."""
    store = rendezvous_server(120.0)
    sender = asyncio.get_running_loop().run_in_executor(
        pool, lambda: join_group("gloo", "127.0.0.1", store.port, name=name, rank=0, world_size=2, timeout_s=120.0)
    )
    place = {"master_address": "127.0.0.1", "master_port": store.port, "rank_offset": 1, "world_size": 2}
    await receiver.join({**place, "group_name": name, "backend": "gloo"})
    return await sender


def test_buckets_are_received_as_they_were_sent_and_a_wrong_tensor_is_named() -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            receiver = GroupReceiver()
            group = await joined(receiver, "first", pool)
            receiver.begin()
            work = group.broadcast(flat())
            await receiver.receive(bucket("first"))
            work.wait()
            taken = receiver.take()
            assert {name: tensor.tolist() for name, tensor in taken.items()} == {
                name: tensor.tolist() for name, tensor in TENSORS.items()
            }
            assert taken["b"].dtype is torch.bfloat16
            work = group.broadcast(flat())
            with pytest.raises(DataError, match="tensor 'b' that was received differs"):
                await receiver.receive(bucket("first", xxh3=[bucket("first")["xxh3"][0], "0"]))
            work.wait()
            assert receiver.take() == {}
            assert receiver.leave("first")
            assert not receiver.leave("first")
            group.give_up()

    asyncio.run(run())


def test_a_sender_that_gives_up_ends_a_receive_and_another_group_is_joined() -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            receiver = GroupReceiver()
            group = await joined(receiver, "first", pool)
            receiving = asyncio.ensure_future(receiver.receive(bucket("first")))
            await asyncio.sleep(0)
            group.give_up()
            with pytest.raises(InfraError, match="the broadcast by first failed"):
                await receiving
            assert receiver.leave("first")
            second = await joined(receiver, "second", pool)
            work = second.broadcast(flat())
            await receiver.receive(bucket("second"))
            work.wait()
            assert sorted(receiver.take()) == ["a", "b"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"group_name": "nobody"}, "no group nobody"),
        ({"load_format": None}, "flattened buckets only"),
        ({"names": []}, "needs names"),
        ({"dtypes": ["float32"]}, "of one length"),
        ({"dtypes": ["float32", "Tensor"]}, "no type of torch"),
    ],
)
def test_a_body_that_describes_no_bucket_is_refused(changed: dict[str, Any], words: str) -> None:
    async def run() -> None:
        receiver = GroupReceiver()
        receiver._groups["there"] = ProcessGroup.__new__(ProcessGroup)
        with pytest.raises(DataError, match=words):
            await receiver.receive(bucket("there", **changed))

    asyncio.run(run())
