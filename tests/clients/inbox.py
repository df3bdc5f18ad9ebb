"""Stores submissions for later: python3 inbox.py URL SUBJECT BODY [SUBJECT BODY …]. Prints the stream of each."""

import asyncio
import sys

import nats


async def main(url, *pairs):
    connection = await nats.connect(url)
    stream = connection.jetstream()
    for subject, body in zip(pairs[::2], pairs[1::2]):
        stored = await stream.publish(subject, body.encode(), timeout=10)
        print(stored.stream)
    await connection.close()


asyncio.run(main(*sys.argv[1:]))
