"""Steps that a running broker carries out, over its control socket."""

from __future__ import annotations

import base64
from typing import Any

from broker_core.errors import OperatorError
from console.models import Instance
from console.services.actions.scene import Done, Options, Planned, Scene, Step, says
from console.services.actions.variables import expand_bytes

OWN_TOPICS = "$"
MOST_BODY = 1024 * 1024


def _publish(scene: Scene, options: Options) -> Done:
    body = expand_bytes(options["data"], scene.variables)
    if options["topic"].startswith(OWN_TOPICS):
        raise OperatorError("topic_refused", "Topics that start with $ are the broker's own.", "Publish on another.")
    if len(body) > MOST_BODY:
        raise OperatorError("message_too_long", f"The message has {len(body):,} bytes, over {MOST_BODY:,}.", "Publish less.")
    scene.link.call("publish_bytes", topic=options["topic"], body=base64.b64encode(body).decode())
    return Done({"topic": options["topic"], "bytes": len(body)})


def _disconnect(scene: Scene, options: Options) -> Done:
    return _client(scene, "disconnect", options["client"], reason=options["reason"] or "an action of the operator's")


def _offline(scene: Scene, options: Options) -> Done:
    return _client(scene, "offline", options["client"])


def _replay(scene: Scene, options: Options) -> Done:
    return Done(scene.link.call(f"replay_{options['change']}", name=options["name"]) or {})


def _shut_down(scene: Scene, options: Options) -> Done:
    return Done(scene.link.call("shut_down", reason=f"action run {scene.run.pk}"))


def _client(scene: Scene, do: str, client: str, **arguments: Any) -> Done:
    if not client:
        raise OperatorError("unknown_client", "The step names no client: the variable in it is empty.", "Look at the trigger's variables.")
    return Done(scene.link.call(do, name=client, **arguments) or {})


def _plan_publish(instance: Instance, options: Options) -> Planned:
    return Planned(f"publish a message on {options['topic'][:200]}", details={"data": options["data"][:2_000]})


STEPS = {
    "publish": Step(_plan_publish, _publish),
    "disconnect": Step(says("disconnect {client}: {reason}"), _disconnect),
    "offline": Step(says("offline {client}"), _offline),
    "replay": Step(says("{change} the managed replay {name}"), _replay),
    "shut_down": Step(says("shut the broker down; its supervisor leaves it down"), _shut_down),
}
