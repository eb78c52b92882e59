"""Who held the decodes of vLLM up: the same load with whole prefills and with chunked ones.

Victims decode while neighbours arrive with long prompts.  The share of the victims' decode time that is stalled beside
prefills has to fall when prefills are cut into chunks, and both runs have to say so by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.engines.figures import Figure, Outcome
from tests.engines.lanes.vllm import VllmServer, make_model
from tests.engines.load import Ask, Target, drive
from tests.engines.ours import Exported, wait_until_exported
from tests.support.otlp_receiver import HttpReceiver
from tests.support.plain import Span

WHOLE: Final = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "1024")
CHUNKED: Final = ("--enable-chunked-prefill", "--max-num-batched-tokens", "32")
VICTIMS: Final = 12
NEIGHBOURS: Final = 18
# Room for all: this run is about prefills, not about evictions.
ROOM: Final = ("--num-gpu-blocks-override", "64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """What the victims' spans say: seconds of decode, and of stalls by what stood beside them."""

    victims: int
    judged: int
    decode: float
    prefill: float
    total: float

    @property
    def share(self) -> float | None:
        """The share of decode time that was stalled beside prefills."""
        return self.prefill / self.decode if self.decode else None


def run(python: Path, scratch: Path, version: str) -> Outcome:
    """Run both; EngineFailed if a server does not start."""
    model = scratch / "model"
    make_model(python, model)
    whole, chunked = (_measured(python, model, scratch, arguments) for arguments in (WHOLE, CHUNKED))
    outcome = Outcome(engine="vLLM, stalls beside prefills", version=version)
    outcome.figures += [
        Figure(
            name="share of decode stalled beside prefills: whole prefills, chunks of 32",
            engine=whole.share,
            ours=chunked.share,
            within=-0.01,
            at_least=True,
        ),
        Figure(name="victims, judged: whole prefills", engine=whole.victims, ours=whole.judged),
        Figure(name="victims, judged: chunks of 32", engine=chunked.victims, ours=chunked.judged),
    ]
    for name, stalls in (("whole prefills", whole), ("chunks of 32", chunked)):
        outcome.notes.append(
            f"{name}: {stalls.prefill:.2f} s of {stalls.decode:.2f} s of decode stalled beside prefills, "
            f"{stalls.total:.2f} s in all"
        )
    return outcome


def _measured(python: Path, model: Path, scratch: Path, arguments: Sequence[str]) -> Stalls:
    with HttpReceiver() as receiver:
        server = VllmServer(python=python, model=model, scratch=scratch, arguments=(*ROOM, *arguments)).start(receiver)
        with server:
            target = Target(base=server.base, model="tiny", extra={"temperature": 0.0})
            victims, neighbours = _loads()
            asyncio.run(_together(target, victims, neighbours))
        wait_until_exported(receiver, lambda: len(victims) + len(neighbours))
        return _read(Exported(receiver), victims)


def _loads() -> tuple[list[Ask], list[Ask]]:
    victims = [Ask(number=i, kind="stream", words=10, tokens=120) for i in range(VICTIMS)]
    neighbours = [Ask(number=VICTIMS + i, kind="whole", words=750, tokens=2) for i in range(NEIGHBOURS)]
    return victims, neighbours


async def _together(target: Target, victims: Sequence[Ask], neighbours: Sequence[Ask]) -> None:
    """Three victims at a time in the four slots of the engine, and one neighbour after another in the fourth."""
    await asyncio.gather(drive(target, victims, at_once=3), drive(target, neighbours, at_once=1))


def _read(ours: Exported, victims: Sequence[Ask]) -> Stalls:
    known = ours.by_trace()
    spans: list[Span] = [known[ask.trace_id] for ask in victims if ask.trace_id in known]
    return Stalls(
        victims=len(victims),
        judged=sum("inference.stall.time" in span["attributes"] for span in spans),
        decode=ours.sum_of("inference.decode_time", spans),
        prefill=ours.sum_of("inference.stall.prefill", spans),
        total=ours.sum_of("inference.stall.time", spans),
    )
