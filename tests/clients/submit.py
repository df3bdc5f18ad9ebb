"""Submits with the plain NATS client, request–reply: python3 submit.py URL SUBJECT BODY [HEADER=VALUE …].

Prints one JSON line: {"headers": {…}, "body": "…"}.
"""

import asyncio
import json
import sys

import nats


async def main(url, subject, body, *headers):
    connection = await nats.connect(url)
    pairs = dict(header.split("=", 1) for header in headers)
    answer = await connection.request(subject, body.encode(), timeout=10, headers=pairs or None)
    print(json.dumps({"headers": dict(answer.headers or {}), "body": answer.data.decode()}))
    await connection.close()


asyncio.run(main(*sys.argv[1:]))
