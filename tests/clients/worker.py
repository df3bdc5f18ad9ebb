"""A worker that knows only proto/: serves one node, once per call. python3 worker.py URL NODE CLASS EFFECTS_FILE

An effect is a line in EFFECTS_FILE; a keyed one is written once per key. With `die` in the input it is killed between
the effect and the result.
"""

import asyncio
import hashlib
import json
import os
import secrets
import signal
import sys

import nats

URL, NODE, CLASS, EFFECTS = sys.argv[1:5]
KIND = "py-" + NODE.rsplit(".", 1)[1].lower().replace("_", "-")
SESSION = secrets.token_hex(13).upper()


def lines():
    return open(EFFECTS).read().splitlines() if os.path.exists(EFFECTS) else []


def effect(line):
    with open(EFFECTS, "a") as file:
        file.write(line + "\n")


async def main():
    connection = await nats.connect(URL)

    async def ask(what, **request):
        for _ in range(100):  # until a coordinator listens
            try:
                answer = await connection.request(f"ditto.ledger.{what}", json.dumps(request).encode(), timeout=5)
                break
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.1)
        else:
            raise RuntimeError("no coordinator answers")
        if answer.headers and "Ditto-Error" in answer.headers:
            raise RuntimeError(answer.data.decode())
        return json.loads(answer.data)

    opened = await ask("open", session=SESSION, workerKind=KIND, name="worker.py", build="1", wire=1)
    offer = {"node": NODE, "policy": {"class": CLASS, "query": CLASS == "K"}}
    consumer = (await ask("announce", session=SESSION, workerKind=KIND, offers=[offer]))["consumer"]

    async def renew():
        while True:
            await asyncio.sleep(opened["ttlMs"] / 3000)
            if not (await ask("renew", session=SESSION, held=[]))["alive"]:
                sys.exit("the session is dead")

    renewing = asyncio.create_task(renew())
    stream = connection.jetstream()
    jobs = await stream.pull_subscribe_bind(consumer=consumer, stream="DITTO_JOBS")
    print("serves", flush=True)
    while not renewing.done():
        try:
            [job] = await jobs.fetch(1, timeout=1)
        except nats.errors.TimeoutError:
            continue
        call, headers, request = job.headers["Ditto-Call"], job.headers, job.data
        if hashlib.sha256(request).hexdigest() != headers["Ditto-Request-Hash"]:
            await job.term()
            continue
        answer = {k: headers[k] for k in ("Ditto-Call", "Ditto-Bucket", "Ditto-Loop", "Ditto-Request-Hash")}
        answer |= {"Ditto-Wire": "1", "Ditto-Session": SESSION}
        body = {"verdict": "succeeded", "output": {"doneBy": "python"}}
        if headers["Ditto-Mode"] == "query":
            answer["Ditto-Mode"] = "query"
            if bytes.fromhex(headers["Ditto-Key"]).decode() not in lines():
                error = {"class": "unknown", "code": "KEY_ABSENT", "message": "not there", "retryable": False}
                body = {"verdict": "unknown", "error": error}
        else:
            item = {"bucket": int(headers["Ditto-Bucket"]), "call": call, "token": secrets.token_hex(13)}
            claim = (await ask("claim", session=SESSION, items=[item]))["answers"][0]
            if not isinstance(claim, dict) or "granted" not in claim:
                await job.ack()  # settled, taken, refused or missing: not ours
                continue
            await job.ack()  # the ledger owns the call now
            granted = claim["granted"]
            if CLASS != "K" or granted["key"] not in lines():
                effect(granted["key"] if CLASS == "K" else json.loads(request)["id"])
            if "die" in json.loads(request):
                os.kill(os.getpid(), signal.SIGKILL)
            answer |= {"Ditto-Fence": str(granted["fence"]), "Ditto-Token": item["token"]}
        answer["Nats-Msg-Id"] = f"{call}.{answer.get('Ditto-Fence', 0)}.1.{secrets.token_hex(8)}"
        await stream.publish(headers["Ditto-Reply"], json.dumps(body).encode(), headers=answer)
        if headers["Ditto-Mode"] == "query":
            await job.ack()


asyncio.run(main())
