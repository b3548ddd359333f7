"""Steps that make a new revision of the policy: a transport on or off, an older revision again."""

from __future__ import annotations

from console.models import Instance
from console.queries.policies import newest_revision, revision_numbered
from console.services import policies
from console.services.actions.scene import Done, Options, Planned, Scene, Step, says


def _transport(scene: Scene, options: Options) -> Done:
    change = policies.change_transport(
        scene.actor, options["name"], {"enabled": options["enabled"] == "yes"}, reason=f"action run {scene.run.pk}",
        instance_name=scene.instance.name,
    )  # fmt: skip
    return _done(scene, change)


def _revision(scene: Scene, options: Options) -> Done:
    change = policies.restore(
        scene.actor,
        int(float(options["number"])),
        reason=f"action run {scene.run.pk}",
        instance_name=scene.instance.name,
    )
    return _done(scene, change)


def _done(scene: Scene, change: policies.Change) -> Done:
    if change.problem:
        scene.progress.log(f"not in force yet: {change.problem}")
    return Done({"revision": change.revision.number, "in_force": change.applied})


def _plan_revision(instance: Instance, options: Options) -> Planned:
    wanted, newest = revision_numbered(instance, int(float(options["number"]))), newest_revision(instance)
    return Planned(
        f"make revision {wanted.number} the policy again", [wanted.number, newest.number if newest else 0]
    )


STEPS = {
    "transport": Step(says("switch the transport {name}: enabled {enabled}"), _transport),
    "revision": Step(_plan_revision, _revision),
}
