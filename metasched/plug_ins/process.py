"""The process of the plug-ins: answers questions on its input, a frame for each plug-in.

The pipes are moved away from standard input and output. So output of a plug-in is lost and
cannot be an answer.
"""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

from metasched.plug_ins.messages import PlugInAnswer, Question
from metasched.policies.plug_in_ratings import PlugIn, PlugInError, ask, load_all
from metasched.processes.confinement import confine
from metasched.processes.frames import read_frames, write_frame

NICENESS: Final = 5  # the scheduler goes first


def answer(question: Question, loaded: dict[PlugIn, Any], plug_in: PlugIn) -> PlugInAnswer:
    """Return the answer of a plug-in; it is loaded by the first question that names it."""
    if plug_in not in loaded:
        loaded.update(load_all([plug_in]))
    instance = loaded[plug_in]
    if isinstance(instance, PlugInError):
        return PlugInAnswer(question.id, error=str(instance))
    return PlugInAnswer(
        question.id,
        tuple(ask(plug_in, instance, job, question.clusters) for job in question.jobs),
    )


def main() -> None:
    """Answer until the input ends."""
    questions, answers = confine()
    os.nice(NICENESS)
    decoder, loaded = msgspec.json.Decoder(Question), dict[PlugIn, Any]()
    for message in read_frames(questions):
        question = decoder.decode(message)
        for plug_in in question.plug_ins:
            write_frame(answers, msgspec.json.encode(answer(question, loaded, plug_in)))


if __name__ == "__main__":
    main()
